"""Answers of outside servers: their meaning, Retry-After, and the delay before the next attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.exceptions import InvalidTarget
from django_durable_tasks.masking import MASK
from django_durable_tasks.targets.answers import (
    BACKOFF,
    RETRY_AFTER_MAX,
    AnswerKind,
    EndpointHealth,
    breaker_pause_after,
    by_name,
    checked_statuses,
    delay,
    interpret,
    retry_after,
)
from django_durable_tasks.targets.http_request import checked_request_headers, masked_headers

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
ANY = checked_statuses(None, None)


def _kind(status: int, **headers: str) -> AnswerKind:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return interpret(status, names, ANY, NOW).kind


def test_each_status_has_one_meaning() -> None:
    for status in range(100, 600):
        expected = AnswerKind.RETRY
        if status == 410:
            expected = AnswerKind.STOP
        elif 200 <= status < 300:
            expected = AnswerKind.DONE
        elif 300 <= status < 400:
            expected = AnswerKind.FAILED
        assert _kind(status) is expected, status


def test_the_receiver_may_end_the_message_or_the_endpoint() -> None:
    assert _kind(500, webhook_delivery="abort-message") is AnswerKind.FAILED
    assert _kind(500, webhook_delivery=" Disable ") is AnswerKind.STOP
    assert _kind(204, webhook_delivery="abort-message") is AnswerKind.DONE
    assert _kind(204, webhook_delivery="disable") is AnswerKind.DONE
    assert _kind(500, webhook_delivery="unknown") is AnswerKind.RETRY


def test_the_longest_of_several_retry_after_counts() -> None:
    given_headers = [("Retry-After", "5"), ("X", "a"), ("retry-after", "100"), ("Retry-After", "x")]
    assert by_name(given_headers, NOW) == {"retry-after": "100", "x": "a"}


@pytest.mark.parametrize("name", ["Forwarded", "X-Forwarded-For", "x_forwarded_host", "X-Real-IP"])
def test_the_headers_of_proxies_are_refused(name: str) -> None:
    with pytest.raises(InvalidTarget, match="set by the sender"):
        checked_request_headers({name: "127.0.0.1"})


TRUSTED = (
    "Remote-User", "Remote-Groups", "Remote-Addr", "X-Remote-User", "X-Remote-Extra-Scopes", "X-Host",
    "Fastly-Client-IP", "X-ProxyUser-Ip", "X-Accel-Redirect", "X-Accel-Internal", "X-Sendfile",
    "X-Lighttpd-Send-File", "X-Originating-IP", "X-Auth-Request-User", "X-Authentik-Username",
    "X-WebAuth-User", "X-Amzn-Oidc-Data", "X-Goog-IAP-JWT-Assertion", "X-MS-Client-Principal-Name",
    "Cf-Access-Jwt-Assertion", "CF-Connecting-IPv6", "SSL-Client-Verify", "Client-Cert",
    "X-Azure-ClientIP", "WL-Proxy-Client-IP", "X-Middleware-Subrequest", "X-Original-Remote-User",
    "Tailscale-User-Login", "X-Forwarded", "Front-End-Https", "X-ARR-ClientCert", "Proxy", "Https",
    "X-Consumer-Username", "X-Authenticated-Userid", "OIDC-Claim-Sub", "X-SSL-Cert", "IV-User",
)  # fmt: skip


@given(name=st.sampled_from(TRUSTED), separator=st.sampled_from("-_.~"), upper=st.randoms())
def test_headers_that_servers_trust_are_refused_in_any_spelling(
    name: str, separator: str, upper: Random
) -> None:
    drawn = "".join(upper.choice([letter.lower(), letter.upper()]) for letter in name)
    with pytest.raises(InvalidTarget, match="set by the sender"):
        checked_request_headers({drawn.replace("-", separator): "1"})


@pytest.mark.parametrize(
    "name",
    ["Authorization", "CF-Access-Client-Id", "Fastly-Key", "HTTP-Referer", "X-Amz-Date", "X-Api-Key",
     "X-Goog-Acl", "X-Vercel-Protection-Bypass", "X-Request-Id", "X-User-Id", "Forwarder"],
)  # fmt: skip
def test_headers_that_clients_send_to_apis_are_accepted(name: str) -> None:
    assert checked_request_headers({name: "1"}) == {name: "1"}


def test_only_overload_slows_the_endpoint() -> None:
    slow = {status for status in range(100, 600) if interpret(status, {}, ANY, NOW).slows_endpoint}
    assert slow == {429, 502, 503, 504}


def test_the_caller_chooses_which_statuses_are_retried() -> None:
    only = checked_statuses([429, "5XX"], None)
    never = checked_statuses(None, ["4xx", 501])
    for status, by_only, by_never in ((429, True, False), (500, True, True), (404, False, False)):
        assert only.retries(status) is by_only
        assert never.retries(status) is by_never
    assert not never.retries(501)
    assert checked_statuses([302], None).retries(302)
    for bad in ("404", [99], [600], ["6xx"], ["44"], [True], [None]):
        with pytest.raises(InvalidTarget):
            checked_statuses(bad, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("120", 120.0),
        (" 0 ", 0.0),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("٣", None),
        ("9" * 11, None),
        (format_datetime(NOW + timedelta(minutes=2), usegmt=True), 120.0),
        (format_datetime(NOW - timedelta(minutes=2), usegmt=True), 0.0),
        ("Mon, 23 Nov 2026 14:00:00 +0100", 3600.0),
        ("Mon, 99 Nov 2026 14:00:00 GMT", None),
    ],
)
def test_retry_after_is_a_number_of_seconds_or_a_date(
    text: str | None, seconds: float | None
) -> None:
    assert retry_after(text, NOW) == seconds


@given(
    st.integers(1, 1_000),
    st.none() | st.floats(0, 1e12, allow_nan=False),
    st.floats(0, 1, exclude_max=True),
)
def test_the_delay_is_at_least_ours_and_at_most_two_hours_longer(
    failures: int, asked: float | None, draw: float
) -> None:
    own = BACKOFF[min(failures, len(BACKOFF)) - 1]
    found = delay(BACKOFF, failures, asked, draw)
    assert own <= found <= 1.1 * (own + RETRY_AFTER_MAX)
    if asked is not None:
        assert found >= min(asked, own + RETRY_AFTER_MAX)


def test_all_attempts_take_a_day_and_some_hours() -> None:
    assert sum(BACKOFF) == 27 * 3600 + 35 * 60 + 5


def test_headers_of_the_sender_cannot_be_given_in_any_spelling() -> None:
    for name in (
        "Host", "hOsT", "Content-Length", "Transfer-Encoding", "transfer_encoding", "Connection",
        "TE", "Trailer", "Upgrade", "Expect", "Keep-Alive", "Proxy-Authorization", "Webhook-Id",
        "webhook_signature", "Durable-Task-Id", "Idempotency-Key", "Idempotency_Key", "X Y", "", "X:",
        "X\r\nY", "ü", "x" * 101,
    ):  # fmt: skip
        with pytest.raises(InvalidTarget):
            checked_request_headers({name: "1"})
    for value in ("a\nb", "a\rb", "a\x00b", "ü", "\x7f", 1, None, ["a"]):
        with pytest.raises(InvalidTarget):
            checked_request_headers({"X": value})
    assert checked_request_headers({"X-A": "  a\tb ", "X-B": ""}) == {"X-A": "a\tb", "X-B": ""}
    with pytest.raises(InvalidTarget, match="at most 50"):
        checked_request_headers({f"X-{number}": "1" for number in range(51)})
    with pytest.raises(InvalidTarget, match="at most 16,384"):
        checked_request_headers({"X": "x" * 16_384})


def test_values_under_sensitive_names_are_masked() -> None:
    given_headers = [
        ("Authorization", "Bearer a"), ("Set-Cookie", "a=b"), ("X-Api-Key", "a"),
        ("webhook-signature", "v1,a"), ("Location", "https://x/?token=a&b=c"), ("X-Shop", "7"),
    ]  # fmt: skip
    names = "token|api[_-]?key|authorization|cookie"
    assert masked_headers(given_headers, names) == [
        ["Authorization", MASK], ["Set-Cookie", MASK], ["X-Api-Key", MASK],
        ["webhook-signature", MASK], ["Location", f"https://x/?token={MASK}&b={MASK}"], ["X-Shop", "7"],
    ]  # fmt: skip


def test_the_pause_of_a_breaker_doubles_up_to_twenty_times_the_first() -> None:
    pauses = [
        breaker_pause_after(EndpointHealth(failures=9, openings=openings), NOW, 5, 30)
        for openings in range(7)
    ]
    assert pauses == [30, 60, 120, 240, 480, 600, 600]
    assert breaker_pause_after(EndpointHealth(failures=3), NOW, 5, 30) == 0
    assert breaker_pause_after(EndpointHealth(failures=4), NOW, 5, 30) == 30
    assert breaker_pause_after(EndpointHealth(failures=99), NOW, 0, 30) == 0
    is_open = EndpointHealth(failures=9, openings=1, open_until=NOW + timedelta(seconds=1))
    assert breaker_pause_after(is_open, NOW, 5, 30) == 0

"""Periods, quiet hours, destinations and texts of notifications."""

from __future__ import annotations

import json
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.choices import FLAGS, EventType
from django_durable_tasks.contrib.notifications.messages import (
    EventFacts,
    NotificationContent,
    check_together,
    checked_config,
    checked_values,
    email_text,
    http_body,
    period_end,
    quiet_end,
    shown_config,
    slack_body,
    subject_of,
)
from django_durable_tasks.contrib.notifications.models import NotificationSetting
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.targets.addresses import address_policy

POLICY = address_policy((443,), ())
SLACK = "https://hooks.slack.com/services/T0/B0/secret"


def _utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("now", "end"),
    [
        (_utc(2026, 7, 1, 12), None),
        (_utc(2026, 7, 1, 20), _utc(2026, 7, 2, 5)),
        (_utc(2026, 7, 1, 19, 59), None),
        (_utc(2026, 7, 2, 4, 59), _utc(2026, 7, 2, 5)),
        (_utc(2026, 7, 2, 5), None),
        (_utc(2026, 3, 28, 22), _utc(2026, 3, 29, 5)),  # clocks are set forward in this night
        (_utc(2026, 10, 24, 21), _utc(2026, 10, 25, 6)),  # and back in this one
    ],
)
def test_quiet_hours_follow_the_wall_clock(now: datetime, end: datetime | None) -> None:
    assert quiet_end(time(22), time(7), "Europe/Berlin", now) == end


def test_a_zone_that_tzdata_has_no_more_counts_as_utc() -> None:
    found = quiet_end(time(22), time(7), "Mars/Olympus", _utc(2026, 7, 1, 23))
    assert found == _utc(2026, 7, 2, 7)


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC)),
    st.times(),
    st.times(),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
)
def test_quiet_hours_end_in_the_future(now: datetime, begin: time, end: time, zone: str) -> None:
    found = quiet_end(begin, end, zone, now)
    assert found is None or now < found <= now + timedelta(hours=25)


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC)),
    st.floats(60, 86_400),
)
def test_all_instants_of_a_period_have_one_end(now: datetime, seconds: float) -> None:
    end = period_end(now, seconds)
    assert now < end <= now + timedelta(seconds=seconds, milliseconds=1)


def test_a_digest_that_ends_in_quiet_hours_waits_for_their_end() -> None:
    setting = NotificationSetting(
        digest=3_600, quiet_from=time(22), quiet_until=time(7), time_zone="Europe/Berlin"
    )
    assert setting.due_at(_utc(2026, 7, 1, 19, 30)) == _utc(2026, 7, 2, 5)
    assert setting.due_at(_utc(2026, 7, 1, 12, 30)) == _utc(2026, 7, 1, 13)


@pytest.mark.parametrize(
    ("kind", "config", "reason"),
    [
        ("PIGEON", {}, "delivery_type"),
        ("EMAIL", {"url": "https://example.com/"}, "exactly 'to'"),
        ("EMAIL", {"to": []}, "1 to 20"),
        ("EMAIL", {"to": "ops@example.com"}, "1 to 20"),
        ("EMAIL", {"to": ["ops@example.com\nBcc: all@example.com"]}, "no e-mail address"),
        ("EMAIL", {"to": ["ops@example.org"]}, "NOTIFICATION_EMAIL_ALLOW"),
        ("EMAIL", {"to": [5]}, "no e-mail address"),
        ("SLACK_WEBHOOK", {"url": "ftp://example.com/"}, "http"),
        ("SLACK_WEBHOOK", {"url": "https://hooks.slack.com/********"}, "masked"),
        ("HTTP_WEBHOOK", {"url": "https://127.0.0.1/"}, "not a public address"),
        ("HTTP_WEBHOOK", {"url": "https://user:pw@example.com/"}, "user name"),
        ("HTTP_WEBHOOK", {"url": "https://example.com:22/"}, "port 22"),
        ("HTTP_WEBHOOK", {"url": None}, "URL"),
        ("HTTP_WEBHOOK", [], "exactly 'url'"),
    ],
)
def test_a_destination_that_cannot_be_used_is_refused(kind: str, config: Any, reason: str) -> None:
    with pytest.raises(InvalidOption, match="delivery_") as refused:
        checked_config(kind, config, policy=POLICY, allowed=["*@example.com"])
    assert reason in str(refused.value)
    assert "pw" not in str(refused.value)


def test_a_url_is_shown_without_its_secrets() -> None:
    known = {"url": SLACK}
    shown = shown_config("SLACK_WEBHOOK", known)
    assert "secret" not in str(shown)
    assert "services" not in str(shown)
    hook = {"url": "https://example.com/hook?token=abc"}
    assert "abc" not in str(shown_config("HTTP_WEBHOOK", hook))


@pytest.mark.parametrize(
    "values",
    [
        {"digest": 59},
        {"digest": 86_401},
        {"digest": True},
        {"digest": float("nan")},
        {"quiet_from": "22:00"},
        {"quiet_from": time(22, tzinfo=UTC)},
        {"time_zone": "../../etc/passwd"},
        {"time_zone": "Mars/Olympus"},
        {"on_failure": 1},
        {"name": ""},
        {"name": "a\nb"},
        {"task_name": "x" * 201},
        {"on_failures": True},
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(InvalidOption, match=name):
        checked_values(values)


def test_quiet_hours_have_two_different_ends() -> None:
    with pytest.raises(InvalidOption, match="quiet_until"):
        check_together({"quiet_from": time(1), "quiet_until": None})
    with pytest.raises(InvalidOption, match="nothing would ever be sent"):
        check_together({"quiet_from": time(1), "quiet_until": time(1)})


def _content(text: str, number: int = 1) -> NotificationContent:
    data = {"task_name": text, "error": text, "attempt": 1, "max_attempts": 1}
    facts = EventFacts(type=EventType.FAILED, created_at=_utc(2026, 7, 1), data=data)
    counts = [("task.failed", text, number)]
    return NotificationContent(
        setting_name=text,
        events=[facts] * min(number, 20),
        total=number,
        counts=counts if number > 1 else (),
        is_digest=number > 1,
    )


@given(st.text(max_size=400), st.sampled_from([1, 5_000]))
def test_any_text_fits_into_a_message(text: str, number: int) -> None:
    content = _content(text, number)
    subject = subject_of(content)
    assert "\n" not in subject
    assert "\r" not in subject
    assert len(subject.encode()) <= 150
    slack = json.loads(slack_body(content))["blocks"][0]["text"]["text"]
    assert len(slack) <= 2_800
    assert "<" not in slack.replace("&lt;", "")
    assert json.loads(http_body(content))["data"]
    assert email_text(content)


def test_each_event_type_has_a_headline_and_a_flag_or_a_reason() -> None:
    without_flag = {EventType.TEST, EventType.DIGEST}
    assert {kind for kinds in FLAGS.values() for kind in kinds} == set(EventType) - without_flag
    for kind in set(EventType) - {EventType.DIGEST}:
        facts = EventFacts(type=kind, created_at=_utc(2026, 7, 1), data={})
        assert subject_of(NotificationContent(setting_name="x", events=[facts], total=1))

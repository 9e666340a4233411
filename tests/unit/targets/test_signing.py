"""Signatures agree with the reference library of Standard Webhooks, in both directions."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from django_durable_tasks.exceptions import InvalidSignature, InvalidTarget
from django_durable_tasks.targets.http_request import (
    derived_secret,
    secret_bytes,
    signature,
    signed_headers,
    verify,
)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"x" * 24).decode()
NOW = 1_700_000_000


@given(st.text(alphabet="abc-123", min_size=1), st.text(), st.integers(0, 2**32))
def test_our_signatures_are_those_of_the_reference(
    message_id: str, text: str, timestamp: int
) -> None:
    try:
        instant = datetime.fromtimestamp(timestamp, UTC)
        text.encode()
    except (ValueError, UnicodeEncodeError):
        return
    expected = Webhook(SECRET).sign(message_id, instant, text)
    assert signature(SECRET, message_id, timestamp, text.encode()) == expected


def test_the_reference_accepts_our_headers_during_a_rotation() -> None:
    body = json.dumps({"a": "ü"}).encode()
    now = int(time.time())
    headers = signed_headers([OTHER, SECRET], "message", now, body)
    for secret in (SECRET, OTHER):
        assert Webhook(secret).verify(body, headers) == {"a": "ü"}
        assert verify(headers, body, [secret], now) == "message"


def test_a_vector_of_the_specification_is_accepted() -> None:
    body = b'{"test": 2432232314}'
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert verify(headers, body, [SECRET], 1_614_265_330.0) == headers["webhook-id"]


@pytest.mark.parametrize(
    ("change", "now"),
    [
        ({"webhook-id": "other"}, NOW),
        ({"webhook-id": ""}, NOW),
        ({"webhook-timestamp": str(NOW + 1)}, NOW),
        ({"webhook-timestamp": "soon"}, NOW),
        ({"webhook-timestamp": "١٧٠٠"}, NOW),
        ({"webhook-timestamp": "9" * 5_000}, NOW),
        ({"webhook-signature": ""}, NOW),
        ({"webhook-signature": "v1,"}, NOW),
        ({"webhook-signature": "v1a,abc"}, NOW),
        ({"webhook-signature": "ü" * 10_000}, NOW),
        ({"webhook-signature": "v1,x " * 1_000}, NOW),
        ({}, NOW + 301),
        ({}, NOW - 301),
    ],
)
def test_a_changed_or_old_request_is_refused(change: Mapping[str, str], now: float) -> None:
    headers = signed_headers([SECRET], "message", NOW, b"body")
    assert verify(headers, b"body", [SECRET], NOW) == "message"
    with pytest.raises(InvalidSignature):
        verify({**headers, **change}, b"body", [SECRET], now)


def test_another_body_and_another_secret_are_refused() -> None:
    headers = signed_headers([SECRET], "message", NOW, b"body")
    for body, secrets in ((b"body ", [SECRET]), (b"body", [OTHER]), (b"body", [])):
        with pytest.raises(InvalidSignature):
            verify(headers, body, secrets, NOW)


@pytest.mark.parametrize("secret", ["whsec_", "whsec_####", "whsec_YWJj", "whsec_" + "A" * 92])
def test_a_short_long_or_unreadable_secret_is_refused_without_its_text(secret: str) -> None:
    with pytest.raises(InvalidTarget) as refused:
        secret_bytes(secret)
    text = secret.removeprefix("whsec_")
    assert not text or text not in str(refused.value)


def test_derived_secrets_differ_by_key_tenant_and_endpoint_and_are_stable() -> None:
    found = [
        derived_secret("k", 1, "a"),
        derived_secret("l", 1, "a"),
        derived_secret("k", 2, "a"),
        derived_secret("k", 1, "b"),
        derived_secret("k", 1),
    ]
    assert len(set(found)) == len(found)
    assert derived_secret("k", 1, "a") == found[0]
    assert all(len(secret_bytes(secret)) == 32 for secret in found)

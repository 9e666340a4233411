"""The decorator for receivers accepts signed requests only, and processes each once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from django.core.cache import caches
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_durable_tasks.exceptions import InvalidOption, InvalidTarget
from django_durable_tasks.targets.http_request import signed_headers
from django_durable_tasks.webhooks import verify_webhook

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NO_HEADERS: Mapping[str, str] = {}
BODY = b'{"b": 1,  "a": 2}'


@pytest.fixture(autouse=True)
def cache() -> Iterator[None]:
    """An empty cache."""
    caches["default"].clear()
    yield
    caches["default"].clear()


class _Receiver:
    """A view that records its requests and answers with these statuses in turn."""

    def __init__(self, *statuses: int, **options: Any) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        self._statuses = list(statuses)

        @verify_webhook(options.pop("secrets", SECRET), **options)
        def view(request: HttpRequest) -> HttpResponse:
            self.bodies.append((request.webhook_id, request.body))  # type: ignore[attr-defined]
            return HttpResponse(status=self._statuses.pop(0) if self._statuses else 200)

        self.view = view

    def post(
        self,
        message_id: str = "m",
        *,
        age: int = 0,
        body: bytes = BODY,
        more: Mapping[str, str] = NO_HEADERS,
    ) -> int:
        headers = signed_headers([SECRET], message_id, int(time.time()) - age, BODY) | dict(more)
        request = RequestFactory().post(
            "/hook", data=body, content_type="application/json", headers=headers
        )
        return self.view(request).status_code


def test_a_signed_request_reaches_the_view_with_its_raw_bytes_and_id() -> None:
    receiver = _Receiver()
    assert receiver.post() == 200
    assert receiver.bodies == [("m", BODY)]
    assert receiver.view.csrf_exempt  # type: ignore[attr-defined]


def test_an_unsigned_changed_or_old_request_does_not_reach_the_view() -> None:
    receiver = _Receiver()
    assert receiver.post(body=BODY + b" ") == 401
    assert receiver.post(age=301) == 401
    assert receiver.post(more={"webhook-signature": "v1,abc"}) == 401
    assert receiver.view(RequestFactory().post("/hook")).status_code == 401
    assert receiver.bodies == []


def test_a_request_that_was_processed_is_not_processed_again() -> None:
    receiver = _Receiver()
    assert [receiver.post(), receiver.post(), receiver.post(age=100)] == [200, 204, 204]
    assert receiver.post("other") == 200
    assert [message_id for message_id, _ in receiver.bodies] == ["m", "other"]


def test_a_request_that_failed_is_processed_again() -> None:
    receiver = _Receiver(500, 200)
    assert [receiver.post(), receiver.post(age=10), receiver.post()] == [500, 200, 204]


def test_a_request_that_raised_is_processed_again() -> None:
    @verify_webhook(SECRET)
    def view(request: HttpRequest) -> HttpResponse:
        raise ValueError(request.path)

    for _ in range(2):
        headers = signed_headers([SECRET], "m", int(time.time()), b"x")
        request = RequestFactory().post(
            "/hook", data=b"x", content_type="text/plain", headers=headers
        )
        with pytest.raises(ValueError, match="/hook"):
            view(request)


def test_the_same_request_gets_409_while_it_is_processed() -> None:
    inner: list[int] = []

    @verify_webhook(SECRET)
    def view(request: HttpRequest) -> HttpResponse:
        if not inner:
            inner.append(view(request).status_code)
        return HttpResponse()

    headers = signed_headers([SECRET], "m", int(time.time()), b"x")
    request = RequestFactory().post("/hook", data=b"x", content_type="text/plain", headers=headers)
    assert view(request).status_code == 200
    assert inner == [409]


def test_secrets_may_be_rotated_and_depend_on_the_request() -> None:
    other = "whsec_" + "QUJD" * 8
    assert _Receiver(secrets=[other, SECRET]).post("one") == 200
    assert _Receiver(secrets=lambda request: [other]).post("two") == 401
    assert _Receiver(secrets=lambda request: SECRET).post("three") == 200


def test_without_a_cache_each_request_reaches_the_view() -> None:
    receiver = _Receiver(cache=None)
    assert [receiver.post(), receiver.post()] == [200, 200]
    assert len(receiver.bodies) == 2


def test_bad_secrets_and_async_views_are_refused_when_they_are_declared() -> None:
    with pytest.raises(InvalidTarget):
        verify_webhook("whsec_short")

    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    with pytest.raises(InvalidOption, match="is async"):
        verify_webhook(SECRET)(view)  # type: ignore[arg-type]


@pytest.mark.parametrize("message_id", ["a b\x7f", "x" * 201, "\n"])
def test_an_id_that_cannot_be_stored_is_refused(message_id: str) -> None:
    assert _Receiver().post(message_id) == 401

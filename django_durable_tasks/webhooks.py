"""For receivers: ``@verify_webhook`` accepts signed requests only, each once.

``verified_id`` is the check alone, also for servers that do not use Django.

The signatures are those of Standard Webhooks, as ``http_callback`` and other senders create them.
The project that receives needs no table and no setting of this package.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from django.core.cache import caches
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from django_durable_tasks.exceptions import InvalidOption, InvalidSignature
from django_durable_tasks.targets.http_request import TOLERANCE, secret_bytes, verify

Secrets = str | Sequence[str] | Callable[[HttpRequest], Sequence[str]]
View = Callable[..., HttpResponse]
_ID_MAX = 200
_PROCESSING, _DONE = "processing", "done"
_KEPT = 7 * 86_400
"""Seconds for which the id of a processed request is remembered."""


class ReceivedRequest(Protocol):
    """What a signature covers: a request of Django, or an object with the same two attributes."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; upper and lower case do not matter."""

    @property
    def body(self) -> bytes:
        """The body as it was received."""


def verified_id(
    request: ReceivedRequest, secrets: Sequence[str], *, tolerance: float = TOLERANCE
) -> str:
    """Return the ``webhook-id`` of a request whose signature is valid; raises InvalidSignature.

    ``tolerance``: seconds by which its timestamp may differ from the clock of this host. The
    signature covers the bytes of the body as they were received.
    """
    headers = {name.lower(): value for name, value in request.headers.items()}
    message_id = verify(headers, request.body, secrets, time.time(), tolerance)
    if len(message_id) > _ID_MAX or not message_id.isprintable():
        raise InvalidSignature(f"webhook-id has more than {_ID_MAX} characters.")
    return message_id


def verify_webhook(
    secrets: Secrets, *, tolerance: float = TOLERANCE, cache: str | None = "default"
) -> Callable[[View], View]:
    """Decorator of a view: answer 401 unless the request is signed with one of the secrets.

    ``secrets``: one ``whsec_...``, several during a rotation, or a function of the request. With a
    ``cache`` (its alias; it must be shared by all processes), a request whose id was answered with
    2xx before gets 204 without a call of the view, and 409 while the view processes it. The view
    gets the id as ``request.webhook_id``. Raises InvalidOption or InvalidTarget for a bad secret.
    """
    fixed = [] if callable(secrets) else _as_list(secrets)
    for secret in fixed:
        secret_bytes(secret)

    def decorate(view: View) -> View:
        if inspect.iscoroutinefunction(view):
            raise InvalidOption(f"{view.__qualname__} is async: write a plain view.")

        @functools.wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            try:
                accepted = _as_list(secrets(request)) if callable(secrets) else fixed
                message_id = verified_id(request, accepted, tolerance=tolerance)
            except InvalidSignature as invalid:
                return HttpResponse(str(invalid), status=401, content_type="text/plain")
            request.webhook_id = message_id  # type: ignore[attr-defined]
            if cache is None:
                return view(request, *args, **kwargs)
            text = f"{request.path}\x00{message_id}".encode("utf-8", "backslashreplace")
            # A key that every cache accepts, whatever the path and the id contain.
            store, key = caches[cache], f"durable-webhook:{hashlib.sha256(text).hexdigest()}"
            if not store.add(key, _PROCESSING, tolerance):
                return HttpResponse(status=204 if store.get(key) == _DONE else 409)
            try:
                response = view(request, *args, **kwargs)
            except BaseException:
                store.delete(key)
                raise
            if 200 <= response.status_code < 300:
                store.set(key, _DONE, _KEPT)
            else:
                store.delete(key)
            return response

        return csrf_exempt(checked)

    return decorate


def _as_list(secrets: str | Sequence[str]) -> list[str]:
    return [secrets] if isinstance(secrets, str) else list(secrets)

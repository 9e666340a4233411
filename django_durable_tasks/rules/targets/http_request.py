"""The arguments of an HTTP callback, checked: at the call, and again before each attempt."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django_durable_tasks.exceptions import InvalidTarget
from django_durable_tasks.rules.targets.answers import RetryStatuses, checked_statuses
from django_durable_tasks.rules.targets.headers import checked_request_headers
from django_durable_tasks.rules.targets.policy import AddressPolicy
from django_durable_tasks.rules.targets.urls import TargetUrl, parsed_url
from django_durable_tasks.rules.tasks.options import KEY_MAX, checked_key

_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_WITHOUT_BODY = ("GET", "HEAD")
_SHORTEST_TIMEOUT = 0.1
_DEFAULT_TENANT = 1
_DIGITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request to an outside server. ``timeout`` is the longest duration of an attempt in seconds.
    ``endpoint`` names the receiver; each one has a signing secret of its own.
    """

    method: str
    url: TargetUrl
    headers: Mapping[str, str]
    body: bytes
    timeout: float
    retried: RetryStatuses
    endpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The settings that limit a request; timeouts in seconds."""

    policy: AddressPolicy
    timeout: float
    longest_timeout: float


def http_request(arguments: Mapping[str, Any], limits: HttpLimits) -> HttpRequest:
    """Return the checked request; raises InvalidTarget."""
    method, url = _method(arguments.get("method", "POST")), parsed_url(arguments.get("url"))
    limits.policy.check(url)
    headers = checked_request_headers(arguments.get("headers"))
    body = arguments.get("body")
    if body is not None and method in _WITHOUT_BODY:
        raise InvalidTarget(f"body: a {method} request has none; put the data into the URL.")
    if body is not None and "content-type" not in {name.lower() for name in headers}:
        headers["Content-Type"] = "application/json"
    return HttpRequest(
        method=method,
        url=url,
        headers=headers,
        body=(body_text(body) or "").encode(),
        timeout=_timeout(arguments.get("timeout"), limits),
        retried=checked_statuses(arguments.get("retry_on"), arguments.get("no_retry_on")),
        endpoint=endpoint_name(url, arguments.get("endpoint")),
    )


def endpoint_name(url: TargetUrl, given: object) -> str:
    """Return the name of the receiver: ``endpoint=`` of the callback, or else the origin.

    Raises InvalidOption.
    """
    return url.origin if given is None else checked_key("endpoint", given)


def body_text(body: object) -> str | None:
    """Return the body as it is sent. A string is sent unchanged, another JSON value is encoded."""
    if body is None:
        return None
    try:
        text = body if isinstance(body, str) else _json(body)
        text.encode()
    except UnicodeEncodeError:
        raise InvalidTarget("body contains a lone surrogate, which is not UTF-8.") from None
    except RecursionError:
        raise InvalidTarget("body has too many levels: reduce its depth.") from None
    except (TypeError, ValueError) as error:
        raise InvalidTarget(f"body cannot be converted to JSON: {error}.") from None
    return text


def _json(body: object) -> str:
    return json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def stored_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as they are stored: with the body as text, because a database may
    change the order of keys in JSON.
    """
    if "body" not in arguments:
        return dict(arguments)
    return {**arguments, "body": body_text(arguments["body"])}


def _method(value: object) -> str:
    if not isinstance(value, str) or value.upper() not in _METHODS:
        raise InvalidTarget(f"method={value!r}: give one of {', '.join(_METHODS)}.")
    return value.upper()


def _timeout(value: object, limits: HttpLimits) -> float:
    if value is None:
        return limits.timeout
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidTarget(f"timeout={value!r}: give seconds.")
    if not _SHORTEST_TIMEOUT <= value <= limits.longest_timeout:
        raise InvalidTarget(
            f"timeout={value:g}: give {_SHORTEST_TIMEOUT:g} to {limits.longest_timeout:g} seconds"
            " (DURABLE_TASKS['HTTP_TIMEOUT_MAX'])."
        )
    return float(value)


def endpoint_key(tenant_id: int, arguments: Mapping[str, Any]) -> str | None:
    """Return the key of the receiver: origin and ``endpoint``, with the tenant unless it is the
    default one. None if the URL is not known yet.
    """
    try:
        origin = parsed_url(arguments.get("url")).origin
    except InvalidTarget:
        return None
    name = arguments.get("endpoint")
    key = f"{origin} {name}" if isinstance(name, str) else origin
    key = key if tenant_id == _DEFAULT_TENANT else f"{tenant_id}:{key}"
    if len(key) <= KEY_MAX:
        return key
    return key[: KEY_MAX - _DIGITS] + hashlib.sha256(key.encode()).hexdigest()[:_DIGITS]

"""The arguments of an HTTP callback, checked: at the call, and again before each attempt."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django_durable_tasks.exceptions import InvalidOption, InvalidTarget
from django_durable_tasks.rules.targets.answers import RetryStatuses, checked_statuses
from django_durable_tasks.rules.targets.headers import checked_request_headers
from django_durable_tasks.rules.targets.policy import AddressPolicy
from django_durable_tasks.rules.targets.urls import TargetUrl, parsed_url
from django_durable_tasks.rules.tasks.options import KEY_MAX, checked_key

_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_WITHOUT_BODY = ("GET", "HEAD")
_SHORTEST_TIMEOUT = 0.1
# Seconds. A receiver that hangs holds a process of a worker for this time.
TIMEOUT_MAX = 60.0
_DEFAULT_TENANT = 1
_DIGITS = 32

OF_SETTINGS = "notification-setting-"
"""With this begin the names of the receivers of notification settings."""


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


def http_request(
    arguments: Mapping[str, Any], limits: HttpLimits, *, is_setting: bool = False
) -> HttpRequest:
    """Return the checked request; raises InvalidTarget. ``is_setting``: as of ``endpoint_name``."""
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
        endpoint=endpoint_name(url, arguments.get("endpoint"), is_setting=is_setting),
    )


def endpoint_name(url: TargetUrl, given: object, *, is_setting: bool = False) -> str:
    """Return the name of the receiver: ``endpoint=`` of the callback, or else the origin.

    Raises InvalidOption, also for the name of a notification setting unless ``is_setting``: its
    secret would sign a callback, which the receiver would take for a message of the setting.
    """
    if given is None:
        return url.origin
    name = checked_key("endpoint", given)
    if name.startswith(OF_SETTINGS) and not is_setting:
        raise InvalidOption(
            f"endpoint={name!r}: names that begin with {OF_SETTINGS!r} belong to notification"
            " settings. Give it another name."
        )
    return name


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
    if not _SHORTEST_TIMEOUT <= value <= TIMEOUT_MAX:
        raise InvalidTarget(
            f"timeout={value:g}: give {_SHORTEST_TIMEOUT:g} to {TIMEOUT_MAX:g} seconds."
        )
    return float(value)


def endpoint_key(tenant_id: int, arguments: Mapping[str, Any]) -> str | None:
    """Return the key under which concurrency and breaker of the receiver count; None if the URL is
    not known yet.

    For the default tenant, whose calls the project makes itself, it is the origin and ``endpoint``.
    Another tenant can choose any number of these for one server: texts, and names below a domain
    whose DNS it controls. Its key is therefore the tenant, the scheme, the domain and the port.
    """
    try:
        url = parsed_url(arguments.get("url"))
    except InvalidTarget:
        return None
    name = arguments.get("endpoint")
    if tenant_id != _DEFAULT_TENANT:
        key = f"{tenant_id}:{url.with_host(url.domain).origin}"
    else:
        key = f"{url.origin} {name}" if isinstance(name, str) else url.origin
    if len(key) <= KEY_MAX:
        return key
    return key[: KEY_MAX - _DIGITS] + hashlib.sha256(key.encode()).hexdigest()[:_DIGITS]

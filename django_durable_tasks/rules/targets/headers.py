"""Rules for the headers of requests to outside servers: which a caller may set, and which values
are masked where requests are displayed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from django_durable_tasks.exceptions import InvalidTarget
from django_durable_tasks.rules.tasks.masking import MASK, masked_text, masked_url

HEADERS_MAX, HEADERS_MAX_BYTES = 50, 16_384
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?|")
_OURS = frozenset(
    {
        "accept-encoding",
        "cf-connecting-ip",
        "client-ip",
        "connection",
        "content-length",
        "date",
        "expect",
        "forwarded",
        "host",
        "http2-settings",
        "idempotency-key",
        "keep-alive",
        "metadata",
        "metadata-flavor",
        "te",
        "trailer",
        "transfer-encoding",
        "true-client-ip",
        "upgrade",
        "via",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-http-method",
        "x-http-method-override",
        "x-method-override",
        "x-original-host",
        "x-original-method",
        "x-original-uri",
        "x-original-url",
        "x-real-ip",
        "x-remote-addr",
        "x-remote-ip",
        "x-rewrite-url",
    }
)
# A server behind HTTP_ALLOW may trust what a proxy or a metadata service sets, as X-Forwarded-For.
_OUR_PREFIXES = (
    "durable-",
    "proxy-",
    "webhook-",
    "x-aws-",
    "x-envoy-",
    "x-forwarded-",
    "x-google-",
)
SENT_HEADERS: Mapping[str, str] = {
    "Idempotency-Key": (
        "The same for all attempts and unedited replays, in quotes. A receiver can ignore a request"
        " that it has processed."
    ),
    "webhook-id": "The same value without quotes.",
    "webhook-timestamp": "When the attempt began, in Unix seconds.",
    "webhook-signature": (
        "`v1,` and base64 of the HMAC-SHA256 of `{webhook-id}.{webhook-timestamp}.{body}`, as"
        " Standard Webhooks 1.0.0 defines it; separated by spaces during a rotation. `GET"
        " /signing-secret` and `GET /notification-settings/{id}/signing-secret` return the secrets."
        " Missing if requests are not signed."
    ),
    "Durable-Task-Id": "The id of the task.",
    "Durable-Attempt": "The number of the attempt, from 1.",
    "Durable-Max-Attempts": "How many attempts the task may have.",
    "Durable-Scheduled-For": "When the task was to run, in RFC 3339.",
    "Durable-Schedule-Id": "The id of the recurring task, if one created the task.",
    "User-Agent": "`django-durable-tasks/` and the version, unless the callback has its own.",
}
"""The headers of our requests beside those that a caller gives, with their meaning. A signature
covers the id, the timestamp and the body only.
"""
OPTIONAL_HEADERS = frozenset({"webhook-signature", "Durable-Schedule-Id"})
_URLS = frozenset({"content-location", "location", "referer"})
_MASKED = frozenset({"webhook-signature"})


def checked_request_headers(value: object) -> dict[str, str]:
    """Return the headers that a caller gives, with stripped values; raises InvalidTarget."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidTarget(f"headers is a {type(value).__name__}: give a mapping of names.")
    if len(value) > HEADERS_MAX:
        raise InvalidTarget(f"headers: {len(value)} were given, at most {HEADERS_MAX} are allowed.")
    found: dict[str, str] = {}
    for name, text in value.items():
        _check_name(name, found)
        found[name] = _checked_value(name, text)
    size = sum(len(name) + len(text) for name, text in found.items())
    if size > HEADERS_MAX_BYTES:
        raise InvalidTarget(
            f"headers have {size:,} bytes, at most {HEADERS_MAX_BYTES:,} are allowed."
        )
    return found


def _check_name(name: object, found: Mapping[str, str]) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidTarget(f"headers: {name!r} is not a name of a header.")
    # Many servers read an underscore as a hyphen.
    plain = name.lower().replace("_", "-")
    if plain in _OURS or plain.startswith(_OUR_PREFIXES):
        raise InvalidTarget(f"headers: {name} is set by the sender and cannot be given.")
    if plain in {other.lower().replace("_", "-") for other in found}:
        raise InvalidTarget(f"headers: {name} was given twice.")


def _checked_value(name: str, text: object) -> str:
    value = text.strip(" \t") if isinstance(text, str) else text
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        # The value is omitted, because it may be a secret.
        raise InvalidTarget(
            f"headers: the value of {name} is not a string of printable ASCII characters."
        )
    return value


def masked_headers(headers: Iterable[tuple[str, str]], names: str) -> list[list[str]]:
    """Return pairs of name and value, with the values under sensitive names masked.

    ``names`` is the pattern SECRET_NAMES. Other values are searched for ``name=value`` pairs.
    """
    hides = re.compile(names, re.IGNORECASE).search
    found = []
    for name, value in headers:
        if hides(name) or name.lower() in _MASKED:
            found.append([name, MASK])
        elif name.lower() in _URLS:
            found.append([name, masked_url(value)])
        else:
            found.append([name, masked_text(value, names)])
    return found

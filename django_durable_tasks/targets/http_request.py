"""HTTP callbacks: their arguments, headers, ids and signatures."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django_durable_tasks.choices import DEFAULT_TENANT_ID
from django_durable_tasks.exceptions import InvalidOption, InvalidSignature, InvalidTarget, about
from django_durable_tasks.limits.scopes import key_of_tenant
from django_durable_tasks.masking import MASK, masked_text, masked_url
from django_durable_tasks.option_values import checked_key
from django_durable_tasks.targets.addresses import AddressPolicy, TargetUrl, parsed_url
from django_durable_tasks.targets.answers import RetryStatuses, checked_statuses

# Rules for the headers of requests to outside servers: which a caller may set, and which values
# are masked where requests are displayed.


HEADERS_MAX, HEADERS_MAX_BYTES = 50, 16_384
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?|")
_OURS = frozenset(
    {
        "accept-encoding",
        "akamai-origin-hop",
        "ali-cdn-real-ip",
        "cdn-src-ip",
        "cf-access-authenticated-user-email",
        "cf-access-jwt-assertion",
        "cf-connecting-ip",
        "cf-connecting-ipv6",
        "cf-ipcountry",
        "cf-pseudo-ipv4",
        "cf-visitor",
        "cf-worker",
        "client-cert",
        "client-cert-chain",
        "client-ip",
        "connection",
        "content-length",
        "date",
        "expect",
        "fastly-client",
        "fastly-client-ip",
        "fastly-ff",
        "fastly-ssl",
        "fastly-temp-xff",
        "fly-client-ip",
        "forwarded",
        "forwarded-for",
        "forwarded-proto",
        "front-end-https",
        "host",
        "http-client-ip",
        "http-host",
        "http-x-forwarded-for",
        "http2-settings",
        "https",
        "idempotency-key",
        "incap-client-ip",
        "iv-creds",
        "iv-groups",
        "iv-user",
        "keep-alive",
        "metadata",
        "metadata-flavor",
        "proxy",
        "te",
        "trailer",
        "transfer-encoding",
        "true-client-ip",
        "upgrade",
        "via",
        "x-akamai-edgescape",
        "x-anonymous-consumer",
        "x-apigateway-api-userinfo",
        "x-azure-clientip",
        "x-azure-fdid",
        "x-azure-ref",
        "x-azure-socketip",
        "x-client-cert",
        "x-client-dn",
        "x-client-ip",
        "x-client-verify",
        "x-cluster-client-ip",
        "x-custom-ip-authorization",
        "x-endpoint-api-userinfo",
        "x-forward-for",
        "x-forwarded",
        "x-host",
        "x-http-destinationurl",
        "x-http-host-override",
        "x-http-method",
        "x-http-method-override",
        "x-https",
        "x-lighttpd-send-file",
        "x-method-override",
        "x-nf-client-connection-ip",
        "x-originating-ip",
        "x-protocol",
        "x-proxy-user",
        "x-proxyuser-ip",
        "x-real-ip",
        "x-real-user",
        "x-remote",
        "x-reproxy-url",
        "x-rewrite-url",
        "x-scheme",
        "x-send-file",
        "x-sendfile",
        "x-source-ip",
        "x-true-client-ip",
        "x-url-scheme",
        "x-user-ip",
        "x-userinfo",
        "x-vercel-forwarded-for",
        "x-webobjects-remote-host",
    }
)
# A server behind HTTP_ALLOW may trust what a proxy, a metadata service or an authenticating
# gateway sets, as X-Forwarded-For and Remote-User. Not those that clients send too, as Fastly-Key.
# CGI makes Proxy the variable HTTP_PROXY, with which a server sends its own requests through the
# caller's proxy.
_OUR_PREFIXES = (
    "durable-",
    "mellon-",
    "oidc-claim-",
    "proxy-",
    "remote-",
    "shib-",
    "sm-user",
    "ssl-client-",
    "tailscale-",
    "webhook-",
    "wl-proxy-",
    "x-accel-",
    "x-amzn-mtls-",
    "x-amzn-oidc-",
    "x-appengine-",
    "x-arr-",
    "x-auth-request-",
    "x-authenticated-",
    "x-authentik-",
    "x-aws-",
    "x-consumer-",
    "x-credential-",
    "x-envoy-",
    "x-forwarded-",
    "x-goog-authenticated-user-",
    "x-goog-iap-",
    "x-google-",
    "x-middleware-",
    "x-ms-client-principal",
    "x-ms-token-aad-",
    "x-original-",
    "x-pomerium-",
    "x-remote-",
    "x-ssl-",
    "x-vercel-ip-",
    "x-vouch-",
    "x-webauth-",
)
# Names as CGI and its successors compare them, and without any separator: X-ProxyUser-Ip is also
# written X-Proxy-User-IP.
_SEPARATORS = re.compile("[^0-9a-z]")
_OURS_JOINED = frozenset(_SEPARATORS.sub("", name) for name in _OURS)
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


@about("headers")
def checked_request_headers(value: object) -> dict[str, str]:
    """Return the headers that a caller gives, with stripped values; raises InvalidTarget."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidTarget(f"headers is a {type(value).__name__}: give a mapping of names.")
    if len(value) > HEADERS_MAX:
        raise InvalidTarget(f"headers: {len(value)} were given, at most {HEADERS_MAX} are allowed.")
    headers: dict[str, str] = {}
    plain_names = set[str]()
    for name, text in value.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidTarget(f"headers: {name!r} is not a name of a header.")
        # Many servers read an underscore as a hyphen, and some each character that is no letter.
        plain = _SEPARATORS.sub("-", name.lower())
        if plain.startswith(_OUR_PREFIXES) or plain.replace("-", "") in _OURS_JOINED:
            raise InvalidTarget(f"headers: {name} is set by the sender and cannot be given.")
        if plain in plain_names:
            raise InvalidTarget(f"headers: {name} was given twice.")
        stripped = text.strip(" \t") if isinstance(text, str) else text
        if not isinstance(stripped, str) or not _VALUE.fullmatch(stripped):
            # The value is omitted, because it may be a secret.
            raise InvalidTarget(
                f"headers: the value of {name} is not a string of printable ASCII characters."
            )
        plain_names.add(plain)
        headers[name] = stripped
    size = sum(len(name) + len(text) for name, text in headers.items())
    if size > HEADERS_MAX_BYTES:
        raise InvalidTarget(
            f"headers have {size:,} bytes, at most {HEADERS_MAX_BYTES:,} are allowed."
        )
    return headers


def masked_headers(headers: Iterable[tuple[str, str]], names: str) -> list[list[str]]:
    """Return pairs of name and value, with the values under sensitive names masked.

    ``names`` is the pattern SECRET_NAMES. Other values are searched for ``name=value`` pairs.
    """
    hides = re.compile(names, re.IGNORECASE).search
    pairs = []
    for name, value in headers:
        if hides(name) or name.lower() in _MASKED:
            pairs.append([name, MASK])
        elif name.lower() in _URLS:
            pairs.append([name, masked_url(value)])
        else:
            pairs.append([name, masked_text(value, names)])
    return pairs


# The id of a request to an outside server: that of its task, and another one after an edit.
#
# A receiver ignores a request whose id it has processed. So an edited request needs another id,
# and retries and unedited replays keep theirs.


CONTENT = "content"
"""The key in a task's options: how often its request was edited after an attempt."""


def after_edit(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of a task whose request was edited after an attempt."""
    values = dict(options or {})
    return {**values, CONTENT: _edits(values) + 1}


def content_id_of_call(
    before: Mapping[str, Any] | None, options: Mapping[str, Any] | None, *, is_edited: bool
) -> dict[str, Any] | None:
    """Return the ``options`` of a call that replaces the options ``before`` of a task.

    ``is_edited``: the call changes the request after an attempt.
    """
    edits = _edits(before or {}) + is_edited
    kept = {**(options or {}), **({CONTENT: edits} if edits else {})}
    return kept or None


def request_id(task_id: uuid.UUID, options: Mapping[str, Any]) -> str:
    """Return the id of the request of a task with these options."""
    edits = _edits(options)
    return f"{task_id}-{edits}" if edits else str(task_id)


def _edits(options: Mapping[str, Any]) -> int:
    number = options.get(CONTENT, 0)
    return number if isinstance(number, int) else 0


# Signatures of Standard Webhooks 1.0.0 (HMAC-SHA256): signing, verifying, and the secrets.
#
# The signed text is ``id.timestamp.body``. A secret is ``whsec_`` and 24 to 64 bytes in base64.


PREFIX = "whsec_"
TOLERANCE = 300.0
"""Seconds by which the timestamp of a message may differ from the receiver's clock."""
_SHORTEST, _LONGEST = 24, 64
_TIMESTAMP = re.compile(r"[0-9]{1,12}")


def secret_bytes(secret: str) -> bytes:
    """Return the key of a ``whsec_...`` secret; raises InvalidTarget, without the secret."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidTarget("The signing secret is not base64 after whsec_.") from None
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise InvalidTarget(
            f"The signing secret has {len(key)} bytes; {_SHORTEST} to {_LONGEST} are allowed."
        )
    return key


def derived_secret(master: str, *labels: object) -> str:
    """Return the secret of one endpoint, derived from a master key. It is the same in each process,
    and the master key cannot be computed from it.
    """
    text = "\x00".join(str(label) for label in labels)
    key = hmac.digest(master.encode(), f"durable-webhook\x00{text}".encode(), hashlib.sha256)
    return PREFIX + base64.b64encode(key).decode()


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature, ``v1,<base64>``."""
    text = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.digest(secret_bytes(secret), text, hashlib.sha256)
    return "v1," + base64.b64encode(digest).decode()


def signed_headers(
    secrets: Iterable[str], message_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """Return the three headers; during a rotation the last one contains several signatures."""
    signatures = [signature(secret, message_id, timestamp, body) for secret in secrets]
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    return headers | ({"webhook-signature": " ".join(signatures)} if signatures else {})


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: Iterable[str],
    now: float,
    tolerance: float = TOLERANCE,
) -> str:
    """Check a received message and return its id; raises InvalidSignature.

    ``headers`` by names in lower case. ``now`` is in Unix seconds. One matching signature of any
    secret is enough.
    """
    message_id, stamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    signatures = headers.get("webhook-signature", "")
    if not message_id or not stamp or not signatures:
        raise InvalidSignature(
            "webhook-id, webhook-timestamp or webhook-signature is missing from the request."
        )
    if not _TIMESTAMP.fullmatch(stamp):
        raise InvalidSignature("webhook-timestamp is not a number of seconds.")
    if abs(int(stamp) - now) > tolerance:
        raise InvalidSignature(
            f"webhook-timestamp differs by more than {tolerance:g} s from this clock."
        )
    candidates = signatures.split(" ")[:20]
    for secret in secrets:
        expected = signature(secret, message_id, int(stamp), body).encode()
        for candidate in candidates:
            if hmac.compare_digest(expected, candidate.encode("utf-8", "backslashreplace")):
                return message_id
    raise InvalidSignature("No signature of the request matches a secret of this endpoint.")


# The arguments of an HTTP callback, checked: at the call, and again before each attempt.


_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_WITHOUT_BODY = ("GET", "HEAD")
_SHORTEST_TIMEOUT = 0.1
# Seconds. A receiver that hangs holds a process of a worker for this time.
TIMEOUT_MAX = 60.0

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
    method = arguments.get("method", "POST")
    if not isinstance(method, str) or method.upper() not in _METHODS:
        raise InvalidTarget.of("method", method, f"give one of {', '.join(_METHODS)}.")
    method, url = method.upper(), parsed_url(arguments.get("url"))
    limits.policy.check(url)
    headers = checked_request_headers(arguments.get("headers"))
    body = arguments.get("body")
    if body is not None and method in _WITHOUT_BODY:
        raise InvalidTarget(
            f"body: a {method} request has none; put the data into the URL.", option="body"
        )
    timeout = arguments.get("timeout")
    if timeout is None:
        timeout = limits.timeout
    elif (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or not math.isfinite(timeout)
    ):
        raise InvalidTarget.of("timeout", timeout, "give seconds.")
    elif not _SHORTEST_TIMEOUT <= timeout <= TIMEOUT_MAX:
        raise InvalidTarget(
            f"timeout={timeout:g}: give {_SHORTEST_TIMEOUT:g} to {TIMEOUT_MAX:g} seconds.",
            option="timeout",
        )
    if body is not None and "content-type" not in {name.lower() for name in headers}:
        headers["Content-Type"] = "application/json"
    return HttpRequest(
        method=method,
        url=url,
        headers=headers,
        body=(body_text(body) or "").encode(),
        timeout=float(timeout),
        retried=checked_statuses(arguments.get("retry_on"), arguments.get("no_retry_on")),
        endpoint=_endpoint(url, arguments.get("endpoint"), is_setting),
    )


def _endpoint(url: TargetUrl, value: object, is_setting: bool) -> str:
    """Return the name of the receiver; raises InvalidTarget, as the other arguments do."""
    try:
        return endpoint_name(url, value, is_setting=is_setting)
    except InvalidOption as refused:
        raise InvalidTarget(str(refused), option="endpoint") from None


def endpoint_name(url: TargetUrl, value: object, *, is_setting: bool = False) -> str:
    """Return the name of the receiver: ``endpoint=`` of the callback, or else the origin.

    Raises InvalidOption, also for the name of a notification setting unless ``is_setting``: its
    secret would sign a callback, which the receiver would take for a message of the setting.
    """
    if value is None:
        return url.origin
    name = checked_key("endpoint", value)
    if name.startswith(OF_SETTINGS) and not is_setting:
        raise InvalidOption.of(
            "endpoint",
            name,
            f"names that begin with {OF_SETTINGS!r} belong to notification settings. Give it"
            " another name.",
        )
    return name


@about("body")
def body_text(body: object) -> str | None:
    """Return the body as it is sent. A string is sent unchanged, another JSON value is encoded."""
    if body is None:
        return None
    try:
        text = body
        if not isinstance(text, str):
            text = json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except UnicodeEncodeError:
        raise InvalidTarget("body contains a lone surrogate, which is not UTF-8.") from None
    except RecursionError:
        raise InvalidTarget("body has too many levels: reduce its depth.") from None
    except (TypeError, ValueError) as error:
        raise InvalidTarget(f"body cannot be converted to JSON: {error}.") from None
    return text


def stored_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as they are stored: with the body as text, because a database may
    change the order of keys in JSON.
    """
    if "body" not in arguments:
        return dict(arguments)
    return {**arguments, "body": body_text(arguments["body"])}


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
    if tenant_id != DEFAULT_TENANT_ID:
        return key_of_tenant(tenant_id, url.with_host(url.domain).origin)
    key = f"{url.origin} {name}" if isinstance(name, str) else url.origin
    return key_of_tenant(tenant_id, key)

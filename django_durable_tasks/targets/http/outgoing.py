"""The client of this process, as the settings configure it, and the headers of its requests."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

from django_durable_tasks import __version__, conf, process_state
from django_durable_tasks.rules.targets.content_id import request_id
from django_durable_tasks.rules.targets.http_request import TIMEOUT_MAX, HttpLimits, HttpRequest
from django_durable_tasks.rules.targets.policy import AddressPolicy, address_policy
from django_durable_tasks.rules.targets.signing import derived_secret, signed_headers
from django_durable_tasks.rules.targets.urls import TargetUrl
from django_durable_tasks.rules.tasks.runs import Run
from django_durable_tasks.targets.http.client import HttpClient
from django_durable_tasks.targets.http.resolver import Resolver

# Seconds, for a SYN and its first repetition after one second. The rest of the attempt's time is
# left for other addresses and the answer.
_CONNECT_TIMEOUT = 3.0
# Bytes of an answer that are read and stored: a receiver must not fill memory or the database.
_ANSWER_MAX_BYTES = 4_096


@lru_cache(maxsize=1_000)
def _parsed(ports: tuple[int, ...], allow: tuple[str, ...]) -> AddressPolicy:
    return address_policy(ports, allow)


def policy(slug: str | None = None) -> AddressPolicy:
    """Return the rules of HTTP_PORTS and HTTP_ALLOW for the tenant with this slug; None: for any
    tenant. Raises InvalidTarget for a bad entry.
    """
    return _parsed(tuple(conf.settings().HTTP_PORTS), conf.allowed("HTTP_ALLOW", slug))


def limits() -> HttpLimits:
    """Return the limits of a request."""
    return HttpLimits(policy=policy(), timeout=min(conf.settings().HTTP_TIMEOUT, TIMEOUT_MAX))


def client(tenant_id: int, slug: str | None = None) -> HttpClient:
    """Return a client with the rules of the settings for the requests of a tenant; the slug is
    needed only if HTTP_ALLOW differs between tenants.
    """
    return HttpClient(
        policy(slug),
        resolver=process_state.of(Resolver),
        connect_timeout=_CONNECT_TIMEOUT,
        body_max=_ANSWER_MAX_BYTES,
        tenant_id=tenant_id,
    )


def signing_secrets(tenant_id: int, url: TargetUrl, endpoint: str) -> list[str]:
    """Return the secrets of an endpoint, the current one first.

    The origin is a part of each, so that the name of another endpoint does not lead to its secret.
    """
    keys = conf.settings().HTTP_SIGNING_KEYS
    return [derived_secret(key, tenant_id, url.origin, endpoint) for key in keys]


def headers_of(request: HttpRequest, run: Run, now: datetime) -> dict[str, str]:
    """Return the headers of one attempt: ours, the signature, and those of the caller.

    One id identifies the request over all attempts and unedited replays.
    """
    identity = request_id(run.task_id, run.options)
    ours = {
        "Idempotency-Key": f'"{identity}"',
        "Durable-Task-Id": str(run.task_id),
        "Durable-Attempt": str(run.attempt),
        "Durable-Max-Attempts": str(run.max_attempts),
        "Durable-Scheduled-For": _instant(run.scheduled_for),
    }
    if run.recurring_task_id is not None:
        ours["Durable-Schedule-Id"] = str(run.recurring_task_id)
    if "user-agent" not in {name.lower() for name in request.headers}:
        ours["User-Agent"] = f"django-durable-tasks/{__version__}"
    secrets = signing_secrets(run.tenant_id, request.url, request.endpoint)
    signed = signed_headers(secrets, identity, int(now.timestamp()), request.body)
    return {**ours, **signed, **request.headers}


def _instant(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")

"""The settings of the HTTP API, of HTTP callbacks and of messages to other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django_durable_tasks.conf_checks import (
    check_allowed,
    check_http,
    check_list_of_names,
    check_name_or_none,
    check_patterns,
    check_quotas,
)
from django_durable_tasks.conf_fields import count, duration, value


@dataclass(frozen=True, kw_only=True)
class InterfaceOptions:
    """Settings of the interfaces to other systems; ``conf.Settings`` contains them."""

    API: bool = value(
        False, "Answer requests to the HTTP API. Otherwise each of its addresses answers 404."
    )
    API_SESSIONS: bool = value(
        False,
        "Let staff users of Django use the HTTP API with the session of the admin, with the"
        " permissions of their user and a CSRF token for each write.",
    )
    API_TASKS: Sequence[str] | Mapping[str, Sequence[str]] = value(
        ("django_durable_tasks.http_callback", "django_durable_tasks.queue_message"),
        "The durable tasks that clients of the HTTP API may create; names or patterns such as"
        " 'billing.*', or a mapping of the slugs of tenants, '*' for all, to such lists.",
    )
    API_BODY_MAX_BYTES: int = count(
        1_048_576, "The largest body of a request to the HTTP API, checked before it is read."
    )
    API_QUEUES: Sequence[str] = value(
        (),
        "The queues that clients of the HTTP API may choose; names or patterns such as 'acme.*' or"
        " '{tenant}.*', in which {tenant} stands for the slug of the client's tenant. Empty: each"
        " task goes to its own queue.",
    )
    QUOTAS: Mapping[str, Any] | None = value(
        None,
        "Quotas of each tenant that has no other value of its own: {'open_tasks': 10_000,"
        " 'recurring_tasks': 100, 'runs_per_day': 1_440, 'calendars': 100, 'payload_bytes': 16_384,"
        " 'requests': '600/m'}. Without a value of their own 'recurring_tasks' are 1,000,"
        " 'runs_per_day' of each of them 1,440, 'calendars' 100, and 'requests' of the HTTP API"
        " 6000/m (None: no limit); the others are without limit. The quotas apply to what is"
        " created through the HTTP API and by schedules, and all but 'requests' not to the default"
        " tenant.",
    )
    HTTP_ALLOW: Sequence[str] | Mapping[str, Sequence[str]] = value(
        (),
        "Hosts, 'host:port' or networks that HTTP callbacks may reach although their addresses are"
        " not public: ['billing.internal:8080', '10.1.0.0/16']; of all tenants, unless it is a"
        " mapping of the slugs of tenants, '*' for all, to such lists:"
        " {'default': ['billing.internal:8080']}.",
    )
    HTTP_PORTS: Sequence[int] = value(
        (80, 443, 8080, 8443),
        "The ports that HTTP callbacks may use without an entry of HTTP_ALLOW.",
    )
    HTTP_TIMEOUT: float = duration(
        15, "The longest duration of an attempt of an HTTP callback without `timeout=`."
    )
    HTTP_SIGNING_KEYS: Sequence[str] = value(
        (),
        "Keys from which the signing secret of each endpoint is derived, the current one first. A"
        " request has a signature for each key. Without a key requests are not signed.",
    )
    HTTP_ENDPOINT_CONCURRENCY: int | None = count(
        None,
        "The most HTTP callbacks to one endpoint at the same time. None: no limit, except those of"
        " LIMITS and of operators. For a tenant other than the default one all hosts of a domain"
        " are one endpoint, whatever its callbacks pass as `endpoint`.",
    )
    HTTP_RETRY_QUEUE: str | None = value(
        None,
        "The queue of HTTP callbacks after their first failed attempt, so that retries do not delay"
        " first attempts. A worker must consume it. None: they stay in their queue.",
    )
    HTTP_BREAKER_FAILURES: int = count(
        5,
        "After this number of requests in a row without an answer, or with 429, 502, 503 or 504,"
        " callbacks to an endpoint wait. 0: never.",
    )
    HTTP_BREAKER_PAUSE: float = duration(
        30,
        "How long they wait before one request probes the endpoint; doubles up to 20 times this.",
    )
    QUEUE_ALLOW: Sequence[str] = value(
        (),
        "The queues and exchanges to which queue_message may publish: ['invoices',"
        " 'exchange:events', 'customer.{tenant}']. {tenant} stands for the slug of the task's"
        " tenant, so that no tenant reaches the queue of another one.",
    )


def check_interfaces(found: InterfaceOptions) -> None:
    """Check the settings of interfaces. Raises InvalidSetting."""
    check_allowed("API_TASKS", found.API_TASKS)
    check_patterns("API_QUEUES", found.API_QUEUES)
    check_quotas(found.QUOTAS)
    check_http(found.HTTP_ALLOW, found.HTTP_PORTS, found.HTTP_SIGNING_KEYS)
    check_list_of_names("QUEUE_ALLOW", found.QUEUE_ALLOW)
    check_name_or_none("HTTP_RETRY_QUEUE", found.HTTP_RETRY_QUEUE)

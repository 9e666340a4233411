"""The request rate of a tenant: in Redis if it is configured and answers, otherwise in the
database.

Headers as in the IETF draft draft-ietf-httpapi-ratelimit-headers.
"""

from __future__ import annotations

from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.api import problems
from django_durable_tasks.api.problems import Problem
from django_durable_tasks.due_index.redis import scope
from django_durable_tasks.due_index.redis_client import connection
from django_durable_tasks.engine.db.clock_estimate import estimated_now
from django_durable_tasks.engine.tenants import request_rates
from django_durable_tasks.engine.tenants.quotas import quotas
from django_durable_tasks.models import Tenant
from django_durable_tasks.rules.tenants.quotas import (
    REQUESTS,
    RateDecision,
    RequestRate,
    request_rate_of,
)

_NAME = '"requests"'
_SCRIPT = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local stored = redis.pcall('GET', KEYS[1])
if type(stored) == 'table' then redis.call('DEL', KEYS[1]); stored = false end
local free_at = tonumber(stored or '') or now
if not (free_at >= now and free_at <= now + window) then free_at = now end
if free_at + interval > now + window then return {0, free_at - now} end
free_at = free_at + interval
redis.call('SET', KEYS[1], string.format('%.0f', free_at), 'PX', math.ceil(window / 1000) + 1000)
return {1, free_at - now}
"""
"""The GCRA of rules/tenants/quotas.py by the clock of Redis. A value that is no time of this window
counts as free, and an entry of another type is deleted.
"""


def rate_in_database() -> RequestRate | None:
    """Return the rate of tenants without one of their own if the database counts requests."""
    return None if connection() is not None else request_rate_of(conf.quotas().get(REQUESTS))


def admit(tenant: Tenant) -> RateDecision | None:
    """Count a request of the tenant; None without a quota of requests. Raises Problem."""
    rate = quotas(tenant).requests
    if rate is None:
        return None
    decision = _in_redis(tenant.pk, rate)
    if decision is None:
        decision = request_rates.admit(tenant.pk, rate, estimated_now())
    if decision.admitted:
        return decision
    retry = max(decision.retry_after, 1)
    raise Problem(
        problems.TOO_MANY_REQUESTS,
        f"The tenant may send {rate.number:,} requests in {rate.seconds:,} s. Repeat the request"
        f" after {retry} s.",
        headers={**headers_of(decision), "Retry-After": str(retry)},
        more={"violated-policies": ["requests"]},
    )


def _in_redis(tenant_id: int, rate: RequestRate) -> RateDecision | None:
    """Return the decision of Redis; None if Redis is not configured or does not answer."""
    redis = connection()
    if redis is None:
        return None

    def ask(client: Any) -> Any:
        key = f"{scope()}:requests:{tenant_id}"
        return client.eval(_SCRIPT, 1, key, rate.interval, rate.window)

    found = redis.call(ask, None)
    return None if found is None else rate.decision(bool(found[0]), int(found[1]))


def headers_of(decision: RateDecision) -> dict[str, str]:
    """Return the headers ``RateLimit-Policy`` and ``RateLimit``; ``t`` is never later than
    ``Retry-After``.
    """
    rate = decision.rate
    wait = decision.retry_after or decision.reset
    return {
        "RateLimit-Policy": f"{_NAME};q={rate.number};w={rate.seconds}",
        "RateLimit": f"{_NAME};r={decision.left};t={wait}",
    }

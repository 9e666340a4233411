"""The request rate of a tenant, counted in the database.

Headers as in the IETF draft draft-ietf-httpapi-ratelimit-headers.
"""

from __future__ import annotations

from django_durable_tasks import conf
from django_durable_tasks.api import problems
from django_durable_tasks.api.problems import Problem
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


def default_rate() -> RequestRate | None:
    """Return the rate of tenants without one of their own."""
    return request_rate_of(conf.quotas().get(REQUESTS))


def admit(tenant: Tenant, requests: int = 1) -> RateDecision | None:
    """Count a request of the tenant, or one that costs as much as several; None without a quota of
    requests. Raises Problem.
    """
    rate = quotas(tenant).requests
    if rate is None:
        return None
    decision = request_rates.admit(tenant.pk, rate, estimated_now(), requests)
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

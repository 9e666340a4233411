"""The request rate of a tenant in the database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_durable_tasks.api import throttle
from django_durable_tasks.engine.tenants import request_rates
from django_durable_tasks.models import TenantRequests
from django_durable_tasks.rules.tenants.quotas import request_rate_of
from tests.database.api.rate_conformance import RateConformance, rated_client

pytestmark = pytest.mark.django_db(transaction=True)


class TestRateInTheDatabase(RateConformance):
    """The database counts without Redis."""


def test_the_database_counts_while_redis_does_not_answer(settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "REDIS_URL": "redis://127.0.0.1:1/0"}
    client = rated_client("1/h")
    assert [client.get("/tasks").status_code for _ in range(2)] == [200, 429]
    assert TenantRequests.objects.filter(tenant=client.tenant).exists()


def test_a_slower_rate_or_another_clock_leaves_no_endless_refusal() -> None:
    client = rated_client("1/s")
    rows = TenantRequests.objects.all().unguarded()
    rows.bulk_create([TenantRequests(tenant=client.tenant, free_at=2**60)])
    decision = throttle.admit(client.tenant)
    assert decision is not None
    assert decision.admitted


def test_a_request_that_is_counted_after_a_later_one_does_not_reset_the_rate() -> None:
    client, rate, now = rated_client("2/s"), request_rate_of("2/s"), timezone.now()
    assert rate is not None
    assert [request_rates.admit(client.tenant.pk, rate, now).admitted for _ in range(3)] == [
        True,
        True,
        False,
    ]
    earlier = now - timedelta(milliseconds=300)
    assert not request_rates.admit(client.tenant.pk, rate, earlier).admitted

"""The request rate of a tenant in the database."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks.api import throttle
from django_durable_tasks.models import TenantRequests
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

"""The request rate of a tenant in the database."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from django_durable_tasks.api import throttle
from django_durable_tasks.engine.tenants import request_rates
from django_durable_tasks.models import ApiKey, TenantRequests
from django_durable_tasks.rules.tenants.quotas import request_rate_of
from tests.database.api.client import a_client, a_tenant
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


@pytest.mark.postgresql
def test_a_key_that_is_not_valid_counts_no_request(settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": {"requests": "1/h"}}
    client = a_client(a_tenant("initech"))
    assert client.get("/tasks").status_code == 200
    rows = TenantRequests.objects.all().unguarded()
    rows.update(free_at=0)
    key = ApiKey.objects.get()
    for change in (
        {"digest": "0" * 64},
        {"expires_at": timezone.now() - timedelta(seconds=60)},
        {"revoked_at": timezone.now() - timedelta(seconds=60)},
    ):
        keys = ApiKey.objects.all().unguarded().filter(pk=key.pk)
        before = keys.values(*change).get()
        keys.update(**change)
        assert client.get("/tasks").status_code == 401
        assert rows.get().free_at == 0
        keys.update(**before)
    answer = client.get("/tasks")
    assert (answer.status_code, answer.headers["RateLimit"].partition(";")[0]) == (
        200,
        '"requests"',
    )
    assert client.get("/tasks").status_code == 429


def test_the_rate_of_a_tenant_replaces_that_of_the_setting(settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": {"requests": "1/h"}}
    client = rated_client("2/h")
    assert [client.get("/tasks").status_code for _ in range(3)] == [200, 200, 429]


def test_twenty_clients_together_never_exceed_the_rate_of_the_setting(settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": {"requests": "30/d"}}
    client = a_client(a_tenant("initech"))

    def send(_number: int) -> int:
        try:
            return int(client.get("/calendars").status_code)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(20) as pool:
        assert Counter(pool.map(send, range(60))) == {200: 30, 429: 30}

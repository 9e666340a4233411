"""The request rate of a tenant in the database."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from django_durable_tasks.contrib.api import authentication, quotas
from django_durable_tasks.contrib.api.models import ApiKey
from django_durable_tasks.contrib.api.quotas import request_rate_of
from django_durable_tasks.models import LimitBucket, Task
from tests.database.api.client import ApiClient, a_client, a_tenant, call

pytestmark = pytest.mark.django_db(transaction=True)


_numbers = count()


def rated_client(requests: str) -> ApiClient:
    """Return the client of a new tenant with this rate."""
    tenant = a_tenant(f"rated-{next(_numbers)}-{timezone.now():%H%M%S%f}")
    quotas.set_quotas(tenant, requests=requests)
    return a_client(tenant)


def test_a_request_above_the_rate_is_refused_with_the_time_to_wait() -> None:
    client = rated_client("3/h")
    admitted = [client.get("/tasks") for _ in range(3)]
    assert [answer.status_code for answer in admitted] == [200] * 3
    assert admitted[0].headers["RateLimit-Policy"] == '"requests";q=3;w=3600'
    assert admitted[0].headers["RateLimit"].startswith('"requests";r=2;t=')
    refused = client.get("/tasks")
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
    assert refused.headers["RateLimit"].startswith('"requests";r=0;t=')
    wait = int(refused.headers["Retry-After"])
    assert 1_000 < wait <= 1_200
    assert int(refused.headers["RateLimit"].rpartition("=")[2]) <= wait


def test_a_refused_request_writes_nothing() -> None:
    client = rated_client("1/h")
    assert client.post("/tasks", call()).status_code == 201
    assert client.post("/tasks", call()).status_code == 429
    assert Task.objects.for_tenant(client.tenant).count() == 1


def test_tenants_do_not_share_a_rate() -> None:
    flooding, other = rated_client("1/h"), rated_client("1/h")
    assert [flooding.get("/tasks").status_code for _ in range(3)] == [200, 429, 429]
    assert other.get("/tasks").status_code == 200


@pytest.mark.parametrize("of_setting", [False, True])
def test_twenty_clients_together_never_exceed_the_rate(of_setting: bool, settings: Any) -> None:
    if of_setting:
        settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": {"requests": "30/d"}}
    client = a_client(a_tenant("initech")) if of_setting else rated_client("30/d")

    def send(_number: int) -> int:
        try:
            return int(client.get("/calendars").status_code)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(20) as pool:
        counted = Counter(pool.map(send, range(100)))
    assert counted == {200: 30, 429: 70}


def test_a_slower_rate_or_another_clock_leaves_no_endless_refusal() -> None:
    client = rated_client("1/s")
    far = timezone.now() + timedelta(days=4_000)
    LimitBucket.objects.create(scope=f"requests:{client.tenant.pk}", refilled_at=far)
    decision = authentication.admit_request(client.tenant)
    assert decision is not None
    assert decision.admitted


def test_a_request_that_is_counted_after_a_later_one_does_not_reset_the_rate() -> None:
    client, rate, now = rated_client("2/s"), request_rate_of("2/s"), timezone.now()
    assert rate is not None
    assert [quotas.admit_requests(client.tenant.pk, rate, now).admitted for _ in range(3)] == [
        True,
        True,
        False,
    ]
    earlier = now - timedelta(milliseconds=300)
    assert not quotas.admit_requests(client.tenant.pk, rate, earlier).admitted


@pytest.mark.postgresql
def test_a_key_that_is_not_valid_counts_no_request(settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": {"requests": "1/h"}}
    client = a_client(a_tenant("initech"))
    assert client.get("/tasks").status_code == 200
    rows = quotas.request_buckets(client.tenant.pk)
    long_ago = timezone.now() - timedelta(days=1)
    rows.update(refilled_at=long_ago)
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
        assert rows.get().refilled_at == long_ago
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

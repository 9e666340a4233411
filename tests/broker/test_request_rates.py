"""The request rate of a tenant in Redis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_durable_tasks.due_index import redis_client
from django_durable_tasks.due_index.redis import scope
from django_durable_tasks.models import TenantRequests
from tests.broker.test_due_index import REDIS
from tests.database.api.client import SETTINGS
from tests.database.api.rate_conformance import RateConformance, rated_client


@pytest.fixture(autouse=True)
def api_with_redis(rows: None, settings: Any) -> Iterator[None]:
    """Open the API and count requests in Redis."""
    settings.DURABLE_TASKS = {**SETTINGS, "REDIS_URL": REDIS}
    redis_client.close_idle()
    yield
    redis = redis_client.connection()
    assert redis is not None
    for key in redis.client.scan_iter(f"{_escaped(scope())}:requests:*"):
        redis.client.delete(key)
    redis_client.close_idle()


def _escaped(text: str) -> str:
    return "".join(f"\\{one}" if one in "*?[]\\^" else one for one in text)


class TestRateInRedis(RateConformance):
    """Redis counts, and the database is not asked."""

    def test_the_database_is_not_asked(self) -> None:
        client = rated_client("1/h")
        assert [client.get("/tasks").status_code for _ in range(2)] == [200, 429]
        assert not TenantRequests.objects.filter(tenant=client.tenant).exists()


@pytest.mark.parametrize("garbage", ["list", "x\udcff", "inf", "nan", "-5", "9" * 30, ""])
def test_unreadable_entries_count_as_an_unused_rate(garbage: str) -> None:
    client = rated_client("2/h")
    redis = redis_client.connection()
    assert redis is not None
    key = f"{scope()}:requests:{client.tenant.pk}"
    if garbage == "list":
        redis.client.rpush(key, "x")
    else:
        redis.client.set(key, garbage)
    assert [client.get("/tasks").status_code for _ in range(3)] == [200, 200, 429]
    assert redis.open(), "the entry was not taken for an outage of Redis"

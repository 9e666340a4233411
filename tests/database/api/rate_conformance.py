"""What the request rate of a tenant must do, wherever it is counted."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from django.db import connections
from django.utils import timezone

from django_durable_tasks.engine.tenants import quotas
from django_durable_tasks.models import Task
from tests.database.api.client import ApiClient, a_client, a_tenant, call

_numbers = count()


def rated_client(requests: str) -> ApiClient:
    """Return the client of a new tenant with this rate."""
    tenant = a_tenant(f"rated-{next(_numbers)}-{timezone.now():%H%M%S%f}")
    quotas.set_quotas(tenant, {"requests": requests}, now=timezone.now())
    return a_client(tenant)


class RateConformance:
    """Tests for each store; a module with a store derives a class from it."""

    def test_a_request_above_the_rate_is_refused_with_the_time_to_wait(self) -> None:
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

    def test_a_refused_request_writes_nothing(self) -> None:
        client = rated_client("1/h")
        assert client.post("/tasks", call()).status_code == 201
        assert client.post("/tasks", call()).status_code == 429
        assert Task.objects.for_tenant(client.tenant).count() == 1

    def test_tenants_do_not_share_a_rate(self) -> None:
        flooding, other = rated_client("1/h"), rated_client("1/h")
        assert [flooding.get("/tasks").status_code for _ in range(3)] == [200, 429, 429]
        assert other.get("/tasks").status_code == 200

    def test_twenty_clients_together_never_exceed_the_rate(self) -> None:
        client = rated_client("30/d")

        def send(_number: int) -> int:
            try:
                return int(client.get("/calendars").status_code)
            finally:
                connections.close_all()

        with ThreadPoolExecutor(20) as pool:
            counted = Counter(pool.map(send, range(100)))
        assert counted == {200: 30, 429: 70}

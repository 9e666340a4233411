"""The breaker of an endpoint postpones tasks without an attempt, and probes with one request."""

from __future__ import annotations

import socket
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from celery.exceptions import Ignore

from django_durable_tasks import http_callback, process_state
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.contrib.callbacks import endpoints
from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt, Endpoint
from django_durable_tasks.exceptions import InvalidTarget
from django_durable_tasks.limits import operator_limits, release
from django_durable_tasks.limits.config import RecentLimits
from django_durable_tasks.models import Task, Tenant
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.scheduler.jobs import OPTIONAL_JOBS
from django_durable_tasks.store.clock import database_now
from tests.delivery import deliver
from tests.factories import a_task
from tests.http_servers import Listener, answer, answering, listening
from tests.messages import claim_due

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "django_durable_tasks.http_callback"
ONE, TWO = "https://one.example.com/", "https://two.example.com/"
GIVEN = {
    "HTTP_ALLOW": ["127.0.0.0/8"],
    "HTTP_PORTS": [80, 443, *range(32_768, 61_000)],
    "HTTP_BREAKER_FAILURES": 3,
}


@pytest.fixture(autouse=True)
def local(settings: Any) -> None:
    """Open the local servers of the tests."""
    settings.DURABLE_TASKS = GIVEN


@pytest.fixture
def server() -> Iterator[Listener]:
    """A server that answers 200."""
    with listening(answering(answer())) as server:
        yield server


@pytest.fixture
def closed() -> str:
    """The URL of a closed port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}/"


def _queued(url: str, **fields: Any) -> Task:
    key = fields.pop("limit_key", url.rstrip("/"))
    return a_task(Status.QUEUED, name=NAME, kwargs={"url": url}, limit_key=key, **fields)


def _fail(url: str, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(Exception, match="reached"):
            deliver(_queued(url))


def _open(url: str) -> None:
    for _ in range(3):
        endpoints.failed(url.rstrip("/"), 1, "no answer")


def _claim() -> list[str]:
    """Claim all that is due, and return the URLs."""
    rows = claim_due(Task.objects.all()[0].queue, database_now(), 100, uuid.uuid4())
    ids = [row.task_id for row in rows]
    return sorted(task.kwargs["url"] for task in Task.objects.filter(pk__in=ids))


def _is_held(task: Task) -> bool:
    with suppress(Ignore):
        deliver(task)
    task.refresh_from_db()
    return task.status == Status.PENDING and task.attempts == 0


def _pass_time(url: str) -> None:
    row = Endpoint.objects.get(key=url.rstrip("/"))
    Endpoint.objects.unguarded().filter(pk=row.pk).update(
        open_until=database_now() - timedelta(seconds=1)
    )


def test_a_task_of_an_open_endpoint_waits_without_an_attempt_or_a_failure(closed: str) -> None:
    _fail(closed, 3)
    row = Endpoint.objects.get()
    assert (row.key, row.failures, row.openings) == (closed.rstrip("/"), 3, 1)
    task = _queued(closed)
    assert _is_held(task)
    assert (task.attempts, task.failures, task.crashes) == (0, 0, 0)
    assert task.due_at is not None
    assert timedelta(seconds=25) < task.due_at - database_now() < timedelta(seconds=40)
    assert DeliveryAttempt.objects.count() == 3, "nothing was sent"
    assert not task.executions.exists()


def test_fewer_failures_and_a_success_between_them_leave_the_endpoint_closed(
    server: Listener,
) -> None:
    url = server.url()
    for _ in range(3):
        endpoints.failed(url.rstrip("/"), 1, "no answer")
        endpoints.failed(url.rstrip("/"), 1, "no answer")
        deliver(_queued(url))
    row = Endpoint.objects.get()
    assert (row.failures, row.openings, row.open_until) == (0, 0, None)
    assert len(server.requests) == 3


def test_after_the_pause_one_task_probes_and_a_success_closes_the_breaker(
    server: Listener,
) -> None:
    url = server.url()
    _open(url)
    assert _is_held(_queued(url))
    _pass_time(url)
    probe, other = _queued(url), _queued(url)
    assert not endpoints.postpone(probe.pk, probe.epoch), "it is the probe"
    assert _is_held(other)
    assert other.due_at is not None
    assert other.due_at - database_now() < timedelta(seconds=6)
    Endpoint.objects.unguarded().update(probe_until=None)
    deliver(probe)
    deliver(_queued(url))
    assert Endpoint.objects.get().open_until is None
    assert len(server.requests) == 2


def test_a_failed_probe_doubles_the_pause(closed: str) -> None:
    _fail(closed, 3)
    _pass_time(closed)
    _fail(closed)
    row = Endpoint.objects.get()
    assert row.openings == 2
    assert row.open_until is not None
    assert timedelta(seconds=50) < row.open_until - database_now() < timedelta(seconds=61)


@pytest.mark.parametrize(
    ("status", "opens"), [("503 Service Unavailable", True), ("500 Internal Server Error", False)]
)
def test_an_overloaded_answer_opens_the_breaker_and_another_error_does_not(
    status: str, opens: bool
) -> None:
    with listening(answering(answer(status))) as server:
        url = server.url()
        for _ in range(3):
            with pytest.raises(Exception, match="answered 50"):
                deliver(_queued(url))
        assert Endpoint.objects.filter(open_until__isnull=False).exists() is opens
        assert not opens or _is_held(_queued(url))


def test_a_tenant_cannot_divide_an_endpoint_and_the_project_can(
    closed: str, server: Listener
) -> None:
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    _fail(closed, 3)
    deliver(_queued(server.url()))
    keys = {
        http_callback.using(tenant=owner)
        .schedule(url="https://example.com/", endpoint=name)
        .limit_key
        for owner in (None, tenant)
        for name in (None, "orders")
    }
    assert keys == {
        "https://example.com",
        "https://example.com orders",
        f"{tenant.pk}:https://example.com",
    }
    assert Endpoint.objects.count() == 1


@pytest.mark.parametrize(
    ("given", "of_one", "of_two"),
    [
        ({"HTTP_ENDPOINT_CONCURRENCY": 2}, 2, 2),
        ({"LIMITS": {f"key:{ONE.rstrip('/')}": {"max_concurrency": 1}}}, 1, 4),
    ],
    ids=["of each endpoint", "of one endpoint"],
)
def test_the_limit_of_an_endpoint_holds_for_its_tasks(
    settings: Any, given: dict[str, Any], of_one: int, of_two: int
) -> None:
    settings.DURABLE_TASKS = given
    for url in (ONE, TWO) * 4:
        http_callback.schedule(url=url)
    if "LIMITS" not in given:
        assert not Task.objects.queued().exists(), "a limited task is not published at once"
    _claim()
    keys = Counter(Task.objects.queued().values_list("limit_key", flat=True))
    assert keys == {ONE.rstrip("/"): of_one, TWO.rstrip("/"): of_two}


def _claimed() -> list[str]:
    """Claim what is due, as a scheduler that has just read the limits, and return the URLs."""
    process_state.of(RecentLimits).expire()
    release.release_waiting(database_now(), 100)
    return _claim()


def test_tasks_of_an_open_endpoint_are_not_claimed_and_one_is_after_the_pause() -> None:
    _open(ONE)
    for url in (ONE, TWO) * 3:
        http_callback.schedule(url=url)
    Task.objects.all().unguarded().update(status="PENDING", due_at=DatabaseNow())
    assert _claimed() == [TWO] * 3
    assert _claimed() == []
    parked = Task.objects.pending()
    assert {(row.kwargs["url"], row.due_at) for row in parked} == {(ONE, NEVER)}
    assert "circuit breaker is open" in operator_limits.why(parked[0])

    _pass_time(ONE)
    assert _claimed() == [ONE], "it is the probe"
    assert _claimed() == []

    endpoints.succeeded(ONE.rstrip("/"))
    assert _claimed() == [ONE] * 2


def test_a_replay_with_another_url_is_checked_and_belongs_to_the_other_endpoint() -> None:
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    task = a_task(
        Status.FAILED, name=NAME, kwargs={"url": "https://one.example.com/"}, tenant=tenant
    )
    rows = Task.objects.filter(pk=task.pk)
    with pytest.raises(InvalidTarget, match="not a public address"):
        rows.replay(by="ann", kwargs={"url": "http://10.0.0.1/"})
    rows.replay(by="ann", kwargs={"url": "https://two.example/", "body": {"b": 1, "a": 2}})
    task.refresh_from_db()
    assert (task.status, task.kwargs["body"]) == ("PENDING", '{"b":1,"a":2}')
    assert task.limit_key == f"{tenant.pk}:https://two.example"


def test_scheduling_again_under_a_key_changes_the_endpoint() -> None:
    later = database_now() + timedelta(hours=1)
    for url in (ONE, TWO):
        task = http_callback.using(key="hook-7", run_at=later).schedule(url=url)
    assert Task.objects.count() == 1
    assert task.limit_key == TWO.rstrip("/")


def test_a_long_origin_has_a_key_of_its_own() -> None:
    host = ".".join(["a" * 60] * 4)
    one = http_callback.schedule(url=f"https://{host}/").limit_key
    two = http_callback.schedule(url=f"https://{host[:-1]}b/").limit_key
    assert one is not None
    assert two is not None
    assert one != two
    assert max(len(one), len(two)) <= 200


def test_endpoints_that_did_not_change_for_a_month_are_deleted(closed: str) -> None:
    _fail(closed)
    [prune] = [
        job.run for job in (make() for make in OPTIONAL_JOBS.values()) if job.run == endpoints.prune
    ]
    prune(database_now() + timedelta(days=29), HeartbeatMonitor())
    assert Endpoint.objects.count() == 1
    prune(database_now() + timedelta(days=31), HeartbeatMonitor())
    assert Endpoint.objects.count() == 0

"""A worker takes due tasks: it claims and starts them together, under the rules of any claim."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.celery import gate
from django_durable_tasks.celery.prepared_messages import RUN_HEADER, TakenRun, celery_id_of, parse
from django_durable_tasks.choices import Status
from django_durable_tasks.limits import config
from django_durable_tasks.models import Limit, Tenant
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.process_state import of
from django_durable_tasks.states.demand import QueueDemand
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks import claim
from tests.database.limits.test_names_without_worker import a_worker
from tests.factories import QUEUE, a_paused_queue, a_task, many_tasks
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db(transaction=True)

NAME, LIMITED = "tests.project.tasks.noop", "tests.project.tasks.urgent"
LEASES = {NAME: 60.0, LIMITED: 5.0}


@pytest.fixture(params=["no limits", "a limit of a name", "a limit of the queue", "two tenants"])
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Provide the limits with which a take chooses its statements. None binds NAME."""
    monkeypatch.setattr(config, "coded", dict)
    if request.param == "a limit of a name":
        Limit.objects.create(scope=f"task:{LIMITED}", max_concurrency=1)
    elif request.param == "a limit of the queue":
        Limit.objects.create(scope=f"queue:{QUEUE}", max_concurrency=50)
    elif request.param == "two tenants":
        Tenant.objects.create(slug="other", name="Other")
    of(config.RecentLimits).expire()
    return str(request.param)


def _take(number: int = 10, node: uuid.UUID | None = None) -> list[tuple[TaskMessage, Run | None]]:
    taken, now = list[tuple[TaskMessage, Run | None]](), database_now()
    for part in claim.parted([QueueDemand(QUEUE, number)]):
        taken += claim.take(part, now, number, node or uuid.uuid4(), LEASES)
    return taken


def test_due_tasks_run_in_order_with_tokens_of_their_own(limits: str) -> None:
    rows = [
        a_task(name=NAME, due=due, priority=priority) for priority in (0, 9) for due in (-1, -9)
    ]
    a_task(name=NAME, due=60)
    expected = [row.pk for row in sorted(rows, key=lambda row: (-row.priority, row.due_at))]
    node = uuid.uuid4()
    first, second = _take(3, node), _take(3, node)
    assert [message.task_id for message, _ in first + second] == expected
    for row, (message, run) in zip(
        sorted(rows, key=lambda row: expected.index(row.pk)), first + second, strict=True
    ):
        row.refresh_from_db()
        assert run is not None
        assert (row.status, row.attempts, row.node) == (Status.RUNNING, 1, node)
        assert (run.epoch, run.run_id, message.epoch) == (row.epoch, row.run_id, row.epoch - 1)
        assert message.number == row.publish_count  # the id by which Celery revokes it
        assert row.lease_until is not None
        assert row.due_at is None


def test_what_needs_another_check_is_not_started(limits: str) -> None:
    """A task of a name that this worker does not start, an expired one, one with a used key."""
    a_worker((QUEUE,), {NAME, LIMITED, "tests.project.tasks.add"})
    other = a_task(name="tests.project.tasks.add", due=-5)
    unknown = a_task(name="no.worker.has.it", due=-5)
    expired = a_task(name=NAME, due=-5, expires_at=database_now())
    running = a_task(name=NAME, status=Status.RUNNING, overlap_key="recurring:x")
    second = a_task(name=NAME, due=-4, overlap_key="recurring:x")
    free = a_task(name=NAME, due=-3)
    taken = {message.task_id: run for message, run in _take()}
    assert set(taken) == {other.pk, free.pk}
    assert taken[other.pk] is None
    assert taken[free.pk] is not None
    for row, status in (
        (other, Status.QUEUED),
        (unknown, Status.PENDING),
        (expired, Status.EXPIRED),
        (running, Status.RUNNING),
        (second, Status.PENDING),
    ):
        row.refresh_from_db()
        assert row.status == status


def test_a_paused_queue_gives_nothing(limits: str) -> None:
    a_paused_queue(QUEUE)
    row = a_task(name=NAME, due=-1)
    assert _take() == []
    row.refresh_from_db()
    assert (row.status, row.epoch) == (Status.PENDING, 0)


def test_a_limit_of_a_name_leaves_places_to_the_others(limits: str) -> None:
    if limits != "a limit of a name":
        Limit.objects.create(scope=f"task:{LIMITED}", max_concurrency=1)
        of(config.RecentLimits).expire()
    bound = [a_task(name=LIMITED, due=-9) for _ in range(3)]
    free = [a_task(name=NAME, due=-1) for _ in range(2)]
    runs = [run for _ in range(3) for _, run in _take() if run is not None]
    assert {run.task_id for run in runs} >= {row.pk for row in free}
    assert len({run.task_id for run in runs} & {row.pk for row in bound}) == 1
    for row in bound:
        row.refresh_from_db()
    assert sorted(row.status for row in bound) == [Status.PENDING, Status.PENDING, Status.RUNNING]


@pytest.mark.postgresql
def test_without_limits_a_take_is_one_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "coded", dict)
    of(config.RecentLimits).expire()
    many_tasks(20, name=NAME)
    now, demands = database_now(), [QueueDemand(QUEUE, 10)]
    config.limits_in_force()
    for number in (1, 10):
        with CaptureQueriesContext(connection) as queries:
            taken: Any = claim.take(demands, now, number, uuid.uuid4(), LEASES)
        assert (len(taken), len(queries)) == (number, 1)


def test_a_run_begins_when_its_process_receives_it() -> None:
    """The time between the take and the start of the function is not part of its duration."""
    task: Any = noop
    a_task(name=NAME, due=-1)
    ((message, run),) = _take()
    assert run is not None
    taken, envelope = TakenRun(run, time.monotonic() - 0.7), parse(celery_id_of(message))
    assert envelope is not None
    task.push_request(**{RUN_HEADER: taken, "id": celery_id_of(message)})
    try:
        live = gate.open_run(task, envelope)
    finally:
        task.pop_request()
    assert timedelta(seconds=0.7) <= live.run.started_at - run.started_at < timedelta(seconds=30)

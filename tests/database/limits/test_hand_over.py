"""The process of an ended run hands its capacity to the next task that waits for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from celery.exceptions import Retry
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.celery import publisher
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import queues
from django_durable_tasks.limits import release
from django_durable_tasks.models import Task
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.states import claims, endings
from django_durable_tasks.store import connections as dedicated
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import Run, RunLocation
from django_durable_tasks.tasks import attempts
from tests.database.limits.limited_tasks import NODE, claim, ids, limit, release_waiting
from tests.delivery import deliver
from tests.factories import NOOP, QUEUE, a_task, a_tenant, many_tasks
from tests.process_state import new_process_state
from tests.project import tasks

pytestmark = pytest.mark.django_db(transaction=True)
SCOPES: dict[str, dict[str, Any]] = {
    f"task:{NOOP}": {},
    "tenant:1": {},
    "key:acme": {"limit_key": "acme"},
}


def _run(row: Task) -> None:
    """Deliver the message of a task, as a worker does."""
    row.refresh_from_db()
    with suppress(Retry, tasks.Broken):
        deliver(row)


def _queued() -> list[Any]:
    return list(Task.objects.queued().order_by("pk").values_list("pk", flat=True))


def _one_runs_and_others_wait(number: int = 3, **fields: Any) -> list[Task]:
    """Return tasks of which the first one is QUEUED and the others wait for a limit of one."""
    rows = [a_task(due=-9 + n, **fields) for n in range(number)]
    assert claim() == [rows[0].pk]
    assert Task.objects.waiting_for_limit().count() == number - 1
    return rows


@pytest.mark.parametrize("scope", SCOPES)
def test_the_end_of_a_run_publishes_the_next_waiting_task(scope: str) -> None:
    limit(scope, 1)
    rows = _one_runs_and_others_wait(**SCOPES[scope])
    _run(rows[0])
    assert _queued() == [rows[1].pk]
    rows[1].refresh_from_db()
    assert (rows[1].publish_count, rows[1].waiting_for_limit) == (1, None)
    assert rows[1].ready_at is not None
    assert rows[1].ready_at <= database_now()
    _run(rows[1])
    assert _queued() == [rows[2].pk]


@pytest.mark.parametrize("name", [tasks.failing.name, tasks.failing_once.name, tasks.retrying.name])
def test_a_failed_or_retried_run_hands_its_capacity_over(name: str) -> None:
    limit(f"task:{name}", 1)
    rows = _one_runs_and_others_wait(2, name=name)
    _run(rows[0])
    assert _queued() == [rows[1].pk]


def test_the_most_urgent_task_is_next_and_a_released_one_keeps_its_place() -> None:
    limit(f"task:{NOOP}", 1)
    rows = _one_runs_and_others_wait(4)
    Task.objects.unguarded().filter(pk=rows[3].pk).update(priority=5)
    _run(rows[0])
    assert _queued() == [rows[3].pk]
    claims.release_waiting(Task.objects.filter(pk=rows[1].pk), 1)
    _run(rows[3])
    assert _queued() == [rows[1].pk]


def test_a_task_that_runs_in_batches_is_published_alone() -> None:
    limit(f"task:{NOOP}", 1)
    rows = _one_runs_and_others_wait(2)
    Task.objects.unguarded().filter(pk=rows[1].pk).update(in_batch=True)
    _run(rows[0])
    assert _queued() == [rows[1].pk]
    _run(rows[1])
    rows[1].refresh_from_db()
    assert rows[1].status == Status.SUCCESS


def test_a_paused_queue_keeps_its_waiting_tasks() -> None:
    limit(f"task:{NOOP}", 1)
    rows = _one_runs_and_others_wait()
    paused = a_task(due=-9, queue="paused", waiting_for_limit=f"task:{NOOP}")
    claims.make_due_wait({paused.pk: f"task:{NOOP}"}, database_now())
    Task.objects.unguarded().filter(pk=paused.pk).update(priority=9)
    queues.pause("paused", by="ann", reason="")
    _run(rows[0])
    assert _queued() == [rows[1].pk]


def test_light_tasks_do_not_overtake_a_heavy_one() -> None:
    limit(f"task:{NOOP}", 3)
    light = many_tasks(3)
    assert len(claim()) == 3
    heavy, other = a_task(weight=2), a_task()
    assert claim() == []
    _run(light[0])
    assert set(_queued()) == {light[1].pk, light[2].pk}
    _run(light[1])
    assert set(_queued()) == {light[2].pk, heavy.pk}
    _run(light[2])
    assert set(_queued()) == {heavy.pk, other.pk}


def test_another_limit_of_the_next_task_is_obeyed() -> None:
    tenant = a_tenant()
    limit(f"task:{NOOP}", 1)
    limit(f"tenant:{tenant.pk}", 0)
    rows = _one_runs_and_others_wait()
    Task.objects.unguarded().filter(pk=rows[1].pk).update(tenant=tenant)
    _run(rows[0])
    assert _queued() == [rows[2].pk]
    rows[1].refresh_from_db()
    assert rows[1].waiting_for_limit == f"tenant:{tenant.pk}"


def test_the_rate_of_another_scope_is_obeyed() -> None:
    limit(f"task:{NOOP}", 1)
    limit("tenant:1", rate="1/d", burst=2)
    rows = _one_runs_and_others_wait(4)
    _run(rows[0])
    assert _queued() == [rows[1].pk]
    _run(rows[1])
    assert _queued() == []


def test_an_expired_task_is_not_handed_capacity() -> None:
    limit(f"task:{NOOP}", 1)
    rows = _one_runs_and_others_wait()
    Task.objects.unguarded().filter(pk=rows[1].pk).update(
        expires_at=database_now() - timedelta(seconds=1)
    )
    _run(rows[0])
    assert _queued() == [rows[2].pk]
    rows[1].refresh_from_db()
    assert rows[1].status == Status.EXPIRED


def test_capacity_that_another_process_did_not_hand_over_is_used() -> None:
    limit(f"task:{NOOP}", 4)
    rows = many_tasks(9)
    assert len(claim()) == 4
    endings.cancel(Task.objects.filter(pk__in=ids(rows[:2])), "DONE")
    _run(rows[2])
    assert _queued() == ids(rows[3:7])


@pytest.mark.parametrize("scope", [f"queue:{QUEUE}", "global"])
def test_due_tasks_of_a_limited_queue_are_left_to_the_scheduler(scope: str) -> None:
    limit(scope, 1)
    limit(f"task:{NOOP}", 1)
    rows = many_tasks(2)
    assert claim() == [rows[0].pk]
    claims.make_due_wait({rows[1].pk: f"task:{NOOP}"}, database_now())
    _run(rows[0])
    assert _queued() == []
    assert release_waiting() == 1


def test_nothing_is_handed_over_while_the_broker_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(f"task:{NOOP}", 1)
    rows = _one_runs_and_others_wait()
    monkeypatch.setattr(publisher.breaker, "closed", lambda: False)
    _run(rows[0])
    assert _queued() == []
    assert Task.objects.waiting_for_limit().count() == 2


def test_an_error_while_handing_over_does_not_change_the_ending(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("no plan")

    limit(f"task:{NOOP}", 1)
    rows = _one_runs_and_others_wait()
    monkeypatch.setattr(release, "select_next", broken)
    _run(rows[0])
    rows[0].refresh_from_db()
    assert rows[0].status == Status.SUCCESS
    assert "was not handed over; a scheduler releases it" in caplog.text
    assert release_waiting() == 1


def _statements(act: Callable[[], Any]) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        act()
    return [query["sql"] for query in queries.captured_queries]


def test_an_unlimited_run_costs_no_statement_and_a_limited_one_without_waiting_tasks_one() -> None:
    run = _started(a_task())
    new_process_state()
    attempts.claim_next([run], run.node)
    assert _statements(lambda: attempts.claim_next([run], run.node)) == []
    limit(f"task:{NOOP}", 1)
    attempts.claim_next([run], run.node)
    assert len(_statements(lambda: attempts.claim_next([run], run.node))) == 1


def _started(row: Task) -> Run:
    """Claim and start a task; return its run."""
    (claimed,) = claims.claim_these([row.pk], NODE, 15.0)
    place = RunLocation(node=NODE, worker="worker@host", lease=60.0)
    run = attempts.open_run(row.pk, claimed.epoch, place, "", None)
    assert isinstance(run, Run)
    return run


def test_while_tasks_wait_for_runs_to_end_the_scheduler_looks_once_per_poll() -> None:
    limit(f"task:{NOOP}", 1)
    rows = _one_runs_and_others_wait()
    scheduler = Scheduler("looks")
    scheduler.dispatching.poll_soon()
    assert scheduler.releasing.round() == 1.0
    limit(f"task:{NOOP}", 2)
    assert scheduler.releasing.round() < 0.1
    assert Task.objects.waiting_for_limit().count() == len(rows) - 2


@pytest.mark.parametrize("reason", ["rate", "share", "paused", "global"])
def test_while_tasks_wait_for_something_else_the_scheduler_looks_often(reason: str) -> None:
    scope, row = f"task:{NOOP}", a_task(due=-9)
    if reason == "share":
        a_tenant()
        scope = f"share:{QUEUE}:1"
        many_tasks(1_000, Status.QUEUED)
    elif reason == "rate":
        limit(scope, rate="1/d")
        claim()
        row = a_task(due=-9)
    elif reason == "paused":
        limit(scope, 1)
        queues.pause(QUEUE, by="ann", reason="")
    else:
        limit("global", 100)
        limit(scope, 0)
    claims.make_due_wait({row.pk: scope}, database_now())
    scheduler = Scheduler("looks")
    scheduler.dispatching.poll_soon()
    assert scheduler.releasing.round() == pytest.approx(0.1)
    dedicated.close_all()

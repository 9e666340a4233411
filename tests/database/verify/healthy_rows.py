"""Rows of every kind and status as the engine leaves them, with a leader: ``durable verify`` finds
nothing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.beat.models import ShadowFire
from django_durable_tasks.models import (
    NodeKind,
    RecurringTask,
    SchedulerLease,
    Task,
    TaskDependency,
)
from django_durable_tasks.models import WorkflowRun as Run
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import operator_actions
from django_durable_tasks.workflows import Workflow
from tests.database.dependencies.worker_and_leader import (
    begin,
    fail,
    of,
    question,
    resolve_all,
    succeed,
)
from tests.database.recurring.schedules import a_schedule, fire
from tests.factories import a_dead_letter, a_log_row, a_node, a_paused_queue, a_task, a_tenant
from tests.project.tasks import noop

LONG = 7_200.0
"""For how long the leader of these tests has led, in seconds."""


def ago(seconds: float) -> datetime:
    """Return the instant `seconds` before the database's now."""
    return database_now() - timedelta(seconds=seconds)


def led(*, since: float = LONG) -> None:
    """Make a scheduler the leader, without interruption since `since` seconds."""
    holder = a_node(NodeKind.SCHEDULER).pk
    SchedulerLease.objects.update(
        holder=holder, term=3, acquired_at=ago(since), expires_at=ago(-30)
    )


def a_waiting_task(*upstreams: Task) -> Task:
    """Create a BLOCKED task that depends on these, or on a pending one."""
    above = upstreams or (a_task(due=3_600),)
    row = a_task(Status.BLOCKED, unresolved_dependencies_count=len(above))
    for one in above:
        Task.objects.unguarded().filter(pk=one.pk).update(has_dependents=True)
        TaskDependency.objects.unguarded().create(task=row, depends_on=one)
    return row


def a_workflow(name: str = "nightly") -> Run:
    """Start a workflow of two steps, one after the other."""
    flow = Workflow(name)
    flow.add(noop, after=flow.add(noop, step="first"), step="second")
    return flow.start()


def an_ended_workflow(name: str = "nightly") -> Run:
    """Run such a workflow to its end."""
    run = a_workflow(name)
    for step in ("first", "second"):
        succeed(of(run, step))
        resolve_all()
    run.refresh_from_db()
    return run


def a_fired_schedule(name: str = "nightly") -> RecurringTask:
    """Declare a schedule that fires every hour and has just fired for the first time."""
    row = a_schedule(name, interval=3_600, start_time=ago(5), overlap="ALLOW")
    assert fire(database_now()) == 1
    row.refresh_from_db()
    return row


def write_healthy_rows() -> None:
    """Create rows of every kind and status."""
    led()
    tenant = a_tenant()
    for status in set(Status) - {Status.BLOCKED}:
        a_task(status)
        a_task(status, key=f"key-{status}", unique_key=f"unique-{status}", tenant=tenant)
    a_task(Status.QUEUED, queue="paused", due=-5)
    a_paused_queue("paused")
    a_task(due=-600, queue="paused")
    a_log_row(a_task(Status.RUNNING, attempts=2), attempt_number=1)
    discarded = a_task(Status.FAILED)
    discarded.dead_letters.all().unguarded().delete()
    a_dead_letter(discarded, open=False)
    a_node(seen=1)
    a_node(seen=400, stopped=300)
    ShadowFire.objects.create(name="beat", task="t", recorded_at=ago(60))
    _write_graphs()
    _write_schedules()


def _write_graphs() -> None:
    a_waiting_task()
    an_ended_workflow("done")
    failed, under_way, cancelled, noted, running = (
        a_workflow(f"flow-{number}") for number in range(5)
    )
    fail(of(failed, "first"))
    succeed(of(under_way, "first"))
    operator_actions.cancel(question(of(cancelled, "first")))
    resolve_all()
    succeed(of(noted, "first"))
    begin(of(running, "first"))


def _write_schedules() -> None:
    a_fired_schedule("active")
    a_fired_schedule("triggered").trigger_now(by="bob")
    a_fired_schedule("paused").pause("a test")
    a_fired_schedule("snoozed").snooze(ago(-60))
    a_fired_schedule("cancelled").cancel("a test")

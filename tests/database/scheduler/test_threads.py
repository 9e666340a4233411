"""The dispatching thread waits neither for jobs nor for firing. A watchdog monitors each thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
from django.db import connection, connections

from django_durable_tasks.celery import broker_outage
from django_durable_tasks.choices import Status
from django_durable_tasks.limits import release
from django_durable_tasks.models import Task
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.scheduler.jobs import JobSchedule
from django_durable_tasks.scheduler.leader import Leader
from django_durable_tasks.scheduler.loop import Scheduler
from tests.factories import a_task, many_tasks
from tests.process_state import new_process_state
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
_WAITING = """
SELECT pid, query_start FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock' ORDER BY pid
"""


@contextmanager
def _running() -> Iterator[Scheduler]:
    new_process_state()
    broker_outage.breaker.succeeded()
    scheduler = Scheduler("one")
    thread = threading.Thread(target=scheduler.run)
    thread.start()
    try:
        until(scheduler.leader.leading, within=30)
        yield scheduler
    finally:
        scheduler.stop()
        thread.join(60)
    assert not thread.is_alive()


@contextmanager
def _locked(table: str) -> Iterator[None]:
    other = connections.create_connection("default")
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield
        other.rollback()
    finally:
        other.close()


def _waiting() -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(_WAITING)
        return list(cursor.fetchall())


@pytest.mark.postgresql
@pytest.mark.parametrize(
    "table",
    ["durable_tasks_dead_letter", "durable_tasks_recurring_task", "durable_tasks_ending_event"],
)
def test_tasks_are_dispatched_while_a_job_or_the_firing_waits_for_a_lock(table: str) -> None:
    """A waiting thread gives up after 5 s, so the wait that began before the task must be the one
    after it.
    """

    def dispatched_meanwhile() -> bool:
        before = until(_waiting, within=30, message="a thread waits for the table")
        row = a_task()
        until(
            lambda: Task.objects.queued().filter(pk=row.pk).exists(),
            within=30,
            message="dispatched",
        )
        return bool(set(before) & set(_waiting()))

    with _running(), _locked(table):
        assert any(dispatched_meanwhile() for _ in range(5))


def test_tasks_are_dispatched_while_a_release_of_limits_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, over = threading.Event(), threading.Event()
    original = release.release_waiting

    def slow(now: datetime, limit: int) -> int:
        begun.set()
        over.wait(60)
        return original(now, limit)

    with _running():
        monkeypatch.setattr(release, "release_waiting", slow)
        waiting = a_task(due_at=NEVER, waiting_for_limit="tenant:1")
        assert begun.wait(30)
        try:
            row = a_task()
            until(lambda: Task.objects.queued().filter(pk=row.pk).exists(), within=30)
        finally:
            over.set()
        until(lambda: Task.objects.queued().filter(pk=waiting.pk).exists(), within=30)


def test_a_scheduler_runs_its_jobs_and_dispatches_until_it_is_stopped(settings: Any) -> None:
    settings.DURABLE_TASKS = {"RETENTION": {"CANCELLED": 0.001}, "POLL": 0.2}
    many_tasks(30, Status.CANCELLED)
    with _running() as scheduler:
        row = a_task(due=0.5)
        unanswered = a_task(Status.QUEUED, due=-1, publish_count=1)
        until(lambda: Task.objects.queued().filter(pk=row.pk).exists(), within=30)
        until(lambda: Task.objects.get(pk=unanswered.pk).publish_count == 2, within=30)
        until(lambda: not Task.objects.filter(status=Status.CANCELLED).exists(), within=30)
        assert scheduler.steps.failing() == []
    assert not scheduler.maintenance.is_alive()
    assert not scheduler.triggering.is_alive()
    assert not scheduler.releasing.is_alive()


def test_a_step_of_any_thread_that_takes_too_long_ends_leadership() -> None:
    leader = Scheduler("one").leader
    leader.step()
    begun, over = threading.Event(), threading.Event()

    def stuck() -> None:
        leader.watch(0.0)
        begun.set()
        over.wait(60)
        leader.watch(None)

    thread = threading.Thread(target=stuck)
    thread.start()
    assert begun.wait(30)
    leader.watch(30.0)
    leader.watch(None)
    until(lambda: _resigned(leader), within=30)
    leader.step()
    assert not leader.leading(), "while the step is stuck it does not lead again"
    over.set()
    thread.join(30)
    leader.step()
    assert leader.leading()
    leader.resign()


def _resigned(leader: Leader) -> bool:
    leader.step()
    return leader.term is None


def test_a_job_that_changed_something_runs_again_soon_and_another_after_its_interval() -> None:
    schedule = JobSchedule()
    due = {job.name: job for job in schedule.take_due()}
    assert schedule.take_due() == []
    schedule.finished(due["prune"], 0, 0.2)
    schedule.finished(due["age_priorities"], 3, 0.0)
    assert [job.name for job in schedule.take_due()] == ["age_priorities"]
    schedule.finished(due["prune"], 500, 0.001)
    until(lambda: "prune" in {job.name for job in schedule.take_due()}, within=30)
    schedule.endings_recorded()
    assert {"resolve_dependents", "count_endings"} <= {job.name for job in schedule.take_due()}
    assert schedule.next_in() <= 0.2

"""A lease has expired when the monitor itself saw it unrenewed for its whole duration, whatever any
clock says.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import nodes
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.models import Node, Task
from django_durable_tasks.scheduler import reap_dead_nodes
from django_durable_tasks.scheduler.reap_dead_nodes import leases
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import attempts
from tests.concurrency.racing import no_errors, race
from tests.factories import a_node, a_task

pytestmark = pytest.mark.django_db(transaction=True)
EVERY = 5.0
LEASE = 12
"""Checks that span LEASE (60 s), one every NODE_HEARTBEAT (5 s)."""
SILENCE = 4
"""Checks that span NODE_TIMEOUT (20 s)."""
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _node_timeout(settings: Any) -> None:
    settings.DURABLE_TASKS = {"NODE_TIMEOUT": 20}  # on SQLite the default is 60 s


class Watcher:
    """A scheduler's heartbeat monitor and jobs, with a monotonic clock that advances by five
    seconds per check.
    """

    def __init__(self) -> None:
        self.monitor, self.at = HeartbeatMonitor(), 0.0

    def look(self, looks: int = 1) -> Watcher:
        for _ in range(looks):
            self.at += EVERY
            self.monitor.record(nodes.beats(), self.at, 3 * EVERY, leases())
        return self

    def sweep(self, ahead: timedelta = timedelta(0)) -> int:
        now = database_now() + ahead
        jobs = (
            reap_dead_nodes.reap_dead_nodes,
            reap_dead_nodes.mark_orphaned_runs,
            reap_dead_nodes.mark_lost_runs,
        )
        return sum(job(now, self.monitor) for job in jobs)


def _renew(row: Task, at: timedelta = timedelta(0)) -> None:
    """Renew the lease as a heartbeat whose database clock is wrong by ``at``."""
    until = database_now() + timedelta(seconds=60) + at
    assert (
        Task.objects.unguarded().filter(pk=row.pk, status=Status.RUNNING).update(lease_until=until)
    )


def _status(row: Task) -> str:
    return str(Task.objects.values_list("status", flat=True).get(pk=row.pk))


@pytest.mark.parametrize(
    ("fields", "checks"),
    [
        ({}, LEASE),
        ({"options": {"lease": 120}, "due": -1}, 2 * LEASE),
        ({"options": {"lease": 120}, "due": -1, "name": "an.unknown.task"}, 2 * LEASE),
    ],
    ids=["default", "of the call", "of an unknown task"],
)
def test_a_lease_expires_after_the_checks_of_its_duration_and_not_before(
    fields: dict[str, Any], checks: int
) -> None:
    row, watcher = a_task(Status.RUNNING, **fields), Watcher()
    watcher.look(checks)
    assert (watcher.sweep(), _status(row)) == (0, "RUNNING")
    watcher.look()
    assert (watcher.sweep(), _status(row)) == (1, "PENDING")


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "back"])
def test_no_jump_of_the_databases_clock_loses_a_run_that_renews_its_lease(jump: timedelta) -> None:
    row, watcher = a_task(Status.RUNNING), Watcher().look(LEASE - 1)
    for _ in range(2 * LEASE):
        assert (watcher.sweep(ahead=jump), _status(row)) == (0, "RUNNING")
        _renew(
            row
        )  # written before the jump: by the current clock it ended an hour ago, or ends in an hour
        watcher.look(3)


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "back"])
def test_no_jump_of_the_databases_clock_keeps_a_silent_run(jump: timedelta) -> None:
    row, watcher = a_task(Status.RUNNING), Watcher()
    _renew(row, at=-jump)
    watcher.look(LEASE)
    assert watcher.sweep() == 0
    watcher.look()
    assert (watcher.sweep(), _status(row)) == (1, "PENDING")


@pytest.mark.parametrize("is_suspended", [False, True], ids=["outage", "suspended"])
def test_an_outage_of_the_database_and_a_suspended_monitor_restart_the_count(
    is_suspended: bool,
) -> None:
    a_task(Status.RUNNING)
    watcher = Watcher().look(LEASE)
    if is_suspended:
        watcher.at += 60
    else:
        watcher.monitor.missed()
    watcher.look(LEASE - 1)
    assert watcher.sweep() == 0
    watcher.look(2)
    assert watcher.sweep() == 1


def test_for_a_task_of_unknown_lease_the_databases_clock_must_agree() -> None:
    long, over = (a_task(Status.RUNNING, name="an.unknown.task", due=due) for due in (600, -1))
    watcher = Watcher().look(LEASE + 1)
    assert watcher.sweep() == 1
    assert (_status(long), _status(over)) == ("RUNNING", "PENDING")


def test_a_run_that_renewed_its_lease_after_the_last_check_is_not_lost() -> None:
    row, watcher = a_task(Status.RUNNING), Watcher().look(LEASE + 1)
    _renew(row, at=timedelta(seconds=1))
    assert (watcher.sweep(), _status(row)) == (0, "RUNNING")


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_run_whose_row_was_locked_is_observed_for_a_whole_lease_once_it_is_unlocked() -> None:
    row, watcher = a_task(Status.RUNNING), Watcher().look(LEASE + 1)
    with transaction.atomic():
        Task.objects.select_for_update().get(pk=row.pk)
        assert no_errors(race([watcher.sweep])) == [0]
    assert watcher.look().sweep() == 0
    assert watcher.look(LEASE - 1).sweep() == 1


def test_the_runs_of_a_dead_node_are_lost_and_its_death_is_logged_once(caplog: Any) -> None:
    dead = a_node()
    rows = [a_task(Status.RUNNING, node=dead.pk) for _ in range(3)]
    watcher = Watcher().look(SILENCE)
    assert watcher.sweep() == 0
    assert watcher.look().sweep() == 3
    assert {_status(row) for row in rows} == {"PENDING"}
    assert Node.objects.get(pk=dead.pk).declared_dead
    watcher.sweep()
    assert len([one for one in caplog.records if "missed its heartbeats" in one.getMessage()]) == 1


def test_a_run_that_renews_its_lease_is_not_lost_although_its_node_is_silent() -> None:
    dead = a_node()
    row = a_task(Status.RUNNING, node=dead.pk)
    watcher = Watcher()
    for _ in range(2 * LEASE):
        watcher.look(3)
        _renew(row)
        assert (watcher.sweep(), _status(row)) == (0, "RUNNING")
    assert Node.objects.get(pk=dead.pk).declared_dead
    assert watcher.look(SILENCE).sweep() == 0
    assert watcher.look().sweep() == 1


def test_a_run_left_behind_by_a_stopped_node_is_lost_soon() -> None:
    gone = a_node(stopped=6)
    row = a_task(Status.RUNNING, node=gone.pk)
    watcher = Watcher().look()
    assert watcher.sweep() == 0
    assert (watcher.look().sweep(), _status(row)) == (1, "PENDING")


def test_many_runs_are_lost_in_batches(settings: Any) -> None:
    settings.DURABLE_TASKS = {"BATCH_SIZE": 2, "NODE_TIMEOUT": 20}
    for _ in range(5):
        a_task(Status.RUNNING)
    assert Watcher().look(LEASE + 1).sweep() == 5
    assert not Task.objects.running().exists()


def test_a_check_of_the_leases_needs_one_statement(
    django_assert_num_queries: Callable[..., Any],
) -> None:
    for _ in range(3):
        a_task(Status.RUNNING)
    with django_assert_num_queries(1):
        assert len(leases()) == 3


def test_a_heartbeat_counts_as_a_renewal() -> None:
    row = a_task(Status.RUNNING)
    run_id = row.run_id or uuid.uuid4()
    watcher = Watcher().look(LEASE)
    assert run_id in attempts.heartbeat([(row.pk, row.epoch, run_id, 60.0)])
    assert watcher.look(2).sweep() == 0

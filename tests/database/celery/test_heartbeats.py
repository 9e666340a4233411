"""Heartbeats of runs and nodes survive invalid progress, locked rows, lost replies and a wrong
declaration of death.
"""

from __future__ import annotations

import logging
import math
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection, transaction

from django_durable_tasks import conf
from django_durable_tasks.celery.live_runs import LeaseHeartbeat, LiveRun, RunContext
from django_durable_tasks.celery.worker_node import NodeBeat, place
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import nodes
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import Node, NodeKind, Task
from django_durable_tasks.scheduler import reap_dead_nodes
from django_durable_tasks.store import connections as ours
from django_durable_tasks.store.clock import database_now
from tests.concurrency.racing import on_another_connection
from tests.factories import a_run, a_task
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


def _live(row: Task) -> LiveRun:
    return LiveRun(a_run(row), lease=60.0, timeout=None, worker="worker@host", eager=False)


def _lease_is_kept(row: Task) -> bool:
    row.refresh_from_db()
    return row.lease_until is not None and row.lease_until > database_now() + timedelta(seconds=30)


@pytest.mark.parametrize("done", [math.nan, math.inf, 10**400, None, "half", object()])
def test_progress_that_no_database_could_store_is_refused_at_the_call(done: Any) -> None:
    live = _live(a_task(Status.RUNNING))
    with pytest.raises(InvalidOption, match="finite number"):
        RunContext(live).progress(done)
    assert live.progress is None


@pytest.fixture
def leases() -> Iterator[LeaseHeartbeat]:
    leases = LeaseHeartbeat()
    yield leases
    leases.remove(*map(_live, Task.objects.all()))  # or its thread would continue


def test_progress_of_any_number_and_text_is_written_by_the_heartbeat(
    leases: LeaseHeartbeat,
) -> None:
    row = a_task(Status.RUNNING, due=5)
    leases.add(live := _live(row))
    done: Any = Decimal("1.5")
    RunContext(live).progress(done, 3, "half\x00way \ud800" + "x" * 300)
    leases.renew()
    assert _lease_is_kept(row)
    assert row.progress is not None
    assert row.progress["done"] == 1.5
    assert row.progress["note"].startswith("half\\x00way")


def test_an_invalid_value_of_one_run_stops_neither_the_heartbeat_nor_its_thread(
    leases: LeaseHeartbeat, settings: Any
) -> None:
    settings.DURABLE_TASKS = {"HEARTBEAT": 0.05, "LEASE": 60}
    live = _live(row := a_task(Status.RUNNING, due=5))
    live.progress = '{"done": '
    leases.add(live)
    until(lambda: live.progress is not None and threading.active_count() > 1, within=30)
    live.progress = None
    until(lambda: _lease_is_kept(row), within=20)


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_heartbeats_do_not_wait_for_locked_rows(
    leases: LeaseHeartbeat, caplog: pytest.LogCaptureFixture
) -> None:
    *held, free = (a_task(Status.RUNNING, due=5) for _ in range(4))
    lives = [_live(row) for row in (*held, free)]
    leases.add(*lives)
    with transaction.atomic():
        list(Task.objects.filter(pk__in=[row.pk for row in held]).select_for_update())
        behind = on_another_connection(leases.renew)
        assert set(behind) == {row.run_id for row in held}
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert warnings == []  # of lock timeouts
        assert _lease_is_kept(free)
        assert not any(map(_lease_is_kept, held))
        assert not any(live.lost for live in lives)
    Task.objects.unguarded().filter(pk=free.pk).update(lease_until=database_now())
    assert leases.renew(behind) == {}
    assert all(map(_lease_is_kept, held))
    assert not _lease_is_kept(free)


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_lost_run_is_distinguished_from_one_whose_row_is_locked(leases: LeaseHeartbeat) -> None:
    held, lost = a_task(Status.RUNNING, due=5), a_task(Status.RUNNING, due=5)
    lives = [_live(row) for row in (held, lost)]
    leases.add(*lives)
    Task.objects.unguarded().filter(pk=lost.pk).update(run_id=uuid.uuid4())
    with transaction.atomic():
        list(Task.objects.select_for_update())
        assert set(on_another_connection(leases.renew)) == {held.run_id}
    assert [live.lost for live in lives] == [False, True]


def test_a_node_declared_dead_by_mistake_registers_again_under_the_id_its_children_have() -> None:
    details: dict[str, Any] = {"pool": "prefork", "concurrency": 2, "queues": ["a"]}
    beat = NodeBeat(place(60).node, "worker@host", NodeKind.WORKER, **details)
    beat._beat()
    nodes.declare_dead([beat.node])
    a_task(Status.RUNNING, node=place(60).node)
    beat._beat()
    assert list(nodes.beats()) == [beat.node] == [place(60).node]
    assert reap_dead_nodes.nodes_with_orphaned_runs(database_now() + timedelta(hours=1)) == {}
    node = Node.objects.filter(declared_dead=False, stopped_at=None, **details)
    assert node.get().pk == beat.node


def test_a_registration_whose_reply_was_lost_is_repeated() -> None:
    beat = NodeBeat(uuid.uuid4(), "worker@host", NodeKind.WORKER)
    nodes.register(beat.node, "worker@host", NodeKind.WORKER)
    beat._beat()
    assert list(nodes.beats()) == [beat.node]


def test_a_node_keeps_sending_heartbeats_after_an_unexpected_error(settings: Any) -> None:
    settings.DURABLE_TASKS = {"NODE_HEARTBEAT": 0.05}
    beat = NodeBeat(uuid.uuid4(), "worker@host", NodeKind.WORKER, concurrency=object())
    beat.start()
    until(lambda: beat.is_alive() and threading.active_count() > 1, within=30)
    beat.details["concurrency"] = 1
    until(lambda: list(nodes.beats()) == [beat.node], within=20)
    beat.leave()
    assert not beat.is_alive()


def _break_connections() -> None:
    """End every session of the engine's connections on the server, as a firewall does that drops
    idle connections.
    """
    free = ours._pool.idle((conf.settings().DATABASE, ours.WORK))
    assert free
    for own in free:
        with own.cursor() as mine, connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                mine.execute("SELECT pg_backend_pid()")
                cursor.execute("SELECT pg_terminate_backend(%s)", mine.fetchone())
            else:
                mine.execute("SELECT CONNECTION_ID()")
                cursor.execute("KILL %s", mine.fetchone())


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_node_repeats_its_heartbeat_at_once_when_its_connection_was_dropped(
    settings: Any,
) -> None:
    settings.DURABLE_TASKS = {"NODE_HEARTBEAT": 3600}
    beat = NodeBeat(uuid.uuid4(), "worker@host", NodeKind.WORKER)
    beat.start()
    until(lambda: list(nodes.beats()) == [beat.node], within=20)
    until(
        lambda: ours.count() == len(ours._pool.idle((conf.settings().DATABASE, ours.WORK))),
        within=20,
    )
    _break_connections()
    beat.drain()  # its next heartbeat uses the connection that is gone
    until(lambda: Node.objects.get(pk=beat.node).draining, within=20)
    beat.leave()


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_leases_are_renewed_at_once_when_the_connection_was_dropped(
    leases: LeaseHeartbeat, settings: Any
) -> None:
    settings.DURABLE_TASKS = {"HEARTBEAT": 5, "LEASE": 60}
    row = a_task(Status.RUNNING, due=5)
    with ours.dedicated_connection():
        database_now()
    _break_connections()
    leases.add(_live(row))
    # The first heartbeat comes after 5 s, and the next one after 10 s.
    until(lambda: _lease_is_kept(row), within=9)

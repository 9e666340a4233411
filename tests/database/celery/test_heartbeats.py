"""What keeps runs and nodes alive outlives bad progress, held rows, lost replies and a death declared by mistake."""

from __future__ import annotations

import math
import threading
import uuid
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction

from django_durable_tasks.celery.context import Durable
from django_durable_tasks.celery.runs import Heart, LiveRun
from django_durable_tasks.celery.worker import NodeBeat, place
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.lifecycle import nodes, recovery
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.models import Node, NodeKind, Task
from django_durable_tasks.rules.states import Status
from tests.factories import a_run, a_task
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


def _live(row: Task) -> LiveRun:
    return LiveRun(a_run(row), lease=60.0, timeout=None, worker="worker@host", eager=False)


def _lease_is_kept(row: Task) -> bool:
    row.refresh_from_db()
    return row.lease_until is not None and row.lease_until > database_now() + timedelta(seconds=30)


@pytest.mark.parametrize("done", [math.nan, math.inf, 10**400, None, "half", object()])
def test_progress_that_no_database_could_keep_is_refused_at_the_call(done: Any) -> None:
    live = _live(a_task(Status.RUNNING))
    with pytest.raises(InvalidOption, match="finite number"):
        Durable(live).progress(done)
    assert live.progress is None


def test_progress_of_any_number_and_note_is_written_by_the_heartbeat() -> None:
    heart, row = Heart(), a_task(Status.RUNNING, due=5)
    heart.add(live := _live(row))
    done: Any = Decimal("1.5")
    Durable(live).progress(done, 3, "half\x00way \ud800" + "x" * 300)
    heart.beat()
    assert _lease_is_kept(row)
    assert row.progress is not None
    assert row.progress["done"] == 1.5
    assert row.progress["note"].startswith("half\\x00way")
    heart.remove(live)


def test_one_run_s_bad_news_ends_neither_the_heartbeat_nor_its_thread(settings: Any) -> None:
    settings.DURABLE_TASKS = {"HEARTBEAT": 0.05, "LEASE": 60}
    heart, row = Heart(), a_task(Status.RUNNING, due=5)
    live = _live(row)
    live.progress = {"done": object()}
    heart.add(live)
    until(lambda: live.progress is not None and threading.active_count() > 1, within=5)
    live.progress = None
    until(lambda: _lease_is_kept(row), within=20)
    heart.remove(live)


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_row_that_somebody_holds_costs_no_other_run_its_lease() -> None:
    heart, held, free = Heart(), a_task(Status.RUNNING, due=5), a_task(Status.RUNNING, due=5)
    lives = [_live(row) for row in (held, free)]
    for live in lives:
        heart.add(live)
    with transaction.atomic():
        Task.objects.select_for_update().get(pk=held.pk)
        beat = threading.Thread(target=heart.beat, daemon=True)
        beat.start()
        until(lambda: _lease_is_kept(free), within=30)
    beat.join(30)
    heart.beat()
    assert _lease_is_kept(held)
    for live in lives:
        heart.remove(live)  # or its thread beats on through the tests that follow


def test_a_node_declared_dead_by_mistake_comes_back_under_the_id_that_its_children_know() -> None:
    beat = NodeBeat(place(60).node, "worker@host", NodeKind.WORKER, pool="prefork", slots=2, queues=["a"])
    beat._say()
    nodes.declare_dead([beat.node])
    a_task(Status.RUNNING, node=place(60).node)
    beat._say()
    assert list(nodes.beats()) == [beat.node] == [place(60).node]
    assert recovery.lose_departed(database_now() + timedelta(hours=1), 10) == 0
    node = Node.objects.get(pk=beat.node)
    assert (node.declared_dead, node.stopped_at, node.slots, node.queues) == (False, None, 2, ["a"])


def test_a_registration_whose_reply_was_lost_is_done_again() -> None:
    beat = NodeBeat(uuid.uuid4(), "worker@host", NodeKind.WORKER)
    nodes.register(beat.node, "worker@host", NodeKind.WORKER)
    beat._say()
    assert list(nodes.beats()) == [beat.node]


def test_a_node_beats_on_after_an_error_that_is_not_the_database_s(settings: Any) -> None:
    settings.DURABLE_TASKS = {"NODE_HEARTBEAT": 0.05}
    beat = NodeBeat(uuid.uuid4(), "worker@host", NodeKind.WORKER, slots=object())
    beat.start()
    until(lambda: beat.is_alive() and threading.active_count() > 1, within=5)
    beat.details["slots"] = 1
    until(lambda: list(nodes.beats()) == [beat.node], within=20)
    beat.leave()
    assert not beat.is_alive()

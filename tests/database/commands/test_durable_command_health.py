"""``durable health``, ``status`` and the admin report stalled nodes and clock skew."""

from __future__ import annotations

import platform
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.urls import reverse

from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import nodes, status
from django_durable_tasks.cluster.nodes import NodeReport
from django_durable_tasks.command import status as health_command
from django_durable_tasks.models import Node, NodeKind, Task
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.store.clock import database_now
from tests.database.admin.site import list_of, operator
from tests.database.commands.durable_command import durable
from tests.factories import QUEUE, a_node, a_paused_queue, a_task

pytestmark = pytest.mark.django_db(transaction=True)
LONG = 120.0


def _ago(seconds: float) -> Any:
    return database_now() - timedelta(seconds=seconds)


def _worker(*, idle: float = LONG, busy: int = 0, **fields: Any) -> Node:
    report = {
        "started_at": _ago(3_600),
        "last_start_at": _ago(idle),
        "concurrency": 2,
        "queues": [QUEUE],
        "active": {"number": busy, "ids": []},
        "versions": nodes.versions(),
    }
    return a_node(**{**report, **fields})


def _scheduler(*, idle: float = 0.0, **fields: Any) -> Node:
    report = {"started_at": _ago(3_600), "last_scan_at": _ago(idle), "versions": nodes.versions()}
    return a_node(NodeKind.SCHEDULER, **{**report, **fields})


def _waits(since: float = LONG, **fields: Any) -> Task:
    row = a_task(Status.QUEUED, **{"publish_count": 2, **fields})
    Task.objects.unguarded().filter(pk=row.pk).update(updated_at=_ago(since))
    return row


def _stalled() -> set[Any]:
    return set(status.stalled(Node.objects.alive(), database_now()))


def test_a_worker_that_starts_nothing_although_tasks_wait_is_stalled() -> None:
    idle, at_work, starts = _worker(), _worker(busy=2), _worker(idle=1)
    assert _stalled() == set()
    _waits()
    assert _stalled() == {idle.pk}
    assert at_work.pk != starts.pk


@pytest.mark.parametrize(
    "fields",
    [
        {"draining": True},
        {"versions": None},
        {"active": None},
        {"queues": ["other"]},
        {"seen": 3_600.0},
    ],
)
def test_a_worker_that_drains_reports_nothing_or_has_nothing_to_do_is_not_stalled(
    fields: Any,
) -> None:
    _waits()
    _worker(**fields)
    assert _stalled() == set()


def test_a_worker_that_has_just_started_is_not_stalled() -> None:
    _waits()
    _worker(last_start_at=None, started_at=_ago(5))
    assert _stalled() == set()
    node = _worker(last_start_at=None)
    assert _stalled() == {node.pk}


def test_tasks_just_published_or_in_a_paused_queue_do_not_count_for_stalling() -> None:
    _waits(since=5)
    a_paused_queue("held")
    _waits(queue="held")
    _worker(queues=[QUEUE, "held"])
    assert _stalled() == set()


def test_tasks_published_only_once_count_because_only_lost_messages_are_repeated() -> None:
    _waits(publish_count=1)
    worker = _worker()
    assert _stalled() == {worker.pk}


def test_a_scheduler_that_no_longer_polls_is_stalled() -> None:
    _scheduler(idle=30)
    node = _scheduler(idle=LONG)
    never = _scheduler(last_scan_at=None)
    _scheduler(last_scan_at=None, started_at=_ago(5))
    assert _stalled() == {node.pk, never.pk}


def test_status_names_stalled_nodes_and_clock_skew() -> None:
    leader = _scheduler(skew=0.5)
    assert nodes.take_lease(leader.pk, 60) is not None
    assert durable("status").code == 0
    _scheduler(idle=LONG)
    _scheduler(skew=-300.0)
    answer = durable("status", "--format", "json")
    assert answer.code == 1
    problems = "\n".join(answer.data["problems"])
    assert "has stalled: it has not polled for due tasks for 2 min" in problems
    assert "300.0 s behind the database's (at most 2 s are allowed)" in problems
    assert {row["state"] for row in answer.data["nodes"]} == {"leads", "stalled", "alive"}


def test_status_warns_of_nodes_with_different_releases() -> None:
    _scheduler()
    _scheduler(versions={**nodes.versions(), "tzdata": "1999a"})
    warnings = durable("status", "--format", "json").data["warnings"]
    assert any("different releases of tzdata: 1999a, " in text for text in warnings)


def test_the_admin_names_stalled_nodes_and_clock_skew() -> None:
    node = _scheduler(idle=LONG, skew=300.0)
    ann = operator()
    page = ann.get(list_of("node")).content.decode()
    assert f"<strong>{node.name}</strong> has stalled" in page
    assert "+300.000 s" in page
    overview = ann.get(reverse("admin:django_durable_tasks_overview")).content.decode()
    assert f"Node {node.name} has stalled" in overview
    assert "300.0 s from the database" in overview


def _alive(*words: str) -> tuple[int, list[str]]:
    answer = durable("health", *words, "--format", "json")
    return answer.code, [row["state"] for row in answer.data["nodes"]]


def test_the_probe_passes_for_live_and_draining_nodes_and_fails_for_others() -> None:
    here = platform.node()
    assert _alive() == (1, [])
    _scheduler(host=here, name="a")
    _worker(host=here, name="b", idle=1, draining=True)
    assert _alive("--here") == (0, ["alive", "draining"])
    _scheduler(host="elsewhere", name="c", idle=LONG)
    assert _alive() == (0, ["alive", "draining"])
    assert _alive("--node", "c") == (1, ["stalled"])
    assert _alive("--node", "nobody") == (1, [])
    assert "it has not polled" in durable("health", "--node", "c").out
    a_node(name="d", seen=3_600)
    assert _alive("--node", "d") == (1, ["silent"])
    a_node(name="e", stopped=5, declared_dead=True)
    assert _alive("--node", "e") == (1, ["dead"])


def test_the_probe_examines_the_current_process_and_not_its_predecessor() -> None:
    a_node(NodeKind.SCHEDULER, name="a", seen=3_600, started_at=_ago(7_200))
    _scheduler(name="a")
    assert _alive("--node", "a") == (0, ["alive"])


def away(*_: Any) -> Any:
    """Raise as a connection that cannot be opened."""
    raise OperationalError("it is away")


def test_an_unavailable_database_does_not_fail_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    _scheduler(name="a", idle=LONG)
    monkeypatch.setattr(health_command, "dedicated_connection", away)
    answer = durable("health", "--node", "a")
    assert answer.code == 0
    assert "the state of the nodes is unknown" in answer.err


# Contents of a heartbeat --------------------------------------------------------------------------


def test_a_heartbeat_reports_the_activity_of_the_node_in_one_update(
    django_assert_num_queries: Any,
) -> None:
    node = a_node(NodeKind.SCHEDULER)
    tasks = [a_task(Status.RUNNING).pk for _ in range(25)]
    report = NodeReport(active=tasks, shards={3, 1}, scanned=0.0, started=None, skew=-0.25)
    with django_assert_num_queries(1):
        assert nodes.beat(node.pk, report)
    stored = Node.objects.get(pk=node.pk)
    assert stored.active == {
        "number": 25,
        "ids": [str(one) for one in tasks[:20]],
        "held": {},
        "starts": 0.0,
        "mixed": [],
    }
    assert (stored.shards, stored.skew, stored.draining, stored.last_start_at) == (
        [1, 3],
        -0.25,
        False,
        None,
    )
    assert stored.last_scan_at is not None
    assert stored.last_scan_at < database_now()
    assert nodes.beat(node.pk, NodeReport(draining=True))
    assert nodes.beat(node.pk)
    kept = Node.objects.get(pk=node.pk)
    assert (kept.shards, kept.skew, kept.draining, kept.last_scan_at) == (
        [1, 3],
        -0.25,
        True,
        stored.last_scan_at,
    )


def test_a_heartbeat_reports_the_due_index_and_the_notifications_of_a_scheduler() -> None:
    node = a_node(NodeKind.SCHEDULER)
    assert (node.index_state, node.wakeups_state) == ("", "")
    nodes.beat(node.pk, NodeReport(index_state="in memory", wakeups_state="w" * 1_000))
    nodes.beat(node.pk)
    stored = Node.objects.get(pk=node.pk)
    assert (stored.index_state, stored.wakeups_state) == ("in memory", "w" * 300)


def test_a_scheduler_reports_them_and_all_shards_if_it_is_the_only_one() -> None:
    report = Scheduler()._report()
    assert report.index_state == "in memory"
    assert report.wakeups_state is not None
    assert "polling every" in report.wakeups_state or "not tested yet" in report.wakeups_state
    assert report.shards is not None
    assert sorted(report.shards) == list(range(64))


def test_a_draining_node_reports_no_concurrency() -> None:
    node = a_node(queues=["mail"], concurrency=4)
    assert list(Node.objects.alive().workers()) == [node]
    nodes.beat(node.pk, NodeReport(draining=True))
    assert list(Node.objects.alive().workers()) == []


def test_a_node_reports_the_releases_it_runs() -> None:
    node = a_node()
    nodes.register(node.pk, "a", NodeKind.WORKER)
    assert set(Node.objects.get(pk=node.pk).versions or {}) == {
        "package",
        "python",
        "tzdata",
        "django",
        "celery",
    }

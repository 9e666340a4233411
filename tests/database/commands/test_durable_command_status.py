"""``durable status`` shows the whole installation; monitoring can use its exit code."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from celery import current_app
from django.test import Client
from django.urls import reverse
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import nodes, queues
from django_durable_tasks.cluster.nodes import NodeReport
from django_durable_tasks.limits import operator_limits
from django_durable_tasks.models import Node, NodeKind, QueueControl, SchedulerLease, Task
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim
from tests.celery_settings import celery_configured
from tests.database.admin.site import operator
from tests.database.commands.durable_command import durable, json_of
from tests.factories import a_node, a_paused_queue, a_task, many_tasks
from tests.repetitions import repetitions

pytestmark = pytest.mark.django_db


@pytest.fixture
def leader() -> Node:
    """A live scheduler that leads."""
    node = a_node(NodeKind.SCHEDULER)
    assert nodes.take_lease(node.pk, 60) is not None
    return node


@pytest.fixture
def ann() -> Client:
    """Return a client logged in as a superuser."""
    return operator("ann")


def _problems(*words: str) -> list[str]:
    answer = durable("status", *words, "--format", "json")
    assert answer.code == (1 if answer.data["problems"] else 0)
    found: list[str] = answer.data["problems"]
    return found


def _warnings() -> str:
    return "\n".join(json_of("status")["warnings"])


def test_an_idle_system_with_a_leader_is_healthy(leader: Node) -> None:
    seen = json_of("status")
    assert seen["healthy"] is True
    assert seen["leader"]["name"] == leader.name
    assert seen["leader"]["term"] == SchedulerLease.objects.get(name="leader").term
    assert seen["broker"] == "answers"
    answer = durable("status")
    assert answer.code == 0
    assert answer.out.startswith("healthy")
    assert f"leader: {leader.name}, term {seen['leader']['term']}" in answer.out


def test_without_a_scheduler_it_exits_with_1() -> None:
    found = _problems()
    assert any("No scheduler is alive" in problem for problem in found)
    assert any("No scheduler leads" in problem for problem in found)
    assert durable("status").out.startswith("UNHEALTHY")


def test_a_silent_scheduler_does_not_count_as_live() -> None:
    node = a_node(NodeKind.SCHEDULER, seen=3_600)
    nodes.take_lease(node.pk, 60)
    assert len(_problems()) == 1
    assert (
        f"Node {node.name} missed its heartbeats."
        in durable("status", "--format", "json").data["warnings"]
    )


def test_an_expired_lease_is_not_a_leader(leader: Node) -> None:
    SchedulerLease.objects.update(expires_at=database_now() - timedelta(seconds=1))
    assert ["No scheduler leads" in problem for problem in _problems()] == [True]


@pytest.mark.parametrize("status", [Status.PENDING, Status.QUEUED])
def test_a_task_that_is_due_for_too_long_exits_with_1(leader: Node, status: Status) -> None:
    row = a_task(status, due=-61)
    Task.objects.unguarded().filter(pk=row.pk).update(
        updated_at=database_now() - timedelta(seconds=61)
    )
    [problem] = _problems()
    assert re.search(r"the oldest due task waits since \d\d s", problem)


def test_tasks_waiting_in_a_paused_queue_are_a_warning(leader: Node) -> None:
    a_task(due=-61)
    a_paused_queue(reason="a move")
    assert _problems() == []
    assert re.search(r"is paused since \d+ s by anna: a move", _warnings())


def test_the_thresholds_are_settings(leader: Node, settings: Any) -> None:
    a_task(due=-61)
    a_task(Status.FAILED)
    settings.DURABLE_TASKS = {
        **settings.DURABLE_TASKS,
        "OLDEST_DUE_MAX": 120,
        "DEAD_LETTERS_MAX": 1,
    }
    assert _problems() == []
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "OLDEST_DUE_MAX": 30, "DEAD_LETTERS_MAX": 0}
    assert len(_problems()) == 2


def test_open_dead_letters_exit_with_1(leader: Node) -> None:
    a_task(Status.FAILED)
    assert _problems() == ["1 dead letter is open (DEAD_LETTERS_MAX 0)."]


def test_a_deploy_is_not_stopped_by_what_tasks_did(leader: Node) -> None:
    a_task(Status.FAILED)
    a_task(due=-61)
    assert durable("status").code == 1
    seen = json_of("status", "--deploy")
    assert (seen["healthy"], seen["problems"]) == (True, [])
    assert "1 dead letter is open" in "\n".join(seen["warnings"])
    assert "the oldest due task waits since" in "\n".join(seen["warnings"])
    nodes.beat(leader.pk, NodeReport(rejected_queues={"cards": "full"}))
    assert durable("status", "--deploy").code == 1


@pytest.mark.parametrize("scope", ["share:gpu:7", "share:gpu:8", "task:heavy", "global"])
def test_tasks_that_wait_for_a_limit_are_counted_and_named(leader: Node, scope: str) -> None:
    waits: dict[str, Any] = {"due_at": NEVER, "queue": "gpu"}
    for tenant in range(7, 12):
        many_tasks(2, waiting_for_limit=f"share:gpu:{tenant}", **waits)
    many_tasks(3, waiting_for_limit=scope, **waits)
    seen = json_of("status")
    (row,) = [row for row in seen["queues"] if row["queue"] == "gpu"]
    assert (row["pending"], row["due"], row["limited"]) == (13, 0, 13)
    named = [text for text in seen["warnings"] if " for the " in text]
    shares = 13 if scope.startswith("share") else 10
    assert f"{shares} tasks wait for the shares of 5 tenants in queue gpu." in named
    assert len(named) == (1 if scope.startswith("share") else 2)


@pytest.mark.parametrize("waits", ["due", "later", "limited"])
@given(numbers=st.lists(st.integers(0, 8), min_size=1, max_size=3))
@examples(
    max_examples=repetitions(8),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_each_number_at_which_counting_stopped_is_marked(
    leader: Node, monkeypatch: pytest.MonkeyPatch, ann: Client, waits: str, numbers: list[int]
) -> None:
    most = 5
    monkeypatch.setattr(queues, "COUNTED", most)
    Task.objects.unguarded().delete()
    values: dict[str, dict[str, Any]] = {
        "due": {"due": -5},
        "later": {"due": 600},
        "limited": {"due_at": NEVER, "waiting_for_limit": "task:heavy"},
    }
    for queue, number in enumerate(numbers):
        many_tasks(number, queue=f"queue-{queue}", **values[waits])
    total = sum(numbers)

    def shown(counted: int, is_exact: bool) -> str:
        return f"{counted}{'' if is_exact else '+'}"

    counted = [min(number, most) for number in numbers]
    pending = shown(sum(counted), max(numbers) <= most)
    # Tasks that wait for a limit are counted up to the bound in all queues together.
    waiting = [shown(one, number <= most) for one, number in zip(counted, numbers, strict=True)]
    to_start = shown(sum(counted), max(numbers) <= most)
    found = {row["queue"]: row for row in json_of("status")["queues"]}
    if waits == "limited":
        limited = [row["limited"] for row in found.values()]
        assert sum(limited) == min(total, most + 1)
        to_start = shown(min(total, most + 1), total <= most)
    page = ann.get(reverse("admin:django_durable_tasks_overview"))
    assert {status: number for status, _url, number in page.context["totals"]}["PENDING"] == pending
    assert page.context["due"] == ("0" if waits == "later" else to_start)
    by_queue = {row["depth"].queue: row for row in page.context["queues"]}
    for queue, number in enumerate(numbers):
        if number:
            row = by_queue[f"queue-{queue}"]
            assert row["pending"] == waiting[queue]
            assert row["due"] == (waiting[queue] if waits == "due" else "0")
            is_whole = waits != "limited" or total <= most
            assert row["limited"] == shown(found[f"queue-{queue}"]["limited"], is_whole)
            is_exact = number <= most and is_whole
            assert found[f"queue-{queue}"]["counts_are_exact"] is is_exact
            assert row["depth"].counts_are_exact is is_exact
    assert json_of("status")["depth_is_exact"] is (max(numbers) <= most)
    assert f"depth: PENDING {pending}," in durable("status").out


def test_a_limit_of_all_tasks_counts_the_due_ones_that_nobody_claims(
    leader: Node, ann: Client
) -> None:
    operator_limits.set_limit("global", max_concurrency=2)
    operator_limits.set_limit("queue:mail", max_concurrency=9)
    many_tasks(3, queue="mail", due=-5)
    many_tasks(4, queue="paused", due=-5)
    many_tasks(5, queue="mail", due=600)
    a_paused_queue("paused")
    assert "for the limit" not in _warnings()
    many_tasks(2, Status.QUEUED, queue="gpu")
    many_tasks(1, queue="gpu", due_at=NEVER, waiting_for_limit="global")
    text = "4 tasks wait for the limit global, 2 of 2 taken."
    assert text in _warnings()
    assert text in str(ann.get(reverse("admin:django_durable_tasks_overview")).context["troubles"])
    listed = {row["scope"]: row["waiting"] for row in json_of("limit", "list")}
    assert listed == {"global": 4, "queue:mail": 0}
    rows = ann.get(reverse("admin:django_durable_tasks_limit_changelist")).context["cl"].result_list
    usages = {row.scope: (row.usage.taken, row.usage.waiting) for row in rows}
    assert usages == {"global": (2, 4), "queue:mail": (0, 0)}


def test_an_overdue_run_is_a_warning(leader: Node) -> None:
    a_task(
        Status.RUNNING,
        started_at=database_now() - timedelta(hours=1),
        expected_duration=timedelta(minutes=1),
    )
    assert _problems() == []
    assert "1 run takes longer than its expected duration" in _warnings()


def test_waiting_tasks_without_a_worker_are_a_warning(leader: Node) -> None:
    a_task(queue="lonely")
    assert "Queue lonely: no worker listens, and 1 task waits." in _warnings()
    a_node(queues=["lonely"], concurrency=2, pool="prefork")
    assert "lonely" not in _warnings()


def test_a_queue_that_the_broker_rejects_is_a_problem_and_named(leader: Node) -> None:
    many_tasks(3, queue="cards")
    nodes.beat(leader.pk, NodeReport(rejected_queues={"cards": "PreconditionFailed: x-queue-type"}))
    found = durable("status", "--format", "json").data
    assert found["problems"] == [
        (
            "Queue cards: the broker rejects its messages (PreconditionFailed: x-queue-type); 3 tasks"
            " wait."
        )
    ]
    assert [row["rejected"] for row in found["queues"]] == ["PreconditionFailed: x-queue-type"]
    nodes.beat(leader.pk, NodeReport(rejected_queues={}))
    assert _problems() == []


def test_messages_that_were_consumed_from_another_queue_are_a_warning(leader: Node) -> None:
    claim.count_misrouted("cards", "mails")
    assert "Queue cards: 1 message for its tasks was consumed from another queue" in _warnings()
    assert "from mails" in _warnings()
    QueueControl.objects.update(misrouted_at=database_now() - timedelta(days=1, seconds=1))
    assert "were consumed from another queue" not in _warnings()
    assert [row["misrouted"] for row in json_of("status")["queues"] if row["queue"] == "cards"] == [
        1
    ]


def test_a_broker_that_does_not_answer_is_a_warning(leader: Node) -> None:
    with celery_configured(broker_url="redis://127.0.0.1:1/0"):
        assert "The broker does not answer from here: redis://" in _warnings()


def test_tasks_whose_code_is_missing_are_named(leader: Node) -> None:
    many_tasks(2, name="shop.tasks.gone")
    a_task(Status.QUEUED, name="shop.tasks.gone")
    a_task(Status.SUCCESS, name="shop.tasks.gone")
    a_task()
    seen = json_of("status")
    assert seen["unknown_tasks"] == {"shop.tasks.gone": 3}
    assert "3 tasks wait for shop.tasks.gone" in "\n".join(seen["warnings"])


def test_depth_is_shown_by_status_and_queue(leader: Node) -> None:
    many_tasks(3, queue="mail")
    many_tasks(2, due=60, queue="mail")
    many_tasks(2, Status.QUEUED, queue="mail")
    a_task(Status.RUNNING, queue="reports")
    seen = json_of("status")
    assert seen["depth"] == {"PENDING": 5, "QUEUED": 2, "RUNNING": 1}
    rows = {row["queue"]: row for row in seen["queues"]}
    assert (rows["mail"]["pending"], rows["mail"]["due"], rows["mail"]["queued"]) == (5, 3, 2)
    assert rows["reports"]["running"] == 1


def test_the_connections_of_all_nodes_are_added_up(leader: Node) -> None:
    a_node(concurrency=4, pool="prefork")
    a_node(concurrency=10, pool="thread")
    seen = json_of("status")
    assert seen["connections"]["needed"] == 8 + (1 + 3 * 4) + (2 + 2 * 10)
    assert "for 2 workers with a concurrency of 14" in durable("status").out


def test_a_pool_that_cannot_interrupt_tasks_with_limits_is_a_warning(leader: Node) -> None:
    queue = current_app.conf.task_default_queue
    a_node(queues=[queue], pool="prefork")
    a_node(queues=["other"], pool="thread")
    assert "cannot interrupt" not in _warnings()
    node = a_node(queues=[queue], pool="thread")
    assert f"Node {node.name} has the pool 'thread', which cannot interrupt" in _warnings()


def test_the_due_index_and_the_notifications_of_schedulers_are_shown(leader: Node) -> None:
    assert "INDEX STATE" not in durable("status").out
    states = {"index_state": "redis", "wakeups_state": "Redis (self-test passed 3 s ago)"}
    Node.objects.filter(pk=leader.pk).update(**states)
    [row] = [row for row in json_of("status")["nodes"] if row["id"] == str(leader.pk)]
    assert {name: row[name] for name in states} == states
    assert "Redis (self-test passed 3 s ago)" in durable("status").out
    assert _warnings() == ""


def test_a_scheduler_that_polls_although_notifications_are_configured_is_a_warning(
    leader: Node,
) -> None:
    a_node(
        NodeKind.SCHEDULER,
        wakeups_state="none, polling every 1 s: SQLite sends no notifications",
        seen=3_600,
    )
    states = {
        "index_state": "polling every 1 s: Redis does not serve (TimeoutError)",
        "wakeups_state": "polling every 1 s: PostgreSQL: a notification to itself did not come",
    }
    Node.objects.filter(pk=leader.pk).update(**states)
    assert durable("status").code == 0
    warned = _warnings()
    assert f"Node {leader.name}, due index: {states['index_state']}." in warned
    assert f"Node {leader.name}, wake-ups: {states['wakeups_state']}." in warned
    assert warned.count("polling") == 2


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_server_reports_its_maximum_number_of_connections(leader: Node) -> None:
    assert json_of("status")["connections"]["allowed"] > 0
    a_node(concurrency=1_000_000, pool="prefork")
    assert "connections: at most" in _warnings()


@pytest.mark.sqlite
def test_a_file_has_no_maximum_number_of_connections(leader: Node) -> None:
    assert json_of("status")["connections"]["allowed"] is None

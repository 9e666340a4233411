"""Tasks whose name no live worker of their queue has registered wait for it like for a limit."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import nodes
from django_durable_tasks.cluster.nodes import NodeReport
from django_durable_tasks.limits import config, operator_limits, release, scopes
from django_durable_tasks.models import DEFAULT_TENANT_ID, Limit, Node, NodeKind, Task, Tenant
from django_durable_tasks.process_state import of
from django_durable_tasks.states.demand import QueueDemand
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim
from tests.factories import a_task
from tests.messages import claim_due
from tests.repetitions import repetitions

NAMES, QUEUES = ("old.task", "new.task", "a:b/c-d.task"), ("mail", "mail:x", "reports")
NODE = uuid.uuid4()


def a_worker(queues: tuple[str, ...], names: set[str] | None) -> uuid.UUID:
    """Register a worker with so many processes that no customer's share of them limits a test."""
    node = uuid.uuid4()
    report = NodeReport(names=names)
    nodes.register(
        node, f"worker@{node}", NodeKind.WORKER, concurrency=100, queues=queues, report=report
    )
    of(config.RecentLimits).expire()
    return node


def published() -> list[tuple[str, str]]:
    """Claim all that is due in all queues, as the passes of a poll do."""
    found = list[tuple[str, str]]()
    for _ in range(5):
        now, demands = database_now(), [QueueDemand(queue, 50) for queue in QUEUES]
        for part in claim.parted(demands):
            messages = claim.claim_of(part, now, 100, NODE).messages
            found += [(message.name, message.queue) for message in messages]
    return found


workers = st.lists(
    st.tuples(
        st.lists(st.sampled_from(QUEUES), min_size=1, unique=True),
        st.none() | st.sets(st.sampled_from(NAMES)),
    ),
    max_size=4,
)
waiting = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(QUEUES), st.integers(0, 9)), max_size=30
)


class Names(TestCase):
    """Draws workers, what they have registered, and waiting tasks."""

    @settings(deadline=None)
    @given(workers=workers, tasks=waiting)
    def test_exactly_the_tasks_that_a_worker_may_run_are_published(
        self, workers: list[tuple[list[str], set[str] | None]], tasks: list[tuple[str, str, int]]
    ) -> None:
        ids = [a_worker(tuple(queues), names) for queues, names in workers]
        for name, queue, priority in tasks:
            a_task(name=name, queue=queue, priority=priority)
        of(config.RecentLimits).expire()

        def can_run(name: str, queue: str) -> bool:
            lists = [names for queues, names in workers if queue in queues]
            return not lists or any(names is None or name in names for names in lists)

        expected = Counter((name, queue) for name, queue, _ in tasks if can_run(name, queue))
        assert Counter(published()) == expected
        idle = Counter((name, queue) for name, queue, _ in tasks) - expected
        held = Task.objects.waiting_for_limit().values_list("name", "queue", "waiting_for_limit")
        assert Counter((name, queue) for name, queue, _ in held) == idle
        assert all(scopes.worker_of(scope or "") == (name, queue) for name, queue, scope in held)

        for node in ids:
            nodes.leave(node)
        a_worker(QUEUES, set(NAMES))
        release.release_waiting(database_now(), 100)
        assert Counter(published()) == idle

    @settings(deadline=None, max_examples=repetitions(50, least=5))
    @given(
        tasks=waiting,
        places=st.none() | st.integers(1, 6),
        tenants=st.lists(st.booleans(), min_size=30, max_size=30),
    )
    def test_tasks_without_a_worker_take_no_place_of_a_limit_and_no_share_of_a_tenant(
        self, tasks: list[tuple[str, str, int]], places: int | None, tenants: list[bool]
    ) -> None:
        """The worker of each queue has one name; the others wait, whichever tenant owns them."""
        a_worker(QUEUES, {"new.task"})
        other = Tenant.objects.get_or_create(slug="other", defaults={"name": "Other"})[0]
        if places is not None:
            Limit.objects.create(scope="global", max_concurrency=places)
        for (name, queue, priority), is_other in zip(tasks, tenants, strict=False):
            tenant = other.pk if is_other else DEFAULT_TENANT_ID
            a_task(name=name, queue=queue, priority=priority, tenant_id=tenant)
        of(config.RecentLimits).expire()
        found, runnable = published(), sum(name == "new.task" for name, _, _ in tasks)
        for _ in range(len(tasks)):  # tenants take turns
            release.release_waiting(database_now(), 100)
            found += published()
        assert {name for name, _ in found} <= {"new.task"}
        assert len(found) == (runnable if places is None else min(places, runnable))


@pytest.mark.django_db
def test_tasks_of_a_name_run_again_when_its_last_worker_has_gone_and_come_back() -> None:
    """In between another worker lives, then none. Without any worker the names are unknown, and the
    window limits the tasks.
    """
    old, other = a_worker(("mail",), {"old.task"}), a_worker(("mail",), {"new.task"})
    a_task(name="old.task", queue="mail")
    assert len(published()) == 1
    nodes.beat(old, NodeReport(draining=True))
    of(config.RecentLimits).expire()
    a_task(name="old.task", queue="mail")
    assert published() == []
    release.release_waiting(database_now(), 100)
    assert published() == []
    nodes.leave(other)
    of(config.RecentLimits).expire()
    release.release_waiting(database_now(), 100)
    assert len(published()) == 1
    nodes.leave(old)
    a_worker(("mail",), {"new.task"})
    a_task(name="old.task", queue="mail")
    assert published() == []
    a_worker(("mail",), {"old.task"})
    release.release_waiting(database_now(), 100)
    assert len(published()) == 1


@pytest.mark.django_db
def test_a_worker_that_reports_no_names_may_have_every_task() -> None:
    """A worker of an older release, or one whose report failed."""
    known = a_worker(("mail",), {"new.task"})
    unknown = a_worker(("mail",), None)
    Node.objects.filter(pk=unknown).update(names=[])  # without a digest it was not reported
    a_task(name="old.task", queue="mail")
    assert len(published()) == 1
    nodes.leave(unknown)
    nodes.beat(known, NodeReport(names=set()))
    of(config.RecentLimits).expire()
    a_task(name="new.task", queue="mail")
    assert published() == []


@pytest.mark.django_db
def test_a_refused_task_waits_with_the_other_published_ones_if_no_worker_has_its_name() -> None:
    a_worker(("mail",), {"new.task"})
    refused, other = (a_task(Status.QUEUED, name="old.task", queue="mail") for _ in range(2))
    elsewhere = a_task(Status.QUEUED, name="old.task", queue="reports")
    assert claim.return_unknown_task(refused.pk, refused.epoch, ["reports"]) == 0
    assert claim.return_unknown_task(refused.pk, refused.epoch, ["mail"]) == 2
    assert set(Task.objects.waiting_for_limit()) == {refused, other}
    elsewhere.refresh_from_db()
    assert elsewhere.status == Status.QUEUED


@pytest.mark.django_db
def test_a_refused_task_is_due_soon_if_another_worker_has_its_name() -> None:
    a_worker(("mail",), {"new.task"})
    a_worker(("mail",), {"old.task"})
    refused = a_task(Status.QUEUED, name="old.task", queue="mail")
    assert claim.return_unknown_task(refused.pk, refused.epoch, ["mail"], 0.0) == 1
    assert [(message.name) for message in claim_due("mail", database_now(), 5, NODE)] == [
        "old.task"
    ]


@pytest.mark.django_db
def test_names_are_read_once_and_written_only_when_they_change(
    django_assert_num_queries: Any,
) -> None:
    node = a_worker(("mail",), {"old.task"})
    names = of(config.WorkerNames)
    assert names.read() == {"mail": frozenset({"old.task"})}
    with django_assert_num_queries(1):
        names.read()
    nodes.beat(node, NodeReport(names=None))
    assert names.read() == {"mail": frozenset({"old.task"})}
    nodes.beat(node, NodeReport(names={"old.task", "late.task"}))
    assert names.read() == {"mail": frozenset({"old.task", "late.task"})}


@pytest.mark.django_db
def test_operators_see_what_the_tasks_wait_for() -> None:
    a_worker(("mail",), {"new.task"})
    task = a_task(name="old.task", queue="mail", weight=3)
    published()
    (usage,) = operator_limits.limits_with_waiting_tasks({})
    assert (usage.source, usage.waiting, usage.too_heavy) == ("WORKER", 1, None)
    task.refresh_from_db()
    assert "worker of its queue" in operator_limits.why(task)

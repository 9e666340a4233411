"""A tenant other than the default one has at most half of the processes of a queue, although no
operator has set a limit.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections as django_connections
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from django_durable_tasks.choices import Status
from django_durable_tasks.limits import backpressure, operator_limits
from django_durable_tasks.limits.backpressure import FastPath
from django_durable_tasks.limits.scopes import workers_of
from django_durable_tasks.models import DEFAULT_TENANT_ID, Task
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.states import claims
from django_durable_tasks.store import connections as dedicated
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim as task_claim
from tests.database.limits.limited_tasks import claim, end, limit, release_waiting, under_way
from tests.delivery import deliver
from tests.factories import NOOP, QUEUE, a_node, a_task, a_tenant, many_tasks
from tests.process_state import new_process_state
from tests.repetitions import repetitions
from tests.waiting import until


def _a_worker(concurrency: int) -> None:
    a_node(concurrency=concurrency, queues=[QUEUE])
    new_process_state()


class Shares(TestCase):
    """Draws workers, running tasks, and the rounds of release between two claims."""

    @settings(deadline=None, max_examples=repetitions(12, least=5))
    @given(
        concurrency=st.integers(0, 12),
        running=st.integers(0, 3),
        weight=st.integers(1, 9),
        rounds=st.integers(1, 4),
    )
    def test_no_customer_occupies_more_than_half_of_the_processes(
        self, concurrency: int, running: int, weight: int, rounds: int
    ) -> None:
        # Before the first worker starts, too: it would run what is QUEUED then.
        new_process_state()
        if concurrency:
            _a_worker(concurrency)
        most = max(1, concurrency // 2)
        customers = [a_tenant().pk for _ in range(2)]
        running = min(running, most)
        many_tasks(running, Status.RUNNING, tenant_id=customers[0])
        for tenant_id in customers:
            many_tasks(20, tenant_id=tenant_id, weight=weight, due=-9)
        many_tasks(8, due=-1)
        claim()
        expected = dict.fromkeys(customers, most) | {DEFAULT_TENANT_ID: 8}
        assert under_way() == expected
        ended = Task.objects.queued().exclude(tenant_id=DEFAULT_TENANT_ID)
        end(*ended.values_list("pk", flat=True))
        # Several schedulers may release before one of them claims.
        for _ in range(rounds):
            release_waiting()
        claim()
        assert under_way() == expected


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("concurrency", [1, 2, 4, 7])
def test_a_customer_below_its_share_takes_the_fast_path(concurrency: int) -> None:
    _a_worker(concurrency)
    most = max(1, concurrency // 2)
    noisy, quiet, path = a_tenant().pk, a_tenant().pk, FastPath()
    many_tasks(most - 1, Status.RUNNING, tenant_id=noisy)
    assert path.is_open(NOOP, QUEUE, noisy)
    a_task(Status.QUEUED, tenant_id=noisy)
    assert not path.is_open(NOOP, QUEUE, noisy)
    assert path.is_open(NOOP, QUEUE, quiet)
    assert path.is_open(NOOP, QUEUE, DEFAULT_TENANT_ID)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("concurrency", [2, 6])
def test_the_end_of_a_customer_s_run_publishes_its_next_waiting_task(concurrency: int) -> None:
    _a_worker(concurrency)
    most, tenant_id = max(1, concurrency // 2), a_tenant().pk
    many_tasks(most + 3, tenant_id=tenant_id, due=-9)
    claim()
    left = most + 3
    while left:
        assert under_way() == {tenant_id: min(left, most)}
        deliver(Task.objects.queued().order_by("pk")[0])
        left -= 1
    assert Task.objects.filter(status=Status.SUCCESS).count() == most + 3


@pytest.mark.django_db(transaction=True)
def test_a_scheduler_looks_once_per_poll_while_customers_wait_for_their_runs_to_end() -> None:
    _a_worker(2)
    many_tasks(3, tenant_id=a_tenant().pk, due=-9)
    claim()
    scheduler = Scheduler("looks")
    scheduler.dispatching.poll_soon()
    assert scheduler.releasing.round() == 1.0
    dedicated.close_all()


@pytest.mark.django_db(transaction=True)
def test_tasks_that_threads_publish_at_once_are_counted_before_their_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backpressure, "_UNSEEN", 60.0)
    _a_worker(4)
    tenant_id, path = a_tenant().pk, FastPath()

    together = threading.Barrier(3)

    def ask(_: int) -> bool:
        """Ask in a thread that never creates the task."""
        try:
            together.wait(60)
            return path.is_open(NOOP, QUEUE, tenant_id)
        finally:
            django_connections.close_all()

    path.is_open(NOOP, QUEUE, a_tenant().pk)  # reads the state
    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(ask, range(3))) == [False, True, True]
    assert not path.is_open(NOOP, QUEUE, tenant_id)


@pytest.mark.django_db(transaction=True)
def test_the_own_tasks_of_a_thread_are_counted_by_what_they_are_now() -> None:
    _a_worker(4)
    tenant_id, path = a_tenant().pk, FastPath()
    for _ in range(5):
        queued = many_tasks(2, Status.QUEUED, tenant_id=tenant_id)
        assert not path.is_open(NOOP, QUEUE, tenant_id)
        end(*(task.pk for task in queued))
        assert path.is_open(NOOP, QUEUE, tenant_id)


@pytest.mark.django_db
@pytest.mark.parametrize("others", [0, 3])
def test_a_claim_reaches_other_tenants_before_a_backlog_is_processed(others: int) -> None:
    """The tasks of a full share are made to wait in parts, and each claim looks for others."""
    _a_worker(4)
    noisy, now = a_tenant().pk, database_now()
    part = task_claim._OF_FULL_SHARES
    many_tasks(3 * part, tenant_id=noisy, due=-900)
    assert len(claim(50, now)) == 2
    waiting = Task.objects.waiting_for_limit().filter(tenant_id=noisy)
    before = waiting.count()
    quiet = [a_task(tenant_id=a_tenant().pk, due=-800) for _ in range(others)]
    assert set(claim(50, now)) == {task.pk for task in quiet}
    assert waiting.count() == before + part
    standard = a_task(due=-800)
    # The default tenant has no share. Its task comes after the tasks that are due before it.
    found = [pk for _ in range(3) for pk in claim(50, now)]
    assert found == [standard.pk]
    assert waiting.count() == 3 * part - 2


@pytest.mark.django_db
@pytest.mark.parametrize("scope", ["tenant:{}", f"queue:{QUEUE}"])
def test_a_limit_of_the_tenant_or_of_the_queue_replaces_the_share(scope: str) -> None:
    _a_worker(4)
    tenant_id = a_tenant().pk
    limit(scope.format(tenant_id), 9)
    many_tasks(20, tenant_id=tenant_id)
    claim()
    for _ in range(3):
        release_waiting()
        claim()
    assert under_way() == {tenant_id: 9}


@pytest.mark.django_db
def test_the_only_tenant_has_all_processes() -> None:
    _a_worker(4)
    many_tasks(20, tenant_id=DEFAULT_TENANT_ID)
    assert len(claim()) == 20


@pytest.mark.parametrize(("processes", "places"), [(0, 1), (1, 1), (2, 1), (5, 2), (8, 4)])
def test_half_of_the_processes_are_rounded_down(processes: int, places: int) -> None:
    assert workers_of(processes) == places


@pytest.mark.django_db
def test_a_task_that_lost_its_place_waits_again_for_its_share() -> None:
    _a_worker(2)
    tenant_id = a_tenant().pk
    rows = many_tasks(2, tenant_id=tenant_id)
    scope = f"share:{QUEUE}:{tenant_id}"
    claims.make_due_wait({row.pk: scope for row in rows}, database_now())
    release_waiting()
    taken = a_task(Status.QUEUED, tenant_id=tenant_id)
    assert claim() == list[uuid.UUID]()
    assert Task.objects.filter(waiting_for_limit=scope).count() == 2
    end(taken.pk)


# One limit ``tenant:*`` applies to each tenant other than the default one, in what its own limit
# does not contain.


class EachTenant(TestCase):
    """Draws the limits, and how many tasks each tenant has."""

    @settings(deadline=None, max_examples=repetitions(20, least=5))
    @given(
        places=st.integers(1, 6),
        own=st.none() | st.integers(1, 9),
        numbers=st.lists(st.integers(0, 12), min_size=3, max_size=3),
        rounds=st.integers(1, 3),
    )
    def test_each_customer_has_the_places_and_the_default_tenant_is_not_limited(
        self, places: int, own: int | None, numbers: list[int], rounds: int
    ) -> None:
        a_node(concurrency=100, queues=[QUEUE])
        customers = [a_tenant().pk for _ in numbers]
        limit("tenant:*", places)
        if own is not None:
            limit(f"tenant:{customers[0]}", own)
        for tenant_id, number in zip(customers, numbers, strict=True):
            many_tasks(number, tenant_id=tenant_id)
        many_tasks(9)
        most = dict.fromkeys(customers, places) | {customers[0]: own or places}
        left = Counter(dict(zip(customers, numbers, strict=True)))
        claim()
        for _ in range(rounds):
            expected = {one: min(left[one], most[one]) for one in customers if left[one]}
            assert under_way() == expected | {DEFAULT_TENANT_ID: 9}
            end(
                *Task.objects.queued()
                .exclude(tenant_id=DEFAULT_TENANT_ID)
                .values_list("pk", flat=True)
            )
            left.subtract(expected)
            release_waiting()
            claim()


@pytest.mark.django_db
def test_tasks_of_customers_that_waited_for_the_rate_of_their_queue_start() -> None:
    """A released task was refused again for ever, because others of its share wait behind it."""
    _a_worker(4)
    limit(f"queue:{QUEUE}", rate="100/s", burst=3)
    customers = [a_tenant().pk for _ in range(2)]
    for tenant_id in customers:
        many_tasks(9, tenant_id=tenant_id)
    assert len(claim()) <= 3

    def all_start() -> bool:
        end(*Task.objects.queued().values_list("pk", flat=True))
        release_waiting()
        claim()
        return not Task.objects.open().exists()

    until(all_start, within=30, message="all tasks start")


@pytest.mark.django_db
def test_each_customer_has_the_rate(settings: Any) -> None:
    customers = [a_tenant().pk for _ in range(2)]
    settings.DURABLE_TASKS = {"LIMITS": {"tenant:*": {"rate": "3/d", "burst": 3}}}
    _a_worker(8)
    for tenant_id in customers:
        many_tasks(9, tenant_id=tenant_id)
    many_tasks(9)
    limit(f"tenant:{customers[0]}", 2)  # has no rate of its own, and uses two of three tokens
    claim()
    assert under_way() == {customers[0]: 2, customers[1]: 3, DEFAULT_TENANT_ID: 9}
    waiting = {one.scope: one for one in operator_limits.limits_with_waiting_tasks({})}
    assert waiting.keys() == {f"tenant:{tenant_id}" for tenant_id in customers}
    assert [
        (waiting[f"tenant:{one}"].source, waiting[f"tenant:{one}"].rate) for one in customers
    ] == [("OPERATOR", "3/d"), ("CODE", "3/d")]


@pytest.mark.django_db(transaction=True)
def test_a_task_of_a_customer_with_an_exact_limit_is_published_by_a_claim() -> None:
    customer = a_tenant().pk
    limit("tenant:*", 5)
    path = FastPath()
    assert not path.is_open(NOOP, QUEUE, customer)
    assert path.is_open(NOOP, QUEUE, DEFAULT_TENANT_ID)


@pytest.mark.django_db
@pytest.mark.parametrize("scope", ["global", f"queue:{QUEUE}"])
def test_a_lone_customer_with_all_its_places_used_is_not_released_and_refused_for_ever(
    scope: str,
) -> None:
    _a_worker(4)
    tenant_id = a_tenant().pk
    limit(scope, rate="1000/s")
    many_tasks(2, Status.RUNNING, tenant_id=tenant_id)
    many_tasks(5, tenant_id=tenant_id, due=-9)
    for _ in range(2):
        release_waiting()
        claim()
    epochs = set(Task.objects.filter(status=Status.PENDING).values_list("epoch", flat=True))
    for _ in range(3):
        release_waiting()
        claim()
    assert epochs == set(Task.objects.filter(status=Status.PENDING).values_list("epoch", flat=True))

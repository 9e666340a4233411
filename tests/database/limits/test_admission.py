"""Limits are enforced at the claim. Tasks that exceed one wait for it and are released when it has
capacity; other tasks are claimed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from django_durable_tasks import registry
from django_durable_tasks.choices import Status
from django_durable_tasks.dependencies import resolve
from django_durable_tasks.limits import backpressure
from django_durable_tasks.models import DEFAULT_TENANT_ID, Limit, LimitBucket, Task, Tenant
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.scheduler import dispatch_loop
from django_durable_tasks.states import claims, dependencies, endings
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim as task_claim
from django_durable_tasks.tasks import enqueue, operator_actions
from django_durable_tasks.tasks.options import CallOptions
from tests.database.limits.limited_tasks import (
    claim,
    end,
    ids,
    limit,
    limited_tasks,
    release_waiting,
    under_way,
    waiting_scopes,
)
from tests.factories import NOOP, QUEUE, a_task, a_tenant, many_tasks
from tests.process_state import new_process_state
from tests.project import limited

__all__ = ["limited_tasks"]

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("many_processes")]


def test_tokens_are_refilled_over_time_up_to_the_burst() -> None:
    many_tasks(20)
    limit(f"task:{NOOP}", rate="10/m", burst=5)
    assert len(claim()) == 5
    bucket = LimitBucket.objects.filter(scope=f"task:{NOOP}")
    bucket.update(refilled_at=database_now() - timedelta(seconds=12.5))
    assert release_waiting() == 2
    assert len(claim()) == 2
    bucket.update(refilled_at=database_now() - timedelta(days=3))
    assert release_waiting() == 5
    assert len(claim()) == 5


def test_a_task_refused_by_one_limit_takes_no_token_of_another() -> None:
    many_tasks(5)
    limit(f"task:{NOOP}", 0)
    limit("tenant:1", rate="1/d", burst=5)
    assert claim() == []
    assert not LimitBucket.objects.filter(scope="tenant:1").exists()


def test_a_refused_task_waits_and_names_its_limit() -> None:
    first, second = many_tasks(2)
    limit(f"task:{NOOP}", 1)
    assert claim() == [first.pk]
    second.refresh_from_db()
    assert (second.status, second.waiting_for_limit, second.due_at) == (
        Status.PENDING,
        f"task:{NOOP}",
        NEVER,
    )
    assert (second.node, second.publish_count) == (None, 0)
    assert second.next_attempt_at is None


def test_a_full_scope_does_not_hide_tasks_of_other_scopes() -> None:
    many_tasks(700, due=-100)
    other = a_task(name="tests.project.tasks.add", args=[1, 2])
    limit(f"task:{NOOP}", 2)
    assert claim(50)[-1] == other.pk
    assert Task.objects.waiting_for_limit().count() == 698


def test_waiting_tasks_are_released_by_priority_and_then_by_creation() -> None:
    rows = [a_task(priority=priority) for priority in (1, 5, 5, 9)]
    limit(f"task:{NOOP}", 0)
    claim()
    seen = []
    limit(f"task:{NOOP}", 1)
    for _ in rows:
        assert release_waiting() == 1
        (gone,) = claim()
        seen.append(gone)
        end(gone)
    assert seen == ids([rows[3], rows[1], rows[2], rows[0]])


def test_a_released_task_is_claimed_before_later_ones() -> None:
    old = a_task(due=-50)
    limit(f"task:{NOOP}", 0)
    claim()
    a_task(due=-5)
    limit(f"task:{NOOP}", 1)
    release_waiting()
    assert claim() == [old.pk]


def test_tasks_are_released_when_their_limit_is_removed() -> None:
    many_tasks(3)
    limit(f"task:{NOOP}", 0)
    assert claim() == []
    Limit.objects.all().delete()
    new_process_state()
    assert release_waiting() == 3
    assert len(claim()) == 3


def test_a_retry_counts_once_for_the_limit_and_a_duplicate_message_does_not() -> None:
    row = a_task()
    limit(f"task:{NOOP}", 1)
    assert claim() == [row.pk]
    assert [
        message.number
        for message in task_claim.republish(Task.objects.queued(), database_now(), 10)
    ] == [2]
    claims.return_to_pending(Task.objects.filter(pk=row.pk), 0.0)
    assert claim() == [row.pk]
    a_task()
    assert claim() == []


@pytest.mark.parametrize(
    "act",
    [
        lambda question: endings.cancel(question, "BY_HAND"),
        lambda question: endings.skip(question, "BY_HAND"),
        lambda question: endings.expire(question, 10),
        lambda question: endings.force_complete(question, "BY_HAND"),
        dependencies.block,
        lambda question: operator_actions.move(question, database_now() + timedelta(hours=1)),
        operator_actions.retry,
    ],
    ids=["cancel", "skip", "expire", "force_complete", "hold_back", "reschedule", "end_wait"],
)
def test_any_transition_of_a_waiting_task_removes_it_from_the_waitlist(
    act: Callable[[Any], Any],
) -> None:
    a_task(failures=1)
    limit(f"task:{NOOP}", 0)
    claim()
    assert Task.objects.waiting_for_limit().count() == 1
    act(Task.objects.all())
    row = Task.objects.get()
    assert (row.waiting_for_limit, row.due_at == NEVER) == (None, False)
    assert release_waiting() == 0


def test_a_replayed_task_is_checked_again() -> None:
    row = a_task()
    limit(f"task:{NOOP}", 0)
    claim()
    end(row.pk)
    endings.replay(Task.objects.all())
    assert claim() == []
    assert Task.objects.get().waiting_for_limit == f"task:{NOOP}"


@pytest.mark.django_db(transaction=True)
def test_a_task_limited_in_code_is_created_pending_and_others_are_not(limited_tasks: None) -> None:
    assert Task.objects.get(pk=limited.one_at_a_time.delay().id).status == Status.PENDING
    assert Task.objects.get(pk=limited.ten_a_minute.delay().id).status == Status.PENDING
    assert Task.objects.get(pk=limited.two_for_each.delay("acme").id).status == Status.PENDING
    assert Task.objects.get(pk=limited.unlimited.delay().id).status == Status.QUEUED


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "scope", [f"queue:{QUEUE}", "tenant:1", "global", "task:tests.project.limited.unlimited"]
)
def test_a_task_limited_by_an_operator_is_created_pending(limited_tasks: None, scope: str) -> None:
    limit(scope, 1)
    created = limited.unlimited.using(queue=QUEUE).delay()
    assert Task.objects.get(pk=created.id).status == Status.PENDING


def test_a_limit_per_key_counts_each_key_separately(limited_tasks: None) -> None:
    for customer in ("acme", "acme", "acme", "Acme", "zenith"):
        limited.two_for_each.using(queue=QUEUE).delay(customer)
    claim()
    held = Counter(Task.objects.queued().values_list("limit_key", flat=True))
    assert held == {"acme": 2, "Acme": 1, "zenith": 1}
    assert Task.objects.waiting_for_limit().get().waiting_for_limit == "key:acme"
    Task.objects.unguarded().queued().filter(limit_key="acme").update(
        status=Status.CANCELLED, due_at=None
    )
    assert release_waiting() == 1
    assert len(claim()) == 1


@settings(
    max_examples=6,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    customer=st.sampled_from(["x", "acme", "é" * 90, "k" * 198, "https://a.example"]),
    calls=st.lists(st.integers(0, 2), min_size=3, max_size=8),
    rated=st.booleans(),
)
@example(customer="x", calls=[1, 2, 1, 2], rated=False)
def test_a_limit_per_key_counts_each_tenant_separately(
    limited_tasks: None, customer: str, calls: list[int], rated: bool
) -> None:
    with transaction.atomic():
        tenants = [Tenant.objects.get(pk=DEFAULT_TENANT_ID), a_tenant(), a_tenant()]
        function = limited.slowly_for_each if rated else limited.one_for_each
        for place in calls:
            function.using(queue=QUEUE, tenant=tenants[place]).delay(customer)
        claim()
        started = Task.objects.queued().values_list("tenant_id", "limit_key")
        expected = {tenants[place].pk for place in calls}
        assert sorted(tenant for tenant, _ in started) == sorted(expected)
        # Operators name the keys of the default tenant without its id.
        keys = dict(started)
        assert keys.get(1, customer) == customer
        for tenant in expected - {1}:
            assert keys[tenant].startswith(f"{tenant}:{customer[:100]}")
        transaction.set_rollback(True)


def test_a_limit_of_an_operator_applies_to_the_key_of_one_tenant(limited_tasks: None) -> None:
    acme, globex = a_tenant(), a_tenant()
    limit(f"key:{acme.pk}:x", 0)
    for tenant in (None, acme, globex):
        limited.one_for_each.using(queue=QUEUE, tenant=tenant).delay("x")
    claim()
    assert set(Task.objects.queued().values_list("tenant_id", flat=True)) == {1, globex.pk}


def test_bulk_calls_compute_the_key_of_each_task(limited_tasks: None) -> None:
    limited.two_for_each.using(queue=QUEUE).schedule_many([("a",), ("b",), ("b",)])
    assert Counter(Task.objects.values_list("limit_key", flat=True)) == {"a": 1, "b": 2}


def test_the_key_follows_the_arguments_of_an_editable_task(limited_tasks: None) -> None:
    using = limited.two_for_each.using(
        queue=QUEUE, key="one", run_at=database_now() + timedelta(hours=1)
    )
    using.schedule("acme")
    using.schedule("zenith")
    assert Task.objects.get().limit_key == "zenith"


@pytest.mark.django_db(transaction=True)
def test_a_released_dependent_that_is_limited_waits_for_the_claim(limited_tasks: None) -> None:
    upstream = a_task(Status.RUNNING)
    under = [
        enqueue.schedule(
            enqueue.Call(
                registry.get(name), (), {}, CallOptions(queue=QUEUE, depends_on=[upstream])
            )
        )
        for name in ("tests.project.limited.one_at_a_time", "tests.project.limited.unlimited")
    ]
    endings.force_complete(Task.objects.filter(pk=upstream.pk), "BY_HAND")
    resolve.resolve_endings_of(upstream.pk)
    standing = [Task.objects.get(pk=row.pk).status for row in under]
    assert standing == [Status.PENDING, Status.QUEUED]


def test_a_busy_tenant_does_not_block_other_tenants() -> None:
    noisy, quiet = a_tenant(), a_tenant()
    many_tasks(3_000, tenant=noisy, due=-100)
    late = many_tasks(3, tenant=quiet)
    with override_settings(DURABLE_TASKS={"QUEUE_WINDOW": 40}):
        new_process_state()
        backpressure.snapshot()
        claimed = claim(40)
    assert set(ids(late)) <= set(claimed)
    assert len(claimed) == 20 + 3
    assert waiting_scopes() == {f"share:{QUEUE}:{noisy.pk}"}


def test_tenants_alternate_as_capacity_becomes_free() -> None:
    tenants = [a_tenant() for _ in range(4)]
    for number, tenant in enumerate(tenants):
        many_tasks(200, tenant=tenant, due=-100 + number)
    with override_settings(DURABLE_TASKS={"QUEUE_WINDOW": 80}):
        new_process_state()
        for _ in range(8):
            release_waiting()
            for _ in range(dispatch_loop._PASSES_PER_POLL):
                claim(backpressure.snapshot().capacity(QUEUE))
            assert Task.objects.queued().count() >= 50
            end(
                *Task.objects.queued()
                .order_by("updated_at", "pk")
                .values_list("pk", flat=True)[:40]
            )
    ended = Counter(
        Task.objects.filter(status=Status.CANCELLED).values_list("tenant_id", flat=True)
    )
    assert min(ended[tenant.pk] for tenant in tenants) > 40, ended


def test_tenants_share_the_capacity_of_a_limited_queue() -> None:
    noisy, quiet = a_tenant(), a_tenant()
    many_tasks(50, tenant=noisy, due=-100)
    many_tasks(2, tenant=quiet)
    limit(f"queue:{QUEUE}", 4)
    claim()
    assert under_way() == {noisy.pk: 2, quiet.pk: 2}


def test_the_only_tenant_never_waits_for_a_tenant_share() -> None:
    many_tasks(300)
    claim(300)
    assert Task.objects.queued().count() == 300

"""Token buckets are refilled by the database's clock and deleted when they are full. Tasks started
without a broker obey limits.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.limits import config, release
from django_durable_tasks.models import LimitBucket, Task
from django_durable_tasks.models.cluster import LOCK
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import RunLocation
from django_durable_tasks.tasks import retention
from tests.database.limits.limited_tasks import NODE, claim, limit, limited_tasks
from tests.database.transitions.transition_calls import PLACE
from tests.factories import NOOP, QUEUE, a_task, a_tenant, many_tasks, take_batch
from tests.messages import claim_due

__all__ = ["limited_tasks"]


pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("many_processes")]


def _refilled_at(scope: str) -> datetime:
    found = LimitBucket.objects.get(scope=scope).refilled_at
    assert found is not None
    return found


@pytest.mark.parametrize("scope", ["tenant:1", f"queue:{QUEUE}"])
def test_an_older_now_does_not_set_a_bucket_back(scope: str) -> None:
    many_tasks(5, due=-100)
    a_task(due=-100, tenant=a_tenant())
    limit(scope, rate="1/d", burst=2)
    assert len(claim(2)) == 2
    claim()
    before, old = _refilled_at(scope), database_now() - timedelta(seconds=30)
    release.release_waiting(old, 100)
    claim_due(QUEUE, old, 100, NODE)
    assert _refilled_at(scope) == before


@pytest.mark.parametrize("by_claim", [True, False])
def test_tokens_are_refilled_by_a_clock_that_was_set_back(by_claim: bool) -> None:
    many_tasks(5)
    limit("tenant:1", rate="1/m", burst=1)
    assert len(claim()) == 1
    ahead = LimitBucket.objects.filter(scope="tenant:1")
    ahead.update(refilled_at=database_now() + timedelta(hours=1))
    if by_claim:
        a_task()
        assert claim() == []
    else:
        release.release_waiting(database_now(), 100)
    assert _refilled_at("tenant:1") <= database_now()


# Full buckets -------------------------------------------------------------------------------------


def _bucket(scope: str, ago: float) -> None:
    LimitBucket.objects.create(
        scope=scope, tokens=0, refilled_at=database_now() - timedelta(seconds=ago)
    )


def _prune_buckets(limit: int = 100) -> set[str]:
    retention.prune_buckets(database_now(), limit)
    return set(LimitBucket.objects.exclude(scope=LOCK).values_list("scope", flat=True))


@pytest.mark.usefixtures("limited_tasks")
def test_full_buckets_of_keys_are_deleted_and_the_lock_row_stays() -> None:
    number, slowest = 1_000, _slowest()
    for scope, ago in (("key:full", 1.01), ("key:filling", 0.99)):
        _bucket(scope, ago * number / slowest)
    LimitBucket.objects.update_or_create(
        scope=LOCK, defaults={"refilled_at": database_now() - timedelta(days=9_000)}
    )
    assert _prune_buckets() == {"key:filling"}
    assert LimitBucket.objects.filter(scope=LOCK).exists()


def _slowest() -> float:
    """Return the starts per second of the slowest rate limit per key."""
    return min(
        one.rate.per_second for one in config.read().per_key.values() if one.rate is not None
    )


def test_buckets_of_active_limits_stay_and_those_of_removed_ones_are_deleted() -> None:
    limit("tenant:1", rate="1/d")
    month = 30 * 86_400.0
    for scope in ("tenant:1", "tenant:2", "key:gone"):
        _bucket(scope, month + 60)
    _bucket("tenant:3", month - 60)
    assert _prune_buckets() == {"tenant:1", "tenant:3"}


def test_very_many_buckets_are_read_page_by_page() -> None:
    for number in range(5):
        _bucket(f"key:{number}", 1.0)
        _bucket(f"key:{number}:old", 9e6)
    left = [len(_prune_buckets(3)) for _ in range(5)]
    assert left[0] > 5
    assert left[-1] == 5


# Started in a batch -------------------------------------------------------------------------------


def test_a_released_task_that_is_started_in_a_batch_waits_for_no_limit() -> None:
    rows = many_tasks(2, in_batch=True)
    place = RunLocation(node=NODE, worker="worker@host", lease=60.0)
    limit("tenant:1", 0)
    assert take_batch(10, place) == []
    limit("tenant:1", 2)
    assert release.release_waiting(database_now(), 100) == 2
    runs = take_batch(10, place)
    assert {run.task_id for run in runs} == {row.pk for row in rows}
    assert not Task.objects.filter(waiting_for_limit__isnull=False).exists()


def test_a_task_that_is_due_later_reserves_no_capacity() -> None:
    a_task(due=3_600, weight=3, waiting_for_limit="tenant:1")
    row = a_task()
    limit("tenant:1", 3)
    assert claim() == [row.pk]


# Batches of tasks that limits apply to.


def test_tasks_of_a_full_scope_do_not_delay_those_behind_them() -> None:
    limit("key:acme", 1)
    many_tasks(60, in_batch=True, limit_key="acme", due=-9)
    others = many_tasks(3, in_batch=True)
    runs = take_batch(4, PLACE)
    assert {row.pk for row in others} < {run.task_id for run in runs}
    assert len(runs) == 4
    assert Task.objects.running().filter(limit_key="acme").count() == 1
    assert Task.objects.waiting_for_limit().filter(waiting_for_limit="key:acme").count() == 59


def test_passes_behind_a_full_scope_do_not_exceed_the_other_limits() -> None:
    first, second = a_tenant(), a_tenant()
    limit(f"tenant:{first.pk}", 1)
    limit(f"tenant:{second.pk}", 2)
    many_tasks(20, in_batch=True, tenant=first, due=-9)
    many_tasks(20, in_batch=True, tenant=second)
    assert len(take_batch(10, PLACE)) == 3
    assert take_batch(10, PLACE) == []
    running = Task.objects.running()
    assert running.filter(tenant=first).count() == 1
    assert running.filter(tenant=second).count() == 2


def test_if_the_whole_task_is_limited_only_the_refused_tasks_of_the_batch_wait() -> None:
    limit(f"task:{NOOP}", 2)
    many_tasks(30, in_batch=True)
    assert len(take_batch(5, PLACE)) == 2
    assert Task.objects.waiting_for_limit().count() == 3


def test_an_expired_task_uses_no_token_of_a_rate() -> None:
    limit(f"task:{NOOP}", rate="1/h")
    late = a_task(in_batch=True, due=-9, expires_at=database_now() - timedelta(seconds=1))
    task = a_task(in_batch=True)
    assert [run.task_id for run in take_batch(5, PLACE)] == [task.pk]
    late.refresh_from_db()
    assert late.status == Status.EXPIRED

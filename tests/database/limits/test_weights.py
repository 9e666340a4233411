"""Weights and rates per key: a heavy task uses more capacity and tokens, and light ones do not
starve it.
"""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.limits import operator_limits, release
from django_durable_tasks.models import LimitBucket, Task
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim as task_claim
from django_durable_tasks.tasks import operator_actions
from tests.database.commands.durable_command import durable
from tests.database.limits.limited_tasks import (
    BY_SCOPE,
    NODE,
    claim,
    end,
    ids,
    limit,
    limited_tasks,
    release_waiting,
    waiting_for,
    waiting_scopes,
)
from tests.factories import NOOP, QUEUE, a_paused_queue, a_task, many_tasks
from tests.project import limited

__all__ = ["limited_tasks"]
pytestmark = pytest.mark.django_db
SCOPE = f"task:{NOOP}"


def _weight_in_use() -> int:
    rows = Task.objects.filter(status__in=[Status.QUEUED, Status.RUNNING]).values_list(
        "weight", flat=True
    )
    return sum(rows)


def _refill(scope: str, seconds: float) -> None:
    """Let a bucket refill for this number of seconds."""
    bucket = LimitBucket.objects.get(scope=scope)
    assert bucket.refilled_at is not None
    LimitBucket.objects.filter(scope=scope).update(
        refilled_at=bucket.refilled_at - timedelta(seconds=seconds)
    )


# The stored weight --------------------------------------------------------------------------------


@pytest.mark.usefixtures("limited_tasks")
def test_a_task_stores_the_weight_of_its_decorator_or_of_its_call() -> None:
    assert Task.objects.get(pk=limited.heavy.delay().id).weight == 3
    assert limited.heavy.using(weight=2).schedule().weight == 2
    limited.heavy.using(queue="many", weight=4).schedule_many([(), ()])
    assert set(Task.objects.filter(queue="many").values_list("weight", flat=True)) == {4}
    assert limited.unlimited.schedule().weight == 1


@pytest.mark.usefixtures("limited_tasks")
def test_the_weight_of_an_editable_task_is_that_of_its_last_call() -> None:
    later = database_now() + timedelta(hours=1)
    limited.heavy.using(key="one", run_at=later).schedule()
    limited.heavy.using(key="one", run_at=later, weight=1).schedule()
    assert Task.objects.get().weight == 1


# Concurrency --------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_ids", [False, True], ids=["queue", "ids"])
@pytest.mark.parametrize(("weight", "places"), [(1, 2), (2, 5)])
@pytest.mark.parametrize("scope", BY_SCOPE)
def test_a_task_uses_as_much_capacity_as_it_weighs(
    scope: str, weight: int, places: int, by_ids: bool
) -> None:
    rows = [a_task(due=-9 + number, weight=weight, **BY_SCOPE[scope]) for number in range(5)]
    limit(scope, places)
    at_once = (
        [message.task_id for message in task_claim.claim_these(ids(rows), database_now(), NODE)]
        if by_ids
        else claim()
    )
    assert at_once == ids(rows[:2])
    assert claim() == []
    if by_ids:
        assert waiting_scopes() == {scope}
    end(rows[0].pk)
    release_waiting()
    assert claim() == [rows[2].pk]
    assert _weight_in_use() == 2 * weight


@pytest.mark.parametrize("scope", BY_SCOPE)
def test_running_tasks_use_as_much_capacity_as_they_weigh(scope: str) -> None:
    many_tasks(1, Status.RUNNING, weight=4, **BY_SCOPE[scope])
    many_tasks(3, **BY_SCOPE[scope])
    limit(scope, 5)
    assert len(claim()) == 1


@pytest.mark.parametrize("scope", BY_SCOPE)
@pytest.mark.parametrize(("weight", "burst"), [(1, 3), (3, 7)])
def test_a_task_takes_as_many_tokens_as_it_weighs(scope: str, weight: int, burst: int) -> None:
    many_tasks(5, weight=weight, **BY_SCOPE[scope])
    limit(scope, rate="1/d", burst=burst)
    assert len(claim()) == burst // weight
    release_waiting()
    assert claim() == []
    left = burst % weight
    assert LimitBucket.objects.get(scope=scope).tokens == pytest.approx(left, abs=0.01)


# Waiting for capacity -----------------------------------------------------------------------------


@pytest.mark.parametrize("scope", BY_SCOPE)
def test_a_stream_of_light_tasks_does_not_starve_a_heavy_one(scope: str) -> None:
    fields = BY_SCOPE[scope]
    running = many_tasks(4, Status.QUEUED, **fields)
    heavy = a_task(due=-9, weight=3, **fields)
    limit(scope, 4)
    for row in running[:3]:
        task_claim.claim_these([heavy.pk], database_now(), NODE)
        end(row.pk)
        late = many_tasks(3, queue="other" if scope != f"queue:{QUEUE}" else QUEUE, **fields)
        assert claim(queue=late[0].queue) == []
        if row is not running[2]:
            release_waiting()
            assert heavy.pk not in claim()
    release_waiting()
    # A claim of another queue comes in between; the capacity that the heavy task waits for stays reserved.
    assert claim(queue="other") == []
    assert claim() == [heavy.pk]
    assert _weight_in_use() == 4


def test_a_more_urgent_task_passes_a_waiting_heavy_one() -> None:
    many_tasks(3, Status.QUEUED)
    heavy = a_task(due=-9, weight=3)
    limit(SCOPE, 4)
    assert claim() == []
    urgent = a_task(priority=5)
    assert claim() == [urgent.pk]
    assert Task.objects.waiting_for_limit().get().pk == heavy.pk


def test_waiting_tasks_behind_a_heavy_one_wait_for_their_turn() -> None:
    first = many_tasks(4, Status.QUEUED)
    heavy, light = a_task(due=-9, weight=2), a_task(due=-8)
    limit(SCOPE, 4)
    claim()
    task_claim.claim_these([heavy.pk, light.pk], database_now(), NODE)
    end(first[0].pk)
    assert release_waiting() == 0
    end(first[1].pk)
    assert release_waiting() == 1
    assert claim() == [heavy.pk]


def test_a_task_heavier_than_the_whole_limit_does_not_block_others_and_says_so() -> None:
    never, light = a_task(due=-9, weight=5), many_tasks(3)
    limit(SCOPE, 2)
    assert claim() == ids(light[:2])
    end(*ids(light[:2]))
    release_waiting()
    assert claim() == [light[2].pk]
    never.refresh_from_db()
    assert (
        f"It can never start: it weighs 5, and the whole limit {SCOPE} is 2."
        in operator_limits.why(never)
    )
    warnings = durable("status", "--format", "json").data["warnings"]
    assert any("Tasks of weight 5 wait for the limit" in warning for warning in warnings)
    limit(SCOPE, 6)
    assert release_waiting() == 1
    assert claim() == [never.pk]


@pytest.mark.parametrize("is_paused", [True, False], ids=["paused queue", "another limit"])
def test_a_heavy_task_that_something_else_blocks_does_not_block_others(is_paused: bool) -> None:
    (running,) = many_tasks(1, Status.QUEUED, weight=3)
    heavy = a_task(due=-9, weight=3)
    limit(SCOPE, 4)
    claim()
    waiting = Task.objects.waiting_for_limit().get()
    assert (waiting.pk, waiting.waiting_for_limit) == (heavy.pk, SCOPE)
    end(running.pk)
    if is_paused:
        a_paused_queue()
    else:
        limit(f"queue:{QUEUE}", 0)
    many_tasks(3, queue="other")
    assert len(claim(queue="other")) == 3
    assert not is_paused or release_waiting() == 0


# Rates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", BY_SCOPE)
def test_tokens_accumulate_for_a_heavy_task_and_light_ones_leave_them(scope: str) -> None:
    fields = BY_SCOPE[scope]
    a_task(due=-99, **fields)
    limit(scope, rate="1/m")
    assert len(claim()) == 1
    heavy = a_task(due=-50, weight=3, **fields)
    for _ in range(3):
        assert claim() == []
        task_claim.claim_these([heavy.pk], database_now(), NODE)
        many_tasks(2, **fields)
        release_waiting()
        assert claim() == []
        _refill(scope, 60)
    release_waiting()
    assert claim() == [heavy.pk]
    assert LimitBucket.objects.get(scope=scope).tokens == pytest.approx(0.0, abs=0.2)


@pytest.mark.usefixtures("limited_tasks")
def test_a_rate_limit_per_key_applies_beside_the_concurrency_limit() -> None:
    for customer in ("acme", "acme", "zenith"):
        limited.slowly_for_each.using(queue=QUEUE).delay(customer)
    claim()
    assert sorted(Task.objects.queued().values_list("limit_key", flat=True)) == ["acme", "zenith"]
    Task.objects.unguarded().queued().update(status=Status.SUCCESS, due_at=None)
    assert release_waiting() == 0
    assert LimitBucket.objects.get(scope="key:acme").tokens == pytest.approx(0.0, abs=0.01)
    row = Task.objects.waiting_for_limit().get()
    assert "the limit key:acme, 0 of 1 taken, 0 starts free at 2/d" in operator_limits.why(row)
    _refill("key:acme", 43_200)
    assert release_waiting() == 1
    assert claim() == [row.pk]


@pytest.mark.usefixtures("limited_tasks")
def test_a_task_with_a_rate_limit_per_key_is_never_created_published() -> None:
    assert (
        Task.objects.get(pk=limited.ten_a_minute_for_each.delay("acme").id).status == Status.PENDING
    )


@pytest.mark.usefixtures("limited_tasks")
def test_an_operator_limit_overrides_the_rate_limit_per_key() -> None:
    limited.ten_a_minute_for_each.using(queue=QUEUE).schedule_many([("acme",)] * 4)
    limit("key:acme", rate="1/d", burst=3)
    assert len(claim()) == 3


# Release ------------------------------------------------------------------------------------------


def test_tasks_whose_queue_has_no_capacity_are_not_released() -> None:
    paused, full, open_ = (waiting_for(2, queue=queue) for queue in ("paused", "full", QUEUE))
    a_paused_queue("paused")
    many_tasks(1_000, Status.QUEUED, queue="full", name="other")
    limit(SCOPE, 3)
    assert release_waiting() == 2
    waiting = Task.objects.waiting_for_limit().values_list("pk", flat=True)
    assert set(waiting) == {*ids(paused), *ids(full)}
    assert claim() == ids(open_)


def test_an_urgent_task_is_released_although_the_window_of_its_queue_is_full() -> None:
    urgent = waiting_for(1, priority=9)[0]
    waiting_for(1)
    many_tasks(1_000, Status.QUEUED, name="other")
    limit(SCOPE, 3)
    assert release_waiting() == 1
    assert Task.objects.pending().exclude(due_at=NEVER).get().pk == urgent.pk


def test_a_released_task_is_not_released_again() -> None:
    waiting_for(1)
    limit(SCOPE, 3)
    assert (release_waiting(), release_waiting()) == (1, 0)


def test_a_bucket_with_an_impossible_clock_continues_by_the_current_one() -> None:
    many_tasks(3)
    limit(SCOPE, rate="10/m", burst=1)
    assert len(claim()) == 1
    ahead = database_now() + timedelta(hours=2)
    LimitBucket.objects.filter(scope=SCOPE).update(refilled_at=ahead)
    claim()
    assert release_waiting() == 0
    bucket = LimitBucket.objects.get(scope=SCOPE)
    assert bucket.refilled_at is not None
    assert bucket.refilled_at < ahead - timedelta(hours=1)
    _refill(SCOPE, 6.5)
    assert release_waiting() == 1
    assert len(claim()) == 1


@pytest.mark.usefixtures("limited_tasks")
def test_a_replay_keeps_its_weight(limited_tasks: None) -> None:
    row = limited.heavy.schedule()
    operator_actions.move(Task.objects.filter(pk=row.pk), database_now())
    assert Task.objects.get().weight == 3
    assert release.release_waiting(database_now(), 10) == 0
    assert uuid.UUID(str(row.pk)) == row.pk

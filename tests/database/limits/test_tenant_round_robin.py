"""Tenants take turns where a queue has a rate: whoever comes with one row gets a start soon, and no
start is lost.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence

import pytest
from django.db.models import F

from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.limits import operator_limits, release
from django_durable_tasks.engine.tasks import claim as task_claim
from django_durable_tasks.models import LimitBucket, Task, Tenant
from django_durable_tasks.models.task_queries import NEVER
from django_durable_tasks.rules.states import Status
from tests.database.limits.limited_tasks import NODE, claim, end, limit
from tests.factories import QUEUE, a_paused_queue, a_task, a_tenant, many_tasks
from tests.process_state import new_process_state

pytestmark = pytest.mark.django_db
SCOPE = f"queue:{QUEUE}"


@pytest.fixture(autouse=True)
def nobody_had_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin each round of turns with the first tenant, and look at 200 rows where a scheduler looks
    at 2,000.
    """
    new_process_state()
    monkeypatch.setattr(release, "_AHEAD", 200)


def _tokens_come(number: float, scope: str = SCOPE) -> None:
    LimitBucket.objects.update_or_create(
        scope=scope, defaults={"tokens": number, "refilled_at": database_now()}
    )


def _turn(tokens: float = 1, scope: str = SCOPE) -> list[uuid.UUID]:
    """Let tokens come, and do what a scheduler's round does with them; what started has ended at
    the next turn.
    """
    _tokens_come(tokens, scope)
    release.release_waiting(database_now(), 500)
    found = claim()
    end(*found)
    return found


def _whose(ids: Sequence[uuid.UUID]) -> list[int]:
    of = dict(Task.objects.filter(pk__in=ids).values_list("pk", "tenant_id"))
    return [of[key] for key in ids]


def _slow(rate: str = "2/d", scope: str = SCOPE) -> None:
    """Limit the queue so that no token comes back by itself while a test runs."""
    limit(scope, rate=rate, burst=50)
    _tokens_come(0, scope)


def test_whoever_comes_with_one_row_does_not_wait_behind_thousands() -> None:
    noisy, quiet = a_tenant(), a_tenant()
    _slow()
    many_tasks(600, tenant=noisy, due=-500)
    for _ in range(3):
        assert _whose(_turn()) == [noisy.pk]
    one = a_task(tenant=quiet)
    turns = [_turn() for _ in range(3)]
    assert [one.pk] in turns
    assert all(len(turn) == 1 for turn in turns)


def test_the_rows_at_the_head_are_seen_through_within_few_turns() -> None:
    noisy, quiet = a_tenant(), a_tenant()
    _slow()
    many_tasks(1_300, tenant=noisy, due=-500)
    one = a_task(tenant=quiet, due=-1)
    started: list[uuid.UUID] = []
    for _ in range(6):
        LimitBucket.objects.filter(scope=SCOPE).update(tokens=F("tokens") + 1)
        release.release_waiting(database_now(), 500)
        started += claim()
    assert one.pk in started
    tokens = LimitBucket.objects.get(scope=SCOPE).tokens
    assert len(started) + tokens == pytest.approx(6, abs=0.1)


@pytest.mark.parametrize("scope", [SCOPE, "global"])
def test_tenants_who_wait_have_the_same_number_of_starts(scope: str) -> None:
    tenants = [a_tenant() for _ in range(3)]
    _slow(scope=scope)
    for number, tenant in enumerate(tenants):
        many_tasks(200 // (number + 1), tenant=tenant, due=-500 + number)
    started = Counter(tenant for _ in range(12) for tenant in _whose(_turn(scope=scope)))
    assert started == {tenant.pk: 4 for tenant in tenants}


def test_several_tokens_at_once_are_parted() -> None:
    first, second = a_tenant(), a_tenant()
    _slow()
    many_tasks(100, tenant=first, due=-500)
    many_tasks(100, tenant=second, due=-1)
    assert Counter(_whose(_turn(10))) == {first.pk: 5, second.pk: 5}


def test_a_tenant_for_whom_nobody_else_waits_has_the_whole_rate() -> None:
    noisy, _quiet = a_tenant(), a_tenant()
    _slow()
    many_tasks(300, tenant=noisy, due=-500)
    assert [len(_turn(tokens)) for tokens in (1, 7, 20, 1)] == [1, 7, 20, 1]


def test_a_row_that_nobody_is_before_goes_at_once_and_is_never_parked() -> None:
    a_tenant()
    _slow()
    one = a_task(tenant=a_tenant())
    _tokens_come(2)
    assert claim() == [one.pk]


def test_rows_that_come_at_their_instant_take_no_turn_from_those_who_wait() -> None:
    first, second = a_tenant(), a_tenant()
    _slow()
    many_tasks(5, tenant=first, due=-500)
    claim()
    assert Task.objects.waiting_for_limit().count() == 5
    (at_its_instant,) = many_tasks(1, tenant=second)
    _tokens_come(1)
    assert task_claim.claim_these([at_its_instant.pk], database_now(), NODE) == []
    assert Task.objects.get(pk=at_its_instant.pk).waiting_for_limit == f"share:{QUEUE}:{second.pk}"


def test_the_order_of_one_tenants_rows_is_that_of_priority_and_age() -> None:
    noisy, _other = a_tenant(), a_tenant()
    _slow()
    rows = [a_task(tenant=noisy, due=-9, priority=priority) for priority in (0, 5, 0, 9)]
    assert [_turn() for _ in rows] == [[rows[3].pk], [rows[1].pk], [rows[0].pk], [rows[2].pk]]


def test_very_many_other_lines_hide_no_tenants_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_claim, "_TOGETHER", 3)
    tenants = [a_tenant() for _ in range(5)]
    _slow()
    for number in range(6):
        many_tasks(
            1,
            queue="other",
            name="other",
            due_at=NEVER,
            waiting_for_limit=f"key:{number}",
            limit_key=str(number),
        )
    for tenant in tenants:
        many_tasks(20, tenant=tenant)
    a_paused_queue("other")
    started = Counter(tenant for _ in range(10) for tenant in _whose(_turn()))
    assert started == {tenant.pk: 2 for tenant in tenants}


def test_a_heavy_rows_turn_is_kept_until_its_tokens_have_come() -> None:
    first, second = a_tenant(), a_tenant()
    _slow()
    heavy = a_task(tenant=first, weight=3, due=-9)
    many_tasks(20, tenant=second, due=-8)
    claim()
    starts = [_turn(tokens) for tokens in (1, 2, 3)]
    assert heavy.pk in [key for turn in starts for key in turn]


def test_nothing_goes_of_a_paused_queue_and_its_turns_wait() -> None:
    noisy, _other = a_tenant(), a_tenant()
    _slow()
    many_tasks(5, tenant=noisy, due=-9)
    claim()
    a_paused_queue()
    _tokens_come(5)
    assert release.release_waiting(database_now(), 100) == 0


def test_a_tenant_for_whom_nobody_else_waits_has_all_places_of_a_limited_queue() -> None:
    noisy, quiet = a_tenant(), a_tenant()
    many_tasks(20, tenant=noisy, due=-100)
    limit(SCOPE, 4)
    for _ in range(2):
        claim()
        release.release_waiting(database_now(), 100)
    claim()
    assert Counter(Task.objects.queued().values_list("tenant_id", flat=True)) == {noisy.pk: 4}
    one = a_task(tenant=quiet)
    end(Task.objects.queued().values_list("pk", flat=True)[0])
    release.release_waiting(database_now(), 100)
    claim()
    assert Task.objects.get(pk=one.pk).status == Status.QUEUED


def test_a_waiting_task_says_that_its_turn_comes() -> None:
    noisy: Tenant = a_tenant()
    a_tenant()
    _slow()
    many_tasks(2, tenant=noisy, due=-9)
    claim()
    assert "waits for its turn" in operator_limits.why(Task.objects.waiting_for_limit()[0])

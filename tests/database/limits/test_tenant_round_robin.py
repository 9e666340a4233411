"""In a queue with a rate limit, tenants alternate: a tenant with one task starts soon, and no token
is lost.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence

import pytest
from django.db.models import F

from django_durable_tasks.choices import Status
from django_durable_tasks.limits import operator_limits, release
from django_durable_tasks.models import LimitBucket, Task, Tenant
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim as task_claim
from tests.database.limits.limited_tasks import NODE, claim, end, limit
from tests.factories import QUEUE, a_paused_queue, a_task, a_tenant, many_tasks
from tests.process_state import new_process_state

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("many_processes")]
SCOPE = f"queue:{QUEUE}"


@pytest.fixture(autouse=True)
def fresh_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each round with the first tenant, and read 200 tasks where a scheduler reads 2,000."""
    new_process_state()
    monkeypatch.setattr(release, "AHEAD", 200)


def _add_tokens(number: float, scope: str = SCOPE) -> None:
    LimitBucket.objects.update_or_create(
        scope=scope, defaults={"tokens": number, "refilled_at": database_now()}
    )


def _round(tokens: float = 1, scope: str = SCOPE) -> list[uuid.UUID]:
    """Add tokens and do one round of a scheduler. Tasks that started have ended at the next round."""
    _add_tokens(tokens, scope)
    release.release_waiting(database_now(), 500)
    found = claim()
    end(*found)
    return found


def _tenants_of(ids: Sequence[uuid.UUID]) -> list[int]:
    of = dict(Task.objects.filter(pk__in=ids).values_list("pk", "tenant_id"))
    return [of[key] for key in ids]


def _slow(rate: str = "2/d", scope: str = SCOPE) -> None:
    """Limit the queue so that no token is refilled while a test runs."""
    limit(scope, rate=rate, burst=50)
    _add_tokens(0, scope)


def test_a_tenant_with_one_task_does_not_wait_behind_thousands() -> None:
    noisy, quiet = a_tenant(), a_tenant()
    _slow()
    many_tasks(600, tenant=noisy, due=-500)
    for _ in range(3):
        assert _tenants_of(_round()) == [noisy.pk]
    one = a_task(tenant=quiet)
    turns = [_round() for _ in range(3)]
    assert [one.pk] in turns
    assert all(len(turn) == 1 for turn in turns)


def test_unstartable_tasks_at_the_head_are_passed_within_few_rounds() -> None:
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
def test_waiting_tenants_have_the_same_number_of_starts(scope: str) -> None:
    tenants = [a_tenant() for _ in range(3)]
    _slow(scope=scope)
    for number, tenant in enumerate(tenants):
        many_tasks(200 // (number + 1), tenant=tenant, due=-500 + number)
    started = Counter(tenant for _ in range(12) for tenant in _tenants_of(_round(scope=scope)))
    assert started == {tenant.pk: 4 for tenant in tenants}


def test_several_tokens_at_once_are_divided() -> None:
    first, second = a_tenant(), a_tenant()
    _slow()
    many_tasks(100, tenant=first, due=-500)
    many_tasks(100, tenant=second, due=-1)
    assert Counter(_tenants_of(_round(10))) == {first.pk: 5, second.pk: 5}


def test_a_tenant_without_competitors_has_the_whole_rate() -> None:
    noisy, _quiet = a_tenant(), a_tenant()
    _slow()
    many_tasks(300, tenant=noisy, due=-500)
    assert [len(_round(tokens)) for tokens in (1, 7, 20, 1)] == [1, 7, 20, 1]


def test_a_task_without_competitors_starts_at_once_and_never_waits() -> None:
    a_tenant()
    _slow()
    one = a_task(tenant=a_tenant())
    _add_tokens(2)
    assert claim() == [one.pk]


def test_newly_due_tasks_do_not_take_the_turn_of_waiting_tenants() -> None:
    first, second = a_tenant(), a_tenant()
    _slow()
    many_tasks(5, tenant=first, due=-500)
    claim()
    assert Task.objects.waiting_for_limit().count() == 5
    (at_its_instant,) = many_tasks(1, tenant=second)
    _add_tokens(1)
    assert task_claim.claim_these([at_its_instant.pk], database_now(), NODE) == []
    assert Task.objects.get(pk=at_its_instant.pk).waiting_for_limit == f"share:{QUEUE}:{second.pk}"


def test_the_tasks_of_one_tenant_start_by_priority_and_age() -> None:
    noisy, _other = a_tenant(), a_tenant()
    _slow()
    rows = [a_task(tenant=noisy, due=-9, priority=priority) for priority in (0, 5, 0, 9)]
    assert [_round() for _ in rows] == [[rows[3].pk], [rows[1].pk], [rows[0].pk], [rows[2].pk]]


def test_very_many_other_waitlists_do_not_hide_the_turn_of_a_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    started = Counter(tenant for _ in range(10) for tenant in _tenants_of(_round()))
    assert started == {tenant.pk: 2 for tenant in tenants}


def test_the_turn_of_a_heavy_task_is_kept_until_its_tokens_have_been_refilled() -> None:
    first, second = a_tenant(), a_tenant()
    _slow()
    heavy = a_task(tenant=first, weight=3, due=-9)
    many_tasks(20, tenant=second, due=-8)
    claim()
    starts = [_round(tokens) for tokens in (1, 2, 3)]
    assert heavy.pk in [key for turn in starts for key in turn]


def test_no_task_of_a_paused_queue_starts_and_its_turn_is_kept() -> None:
    noisy, _other = a_tenant(), a_tenant()
    _slow()
    many_tasks(5, tenant=noisy, due=-9)
    claim()
    a_paused_queue()
    _add_tokens(5)
    assert release.release_waiting(database_now(), 100) == 0


def test_a_tenant_without_competitors_has_the_whole_capacity_of_a_limited_queue() -> None:
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


def test_a_waiting_task_explains_that_its_turn_comes() -> None:
    noisy: Tenant = a_tenant()
    a_tenant()
    _slow()
    many_tasks(2, tenant=noisy, due=-9)
    claim()
    assert "waits for its turn" in operator_limits.why(Task.objects.waiting_for_limit()[0])

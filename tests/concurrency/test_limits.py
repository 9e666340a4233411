"""Whoever claims at once, a scope never has more rows under way than its limit, and a rate never more starts."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from django_durable_tasks.lifecycle import claims, limits, parking, transitions
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.models import Limit, Task
from django_durable_tasks.models.limit_bucket import LOCK, LimitBucket
from django_durable_tasks.rules.states import Status
from tests.concurrency.racing import no_errors, race
from tests.factories import NOOP, QUEUE, many_tasks

_ROUNDS = 6


def _limit(scope: str, places: int | None = None, rate: str = "", burst: float | None = None) -> None:
    Limit.objects.create(scope=scope, max_concurrency=places, rate=rate, burst=burst)
    limits.forget_picture()


def _claim(queue: str = QUEUE) -> int:
    return len(claims.claim(queue, database_now(), 10, uuid.uuid4()))


def _end_some() -> None:
    ids = list(Task.objects.queued().order_by("pk").values_list("pk", flat=True)[:2])
    transitions.cancel(Task.objects.filter(pk__in=ids), "DONE")


@pytest.mark.parametrize("racers", [2, 8])
@pytest.mark.parametrize("scope", [f"task:{NOOP}", "tenant:1", "key:acme", f"queue:{QUEUE}", "global"])
def test_claims_at_once_never_exceed_the_places_of_a_scope(scope: str, racers: int) -> None:
    queues = [QUEUE, QUEUE if scope.startswith("queue:") else "other"]
    for queue in queues:
        many_tasks(40, queue=queue, limit_key="acme")
    _limit(scope, 3)
    for _ in range(_ROUNDS):
        no_errors(race([partial(_claim, queues[number % 2]) for number in range(racers)]))
        assert Task.objects.filter(status__in=[Status.QUEUED, Status.RUNNING]).count() <= 3
        _end_some()
        no_errors(race([partial(parking.let_go, database_now(), 50)] * 2))
    _claim()
    assert Task.objects.queued().count() == 3


def test_claims_at_once_never_exceed_a_rate() -> None:
    many_tasks(100)
    _limit(f"task:{NOOP}", rate="1/d", burst=7)
    claimed = no_errors(race([_claim] * 8))
    assert sum(claimed) == 7


def test_claims_and_verbs_of_operators_do_not_wait_for_each_other_for_ever() -> None:
    many_tasks(60)
    _limit(f"task:{NOOP}", 5)

    def cancel() -> int:
        return transitions.cancel(Task.objects.filter(name=NOOP).order_by("pk"), "BY_HAND")

    for _ in range(_ROUNDS):
        acts: list[Callable[[], int]] = [_claim, _claim, partial(parking.let_go, database_now(), 50), cancel]
        answers = Counter(type(answer).__name__ for answer in race(acts))
        assert answers == {"int": 4}
        many_tasks(60)


def test_the_lock_is_made_again_where_its_row_is_gone() -> None:
    many_tasks(20)
    _limit(f"task:{NOOP}", 3)
    LimitBucket.objects.all().delete()
    assert sum(no_errors(race([_claim] * 4))) == 3
    assert LimitBucket.objects.filter(pk=LOCK).exists()


@pytest.mark.postgresql
def test_without_the_lock_the_limit_would_be_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking, "hold_lock", lambda: None)
    _limit(f"task:{NOOP}", 1)
    most = 0
    for _ in range(20):
        many_tasks(40)
        no_errors(race([_claim] * 8))
        most = max(most, Task.objects.queued().count())
        Task.objects.all().delete()
        if most > 1:
            return
    pytest.fail("no race was met: the test above this one proves nothing")

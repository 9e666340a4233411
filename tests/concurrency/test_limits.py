"""Concurrent claims never exceed a concurrency limit or a rate limit."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest
from django.db import Error, OperationalError, connection
from django.db import connections as dj_connections

from django_durable_tasks.choices import Status
from django_durable_tasks.limits import config, release, waitlist
from django_durable_tasks.limits.scopes import Allowance, rate_of
from django_durable_tasks.models import Limit, Task
from django_durable_tasks.models.cluster import LOCK, LimitBucket
from django_durable_tasks.states import endings
from django_durable_tasks.store import connections, tables
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import RunLocation
from tests.concurrency.racing import WITHIN, no_errors, race
from tests.factories import NOOP, QUEUE, a_node, a_tenant, many_tasks, take_batch
from tests.messages import claim_due
from tests.process_state import new_process_state
from tests.repetitions import repetitions

_ROUNDS = repetitions(6)


def _limit(
    scope: str, places: int | None = None, rate: str = "", burst: float | None = None
) -> None:
    Limit.objects.create(scope=scope, max_concurrency=places, rate=rate, burst=burst)
    new_process_state()


def _claim(queue: str = QUEUE) -> int:
    return len(claim_due(queue, database_now(), 10, uuid.uuid4()))


def _end_some() -> None:
    ids = list(Task.objects.queued().order_by("pk").values_list("pk", flat=True)[:2])
    endings.cancel(Task.objects.filter(pk__in=ids), "DONE")


@pytest.mark.parametrize("racers", [2, 8])
@pytest.mark.parametrize(
    "scope", [f"task:{NOOP}", "tenant:1", "key:acme", f"queue:{QUEUE}", "global"]
)
def test_concurrent_claims_never_exceed_a_concurrency_limit(scope: str, racers: int) -> None:
    queues = [QUEUE, QUEUE if scope.startswith("queue:") else "other"]
    for queue in queues:
        many_tasks(40, queue=queue, limit_key="acme")
    _limit(scope, 3)
    for _ in range(_ROUNDS):
        no_errors(race([partial(_claim, queues[number % 2]) for number in range(racers)]))
        assert Task.objects.filter(status__in=[Status.QUEUED, Status.RUNNING]).count() <= 3
        _end_some()
        no_errors(race([partial(release.release_waiting, database_now(), 50)] * 2))
    _claim()
    assert Task.objects.queued().count() == 3


def test_concurrent_claims_never_exceed_a_rate_limit() -> None:
    many_tasks(100)
    _limit(f"task:{NOOP}", rate="1/d", burst=7)
    claimed = no_errors(race([_claim] * 8))
    assert sum(claimed) == 7


@pytest.mark.parametrize("scope", [f"task:{NOOP}", "key:acme", f"queue:{QUEUE}"])
def test_concurrent_claims_never_exceed_a_concurrency_limit_by_weight(scope: str) -> None:
    queues = [QUEUE, QUEUE if scope.startswith("queue:") else "other"]
    for number, queue in enumerate(queues * 2):
        many_tasks(8, queue=queue, limit_key="acme", weight=number + 1)
    _limit(scope, 5)
    for _ in range(_ROUNDS):
        no_errors(race([partial(_claim, queues[number % 2]) for number in range(6)]))
        assert _weight_in_use() <= 5
        _end_some()
        no_errors(race([partial(release.release_waiting, database_now(), 50)] * 2))
    assert Task.objects.exclude(status=Status.PENDING).count() > _ROUNDS


def _weight_in_use() -> int:
    held = Task.objects.filter(status__in=[Status.QUEUED, Status.RUNNING])
    return sum(held.values_list("weight", flat=True))


def test_a_heavy_task_starts_although_light_ones_start_and_end_concurrently() -> None:
    heavy = many_tasks(1, weight=3, due=-99)[0]
    many_tasks(12, Status.QUEUED, queue="other")
    _limit(f"task:{NOOP}", 4)
    waiting, rounds = True, 0
    while waiting:
        many_tasks(4, queue="other")
        acts: list[Callable[[], int]] = [
            _claim,
            partial(_claim, "other"),
            partial(_claim, "other"),
            partial(release.release_waiting, database_now(), 50),
        ]
        no_errors(race(acts))
        waiting, rounds = (
            Task.objects.filter(pk=heavy.pk, status=Status.PENDING).exists(),
            rounds + 1,
        )
        light = (
            Task.objects.queued().filter(weight=1).order_by("pk").values_list("pk", flat=True)[:2]
        )
        endings.cancel(Task.objects.filter(pk__in=list(light)), "DONE")
        assert rounds < 60, "light rows keep the heavy one waiting"
    assert Task.objects.filter(weight=1, status=Status.PENDING).exists()


def test_concurrent_claims_never_exceed_a_rate_limit_by_weight() -> None:
    many_tasks(30, weight=2)
    _limit(f"task:{NOOP}", rate="1/d", burst=7)
    assert sum(no_errors(race([_claim] * 8))) == 3


def test_concurrent_claims_never_exceed_the_rate_limit_of_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many_tasks(30, limit_key="acme")
    many_tasks(30, limit_key="zenith")
    coded = {NOOP: Allowance(None, rate_of("rate_limit", "1/d"))}
    monkeypatch.setattr(config, "read", lambda: config.LimitConfig({}, coded))
    new_process_state()
    for _ in range(3):
        no_errors(race([_claim] * 6))
    assert Counter(Task.objects.queued().values_list("limit_key", flat=True)) == {
        "acme": 1,
        "zenith": 1,
    }


def test_claims_of_alternating_tenants_never_exceed_the_rate_limit_of_their_queue() -> None:
    a_node(concurrency=60, queues=[QUEUE])
    for tenant in (a_tenant(), a_tenant()):
        many_tasks(30, tenant=tenant)
    _limit(f"queue:{QUEUE}", rate="1/d", burst=6)
    for _ in range(3):
        no_errors(
            race([_claim, _claim, _claim, partial(release.release_waiting, database_now(), 50)])
        )
    # Not asserted: whose tasks. A claim skips the tasks that a concurrent one has locked, so that
    # tenants take turns only among the others.
    assert Task.objects.queued().count() == 6


def test_concurrent_batches_never_exceed_a_concurrency_limit() -> None:
    many_tasks(20, weight=2, in_batch=True)
    _limit(f"task:{NOOP}", 5)
    place = RunLocation(node=uuid.uuid4(), worker="worker@host", lease=60.0)

    def take() -> int:
        return len(take_batch(10, place))

    assert sum(no_errors(race([take] * 6))) == 2
    assert Task.objects.running().count() == 2


def test_tasks_of_concurrent_batches_cost_a_token_each() -> None:
    many_tasks(60, in_batch=True)
    _limit(f"task:{NOOP}", rate="1/d", burst=40)
    place = RunLocation(node=uuid.uuid4(), worker="worker@host", lease=60.0)

    def take() -> int:
        return len(take_batch(5, place))

    for _ in range(3):
        no_errors(race([take] * 6))
    while take():
        pass
    assert Task.objects.running().count() == 40


@contextmanager
def _frozen_lock(patience: connections.TimeLimits) -> Iterator[None]:
    """Let another thread keep the lock of all limits until the block ends."""
    holds, may_go = threading.Event(), threading.Event()

    def freeze() -> None:
        with suppress(Error), connections.dedicated_connection(patience), tables.atomic():
            waitlist.lock_limits()
            holds.set()
            assert may_go.wait(WITHIN)

    thread = threading.Thread(target=freeze, daemon=True)
    thread.start()
    assert holds.wait(WITHIN)
    try:
        yield
    finally:
        may_go.set()
        thread.join(WITHIN)


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_waiting_for_the_lock_of_a_frozen_scheduler_times_out() -> None:
    many_tasks(3)
    _limit(f"task:{NOOP}", 2)
    with _frozen_lock(connections.WORK):
        with (
            pytest.raises(OperationalError),
            connections.dedicated_connection(connections.TimeLimits(lock=1.0)),
        ):
            _claim()
        assert not Task.objects.queued().exists()
    assert _claim() == 2


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_the_database_aborts_a_frozen_scheduler_and_others_continue() -> None:
    many_tasks(3)
    _limit(f"task:{NOOP}", 2)
    with (
        _frozen_lock(connections.TimeLimits(idle=1.0)),
        connections.dedicated_connection(connections.TimeLimits(lock=WITHIN)),
    ):
        assert _claim() == 2


@pytest.mark.postgresql
def test_behind_a_pooler_the_transaction_itself_has_the_timeouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pooled = {**connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS": True}
    monkeypatch.setitem(dj_connections.settings, "default", pooled)
    connections.close_all()
    asked = (
        "SELECT current_setting('lock_timeout'),"
        " current_setting('idle_in_transaction_session_timeout')"
    )
    with connections.dedicated_connection(), dj_connections["default"].cursor() as cursor:
        with tables.atomic():
            waitlist.lock_limits()
            cursor.execute(asked)
            assert cursor.fetchone() == ("5s", "10s")
        cursor.execute(asked)
        assert cursor.fetchone() == ("0", "0")


def test_claims_and_operations_do_not_deadlock() -> None:
    many_tasks(60)
    _limit(f"task:{NOOP}", 5)

    def cancel() -> int:
        return endings.cancel(Task.objects.filter(name=NOOP).order_by("pk"), "BY_HAND")

    for _ in range(_ROUNDS):
        acts: list[Callable[[], int]] = [
            _claim,
            _claim,
            partial(release.release_waiting, database_now(), 50),
            cancel,
        ]
        answers = Counter(type(answer).__name__ for answer in race(acts))
        assert answers == {"int": 4}
        many_tasks(60)


def test_a_deleted_lock_row_is_inserted_again() -> None:
    many_tasks(20)
    _limit(f"task:{NOOP}", 3)
    LimitBucket.objects.all().delete()
    assert sum(no_errors(race([_claim] * 4))) == 3
    assert LimitBucket.objects.filter(pk=LOCK).exists()


@pytest.mark.postgresql
def test_without_the_lock_the_limit_would_be_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waitlist, "lock_limits", database_now)
    _limit(f"task:{NOOP}", 1)
    most = 0
    for _ in range(20):
        many_tasks(40)
        no_errors(race([_claim] * 8))
        most = max(most, Task.objects.queued().count())
        Task.objects.unguarded().all().delete()
        if most > 1:
            return
    pytest.fail("no race was met: the test above this one proves nothing")

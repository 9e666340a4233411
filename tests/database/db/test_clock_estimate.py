"""A host clock that is five minutes off decides nothing. The database's clock decides what is due."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest
from celery.exceptions import Retry
from django.db import transaction

from django_durable_tasks import process_state
from django_durable_tasks.celery.gate import outcome_of
from django_durable_tasks.celery.worker_node import NodeBeat
from django_durable_tasks.choices import Status
from django_durable_tasks.dependencies import resolve
from django_durable_tasks.models import Node, NodeKind, Task
from django_durable_tasks.states import dependencies
from django_durable_tasks.store import clock
from django_durable_tasks.store.clock import database_now
from tests.process_state import new_process_state
from tests.project import bodies

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql, pytest.mark.mariadb]
NEAR = timedelta(seconds=20)


def _set_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    right = vars(clock)["datetime"].now

    class Shifted:
        """The class datetime, as far as the host's clock uses it."""

        @staticmethod
        def now(zone: tzinfo) -> datetime:
            at: datetime = right(zone)
            return at + timedelta(seconds=seconds)

    monkeypatch.setattr(clock, "datetime", Shifted)


@pytest.fixture(autouse=True)
def _discard_clock_sample(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    new_process_state()
    yield
    new_process_state()


@pytest.fixture(params=[-300, 300])
def shift(request: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """Shift the host's clock by this number of seconds."""
    _set_clock(monkeypatch, request.param)
    seconds: int = request.param
    return seconds


def _create(run_at: datetime | None) -> str:
    row = bodies.add.using(run_at=run_at).schedule(1, 2)
    status: str = Task.objects.values_list("status", flat=True).get(pk=row.pk)
    return status


def test_a_task_is_published_at_once_only_if_it_is_due_by_the_clock_of_the_database(
    shift: int,
) -> None:
    assert _create(database_now() + timedelta(seconds=100)) == Status.PENDING
    assert _create(database_now() - timedelta(seconds=100)) == Status.QUEUED
    assert _create(None) == Status.QUEUED


def test_a_countdown_is_added_to_the_clock_of_the_database(shift: int) -> None:
    row = Task.objects.get(pk=bodies.add.apply_async((1, 2), countdown=100).id)
    assert abs(row.run_at - database_now() - timedelta(seconds=100)) < NEAR


def test_a_retry_at_an_instant_waits_by_the_clock_of_the_database(shift: int) -> None:
    outcome = outcome_of(
        Retry(when=database_now().astimezone(UTC) + timedelta(seconds=100)),
        bodies.add.durable_options,
    )
    assert outcome.delay is not None
    assert abs(outcome.delay - 100) < NEAR.total_seconds()


def test_a_released_task_is_published_only_if_it_is_due_by_the_clock_of_the_database(
    shift: int,
) -> None:
    first = bodies.add.schedule(1, 2)
    for wait, status in ((100, Status.PENDING), (-100, Status.QUEUED)):
        run_at = database_now() + timedelta(seconds=wait)
        row = bodies.add.using(depends_on=[first], run_at=run_at).schedule(1, 2)
        with transaction.atomic():
            messages = resolve.release(list(dependencies.lock_rows([row.pk]).values()))
        assert Task.objects.get(pk=row.pk).status == status
        assert len(messages) == (status == Status.QUEUED)


def test_an_instant_never_counts_as_past_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_clock(monkeypatch, 300)
    assert not clock.has_passed(database_now() + timedelta(seconds=5))
    assert clock.has_passed(database_now() - timedelta(seconds=5))
    before = database_now()
    assert before - NEAR < clock.estimated_now() < database_now() + NEAR


def test_the_clock_skew_of_a_node_is_measured_and_logged_once_per_increase(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, shift: int
) -> None:
    beat = NodeBeat(uuid.uuid4(), "scheduler", NodeKind.SCHEDULER)
    with caplog.at_level(logging.ERROR, "django_durable_tasks.nodes"):
        for _ in range(14):
            beat._beat()
        assert len(caplog.records) == 1
        _set_clock(monkeypatch, shift)
        for _ in range(6):
            beat._beat()
        assert len(caplog.records) == 2
    skew = Node.objects.get(pk=beat.node).skew
    assert skew is not None
    assert abs(skew - 2 * shift) < NEAR.total_seconds()


def test_a_slow_reply_is_not_used_as_a_clock_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    now = database_now()
    slow = clock.ClockReading(database_time=now, requested=0.0, received=8.0, host_time=now)
    looks = iter([slow, clock.read_clock()])
    monkeypatch.setattr(clock, "read_clock", lambda: next(looks))
    assert not clock.has_passed(now - timedelta(hours=1))
    process_state.of(clock.LastClockReading).again_at = float("-inf")
    assert clock.has_passed(now - timedelta(hours=1))


def test_the_estimated_database_time_is_never_too_early() -> None:
    for _ in range(20):
        before = clock.estimated_now()
        assert database_now() <= clock.estimated_now() + timedelta(milliseconds=1)
        assert before <= clock.estimated_now()

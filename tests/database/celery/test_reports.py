"""Whatever a function reports as progress or state is stored, or refused at the report. It never costs
a lease, neither of its own run nor of another one of the process.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from celery import current_app
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_durable_tasks.celery.live_runs import LeaseHeartbeat, LiveRun, RunContext, process_runs
from django_durable_tasks.celery.result import META, STATE
from django_durable_tasks.choices import Status
from django_durable_tasks.exceptions import InvalidOption, ResultTooLarge, UnserializableResult
from django_durable_tasks.models import Task
from django_durable_tasks.store.clock import database_now
from tests.factories import NOOP, a_run, a_task
from tests.repetitions import repetitions

pytestmark = pytest.mark.django_db(transaction=True)


class _Spiteful:
    """Its own code raises."""

    def __float__(self) -> float:
        raise LookupError("no float")


TEXTS = st.one_of(
    st.text(max_size=30),
    st.text(st.characters(categories=["Cs", "Cc", "So"]), max_size=5),
    st.sampled_from(["\x00", "\ud800", "a\udfffb", "\u0000\ud83d\ude00", "x" * 3_000_000]),
)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([10**400, 2**63, -(2**63), math.nan, math.inf, 5e-324, 1e308]),
)
ODD = st.one_of(
    st.datetimes(),
    st.binary(max_size=9),
    st.decimals(),
    st.builds(object),
    st.builds(_Spiteful),
    st.builds(uuid.uuid4),
    st.frozensets(st.integers()),
    st.sampled_from([Decimal("1e400"), Fraction(10**400), datetime, json]),
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | ODD,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS | NUMBERS, inner, max_size=4),
    max_leaves=12,
)
METAS = st.dictionaries(TEXTS, VALUES, max_size=4) | VALUES
REFUSALS = InvalidOption, UnserializableResult, ResultTooLarge


@contextmanager
def _running() -> Any:
    """Provide a run that reports and a row that does not, whose leases are about to end."""
    rows = [a_task(Status.RUNNING, due=5) for _ in range(2)]
    lives = [
        LiveRun(a_run(row), lease=60.0, timeout=None, worker="worker@host", eager=False)
        for row in rows
    ]
    leases = LeaseHeartbeat()
    leases._runs.update((live.run.run_id, live) for live in lives)  # without its thread
    with process_runs.running(lives[0]):
        try:
            yield leases, lives[0], rows
        finally:
            process_runs.forget(lives[0].run.celery_id)


def _judge(report: Callable[[LiveRun], Any], change: Callable[[], None] = lambda: None) -> Any:
    """Report, change what was reported, renew the leases; return what was stored as progress, or
    the refusal.
    """
    refusal: Exception | None = None
    with _running() as (leases, live, rows):
        try:
            report(live)
        except REFUSALS as error:
            refusal = error
        change()
        assert leases.renew() == {}
        soon = database_now() + timedelta(seconds=30)
        stored = {row.pk: row for row in Task.objects.filter(pk__in=[row.pk for row in rows])}
        assert all(
            row.lease_until is not None and row.lease_until > soon for row in stored.values()
        )
        assert not live.lost
        progress = stored[rows[0].pk].progress
    assert (refusal is None) == (progress is not None)
    return refusal or progress


def _changed(value: Any) -> None:
    """Put into a reported value what nothing can store, as a function that goes on using it may."""
    if isinstance(value, dict):
        value["later"] = object()
    elif isinstance(value, list):
        value.append(math.nan)


_SETTINGS = settings(
    max_examples=repetitions(150, least=30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@_SETTINGS
@given(st.none() | TEXTS | VALUES, METAS)
@example("PROGRESS", {"seen": 1})
@example("PROGRESS", {"text": "a\x00b"})
@example("x" * 51, {})
@example("\ud800", {"a": 1})
@example("PROGRESS", {"huge": 10**4000})
@example(None, {"half": 1e23})
def test_a_state_is_stored_as_it_was_when_it_was_reported_or_refused(
    transactional_db: None, state: Any, meta: Any
) -> None:
    task = current_app.tasks[NOOP]
    expected: list[Any] = []

    def report(_: LiveRun) -> None:
        task.update_state(state=state, meta=meta)
        expected.append(json.loads(json.dumps({STATE: state, META: meta})))

    found = _judge(report, lambda: _changed(meta))
    assert isinstance(found, REFUSALS) or [found] == expected


@_SETTINGS
@given(VALUES, VALUES, TEXTS | ODD.filter(lambda value: not isinstance(value, _Spiteful)))
@example(1, 2, "\x00\ud800")
@example(10**4000, None, "")
@example(Fraction(10**400), None, "")
@example(_Spiteful(), None, "")
@example(True, 5e-324, "note")
def test_progress_is_stored_or_refused(
    transactional_db: None, done: Any, total: Any, note: Any
) -> None:
    found = _judge(lambda live: RunContext(live).progress(done, total, note))
    assert isinstance(found, REFUSALS) or set(found) == {"done", "total", "note"}

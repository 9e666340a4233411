"""Maintenance and admin queries read in proportion to their work: among a million other tasks they
read a few pages.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection

from django_durable_tasks.admin import filters
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import queues
from django_durable_tasks.limits import overlap
from django_durable_tasks.models import Task
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import retention
from tests.database.db.test_query_plans import _fill
from tests.database.pages import touched_by
from tests.factories import a_task, a_tenant, many_tasks
from tests.repetitions import rows

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.django_db,
    pytest.mark.timeout(300),
]
MILLION = rows(1_000_000)
FEW = 600
"""Pages, among them those of rows that other tests rolled back."""


@pytest.fixture(scope="module")
def million(request: pytest.FixtureRequest, committed_rows: Callable[[], None]) -> None:
    """Insert a million tasks of one kind, with statistics."""
    committed_rows()
    _WRITERS[request.param]()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_tasks_task")


def _future() -> None:
    """Create tasks long before any retention, scheduled for the future."""
    _fill(Status.PENDING, MILLION, start=3_600, born=1_500_000_000_000)


def _young_under_callers_ids() -> None:
    """Create tasks that have just ended, with ids chosen by callers."""
    _fill(Status.SUCCESS, MILLION, start=-3_600, span=3_600, born=0xE000_0000_0000)


def _kept_longer() -> None:
    """Create failed tasks, whose retention is longer than that of others."""
    _fill(Status.FAILED, MILLION, start=-20 * 86_400, born=1_500_000_000_000)


_WRITERS = {"future": _future, "young": _young_under_callers_ids, "kept longer": _kept_longer}


@pytest.mark.parametrize("million", list(_WRITERS), indirect=True)
def test_pruning_reads_only_tasks_past_their_retention(million: None, settings: Any) -> None:
    settings.DURABLE_TASKS = {
        "RETENTION": {"SUCCESS": 7 * 86_400, "FAILED": 90 * 86_400, "CANCELLED": 86_400}
    }
    now = database_now()
    nothing = touched_by(lambda: retention.prune(now, 500))
    assert nothing.result == 0
    assert not nothing.whole
    assert nothing.pages < FEW, nothing
    old = now - timedelta(days=2)
    ended = many_tasks(200, Status.CANCELLED)
    Task.objects.unguarded().filter(pk__in=[row.pk for row in ended]).update(completed_at=old)
    some = touched_by(lambda: retention.prune(now, 150))
    assert some.result == 150
    assert not some.whole
    assert some.pages < 150 * 40, some


@pytest.mark.parametrize("million", ["future"], indirect=True)
def test_the_overlap_release_reads_only_waiting_tasks(million: None) -> None:
    nothing = touched_by(lambda: overlap.release(500))
    assert nothing.result == 0
    assert nothing.pages < FEW, nothing
    for number in range(20):
        a_task(due_at=NEVER, overlap_key=f"slot {number % 10}")
    some = touched_by(lambda: overlap.release(500))
    assert some.result == 10
    assert not some.whole
    assert some.pages < 10 * FEW, some


def _search(term: str) -> list[Task]:
    condition = filters.search_by_key(term)
    if condition is None:
        return []
    return list(Task.objects.filter(condition).order_by("-pk")[:51])


@pytest.mark.parametrize("million", ["future"], indirect=True)
def test_a_search_for_a_whole_key_or_an_unknown_one_reads_no_whole_table(million: None) -> None:
    row = a_task(key="k-1", unique_key="u-1", idempotency_key="i-1", tenant=a_tenant())
    for term in ("k-1", "u-1", "i-1", "nonsense"):
        found = touched_by(partial(_search, term))
        assert found.result == ([] if term == "nonsense" else [row])
        assert not found.whole, term
        assert found.pages < FEW, found


@pytest.mark.parametrize("million", ["future"], indirect=True)
def test_queue_depths_read_no_more_than_they_count(million: None) -> None:
    found = touched_by(lambda: queues.depths(database_now()))
    assert [(depth.pending, depth.due) for depth in found.result] == [(queues.COUNTED, 0)]
    assert not found.whole
    assert found.pages < 2 * queues.COUNTED, found

"""Among many ended tasks, with their dead letters and attempts, the pages of their lists read few rows: those
that an index finds, or the newest ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from django.db import connection

from django_durable_tasks.admin import readonly
from django_durable_tasks.choices import Status
from django_durable_tasks.models import DeadLetter, Task
from django_durable_tasks.task_values import first_uuid7_of
from tests.database.admin.site import list_of, operator, text
from tests.database.db.test_query_plans import _fill
from tests.database.pages import Touched, touched_by
from tests.factories import a_task, a_tenant, many_tasks

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db, pytest.mark.timeout(300)]
MANY, NEWEST = 50_000, 100
FEW, BOUND = 800, 20 * NEWEST
"""Pages for rows that an index finds; pages for reading the newest rows twice, with their tasks."""
TABLES = "durable_tasks_task, durable_tasks_execution_log, durable_tasks_dead_letter"
# Each task failed finally, was replayed and succeeded.
_LETTERS = """
INSERT INTO durable_tasks_dead_letter
       (task_id, reason, fingerprint, error_message, attempts, args, kwargs, created_at, resolved_at,
        resolution, resolved_by, comment)
SELECT id, 'EXHAUSTED', '0000000000000000', '', 1, '[]', '{}', completed_at, completed_at, 'REPLAYED', '', ''
  FROM durable_tasks_task WHERE status = 'SUCCESS'
"""
_ATTEMPTS = """
INSERT INTO durable_tasks_execution_log (task_id, attempt_number, status, started_at, completed_at)
SELECT id, n, CASE WHEN n = 1 THEN 'FAILED' ELSE 'SUCCESS' END, completed_at, completed_at
  FROM durable_tasks_task, generate_series(1, 2) AS n WHERE status = 'SUCCESS'
"""


@pytest.fixture(autouse=True)
def few_newest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the lists look through few rows."""
    monkeypatch.setattr(readonly, "LOOKED_THROUGH", NEWEST)


@pytest.fixture(scope="module")
def oldest(committed_rows: Callable[[], None]) -> Task:
    """Insert the rows. Return a failed task of which everything is rare; its rows are the oldest."""
    row = a_task(
        Status.FAILED,
        key="k-1",
        unique_key="u-1",
        idempotency_key="i-1",
        name="billing.charge",
        queue="mail",
        tenant=a_tenant(),
    )
    letters = DeadLetter.objects.unguarded().filter(task=row)
    letters.update(fingerprint="f" * 16, reason="CRASHED")
    _fill(Status.SUCCESS, MANY, start=-MANY, span=MANY)
    with connection.cursor() as cursor:
        cursor.execute(_LETTERS)
        cursor.execute(_ATTEMPTS)
    many_tasks(20, Status.FAILED)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {TABLES}")
    return row


def _opened(model: str, *queries: str) -> Iterator[tuple[str, Touched, list[int]]]:
    """Open the list with each query. Yield what it read, and the tasks of the rows it shows."""
    of_row = "pk" if model == "task" else "task_id"
    ann = operator(model)
    for query in queries:
        page = touched_by(partial(ann.get, f"{list_of(model)}?{query}"))
        yield query, page, [getattr(row, of_row) for row in page.result.context["cl"].result_list]


def test_open_dead_letters_and_those_of_a_task_or_an_error_are_found_by_indexes(
    oldest: Task,
) -> None:
    tenant, key = f"tenant={oldest.tenant_id}", oldest.pk
    alike = f"case=all&fingerprint__exact={'f' * 16}"
    rare = ("reason=CRASHED", "queue=mail", "name=billing.charge", tenant, "q=charge")
    of_task = (f"task__id__exact={key}", f"q={key}", "q=k-1", "q=u-1", "q=i-1")
    closed_too = (f"case=all&{one}" for one in of_task)
    for query, page, tasks in _opened(
        "deadletter", *rare, *of_task, *closed_too, alike, f"{alike}&queue=mail"
    ):
        assert tasks == [key], query
        assert not page.whole, query
        assert page.pages < FEW, (query, page)


def test_attempts_of_a_task_are_found_by_indexes(oldest: Task) -> None:
    key = oldest.pk
    queries = (f"task__id__exact={key}", f"q={key}", "q=k-1", "q=u-1", "q=i-1")
    status = f"task__id__exact={key}&status__exact=FAILED"
    for query, page, tasks in _opened("taskexecutionlog", *queries, status):
        assert tasks == [key], query
        assert not page.whole, query
        assert page.pages < FEW, (query, page)


def test_a_filter_without_an_index_reads_the_newest_rows_and_the_page_shows_a_message(
    oldest: Task,
) -> None:
    rare = ("queue=mail", "name=billing.charge", f"tenant={oldest.tenant_id}", "q=charge")
    of_letters = ("reason=CRASHED", *rare)
    queries = {
        "deadletter": (
            "case=DISCARDED",
            "case=DISCARDED&q=charge",
            *(f"case=all&{one}" for one in of_letters),
        ),
        "taskexecutionlog": ("status__exact=FENCED", *rare),
    }
    for model, asked in queries.items():
        for query, page, tasks in _opened(model, *asked):
            assert not tasks, query
            assert not page.whole, query
            assert page.pages < BOUND, (query, page)
            assert f"only the newest {NEWEST} rows" in text(page.result), query


def test_tasks_with_rare_values_are_searched_among_the_newest_rows(oldest: Task) -> None:
    old = a_task(  # the ids of the others are of a later time
        Status.FAILED,
        id=first_uuid7_of(1_000_000_000_000),
        key="k-2",
        name="billing.refund",
        queue="old",
        tenant=oldest.tenant,
    )
    tenant = f"tenant={oldest.tenant_id}"
    bounded = ("queue=old", "name=billing.refund", "status__exact=SUCCESS&queue=old")
    found = ("q=k-2", f"{tenant}&queue=old", "status__exact=FAILED&queue=old")
    for query, page, tasks in _opened("task", *bounded, *found, "q=charge"):
        newest_only = query in bounded or query == "q=charge"
        recent = [oldest.pk] if query == "q=charge" else []
        assert tasks == (recent if newest_only else [old.pk]), query
        assert not page.whole, query
        assert page.pages < BOUND, (query, page)
        assert (f"only the newest {NEWEST} rows" in text(page.result)) is newest_only, query


def test_a_frequent_value_is_found_among_the_newest_rows(oldest: Task) -> None:
    frequent = {"deadletter": "case=REPLAYED", "taskexecutionlog": "status__exact=SUCCESS"}
    for model, query in frequent.items():
        for _, page, tasks in _opened(model, "", query, f"{query}&q=noop"):
            assert tasks
            assert page.pages < BOUND, page


def test_a_name_that_no_task_has_is_not_searched(oldest: Task) -> None:
    for model, query in {
        "deadletter": "case=all&q=nonsense",
        "taskexecutionlog": "q=nonsense",
    }.items():
        for _, page, tasks in _opened(model, query):
            assert not tasks
            assert page.pages < FEW, page
            assert "newest" not in text(page.result)

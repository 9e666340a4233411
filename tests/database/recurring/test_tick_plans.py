"""With 100,000 recurring tasks and a million ledger entries, no statement reads one of these tables
completely.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from django_durable_tasks.limits import overlap
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.schedules import ledger, trigger
from django_durable_tasks.store.clock import database_now
from tests.database.recurring.schedules import a_schedule
from tests.project import tasks
from tests.repetitions import rows

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.mariadb,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(600),
]

ROWS, LINES, TASKS, DUE = rows(100_000), rows(1_000_000), rows(100_000), 40
BIG = {model._meta.db_table for model in (RecurringTask, OccurrenceRecord, Task)}
FAR = timedelta(days=300)
_SERIES = {"postgresql": "generate_series(1, {}) AS series (seq)", "mysql": "seq_1_to_{} AS series"}
_KEY = {
    "postgresql": (
        "(lpad(to_hex(1700000000000 + {0}), 12, '0') || '70008000' || lpad(to_hex({0}), 12,"
        " '0'))::uuid"
    ),
    "mysql": "CONCAT(LPAD(HEX(1700000000000 + {0}), 12, '0'), '70008000', LPAD(HEX({0}), 12, '0'))",
}
_LATER = {"postgresql": "{} + {} * interval '1 second'", "mysql": "{} + INTERVAL {} SECOND"}


def _key(number: str) -> str:
    return _KEY[connection.vendor].format(number)


def _later(moment: str, seconds: str) -> str:
    return _LATER[connection.vendor].format(moment, seconds)


def _multiply(model: Any, number: int, **values: str) -> None:
    """Insert copies of the only row of a table, with these columns computed in SQL, then delete the
    original.
    """
    (pattern,) = model.objects.values_list("pk", flat=True)
    quote, table = connection.ops.quote_name, model._meta.db_table
    columns = [
        field.column
        for field in model._meta.concrete_fields
        if field.column != "id" or "id" in values
    ]
    spelled = ", ".join(values.get(column) or f"pattern.{quote(column)}" for column in columns)
    series = _SERIES[connection.vendor].format(number)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(map(quote, columns))})"
            f" SELECT {spelled} FROM {table} AS pattern CROSS JOIN {series}"
        )
        model._base_manager.filter(pk=pattern).delete()
        cursor.execute(
            f"{'ANALYZE' if connection.vendor == 'postgresql' else 'ANALYZE TABLE'} {table}"
        )


@pytest.fixture
def crowd() -> datetime:
    """Insert schedules, most of which are due in the far future, and return the instant at which
    the others are due.
    """
    now = database_now()
    row = a_schedule(overlap="SKIP", interval=3_600, start_time=now)
    tasks.noop.schedule(run_at=now + FAR)
    OccurrenceRecord.objects.unguarded().create(
        recurring_task=row, fire_time=now, unique_fire_time=now, outcome="DISPATCHED"
    )
    owner = f"MOD(series.seq, {ROWS}) + 1"
    moment = _later("pattern.fire_time", f"(series.seq / {ROWS} * 3600)")
    _multiply(
        OccurrenceRecord,
        LINES,
        recurring_task_id=_key(f"({owner})"),
        fire_time=moment,
        unique_fire_time=moment,
    )
    finished = {"status": "'SUCCESS'", "due_at": "NULL", "completed_at": "pattern.created_at"}
    slot = "CONCAT('recurring:', series.seq)"
    _multiply(
        Task,
        TASKS,
        id=_key("series.seq"),
        recurring_task_id=_key("series.seq"),
        overlap_key=slot,
        **finished,
    )
    start = _later(
        "pattern.start_time",
        f"(CASE WHEN series.seq <= {DUE} THEN -60 ELSE 20000000 + series.seq END)",
    )
    _multiply(
        RecurringTask,
        ROWS,
        id=_key("series.seq"),
        name="CONCAT('row ', series.seq)",
        start_time=start,
        next_run_at=start,
        watermark_at=_later(start, "-1"),
    )
    return now


@contextmanager
def recorded() -> Iterator[list[tuple[str, Any]]]:
    """Collect the statements that are sent inside the block, with their parameters."""
    seen: list[tuple[str, Any]] = []

    def record(
        execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        if sql.lstrip().split(None, 1)[0] in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH"):
            seen.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(record):
        yield seen


def _whole_tables(sql: str, parameters: Any) -> list[str]:
    """Return the large tables that a statement would read completely."""
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", parameters)
            plan = cursor.fetchone()[0]
            return list(_scanned((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]))
        cursor.execute(f"EXPLAIN {sql}", parameters)
        names = [column[0] for column in cursor.description]
        lines = [dict(zip(names, line, strict=True)) for line in cursor.fetchall()]
    # "index" scans a whole index unless a LIMIT ends the scan; then it reads as few rows as the
    # limit.
    return [
        str(line["table"])
        for line in lines
        if line["type"] in ("ALL", "index") and int(line["rows"] or 0) > 1_000
    ]


def _scanned(node: dict[str, Any]) -> Iterator[str]:
    if node["Node Type"].endswith("Seq Scan") and node.get("Relation Name") in BIG:
        yield node["Relation Name"]
    for inner in node.get("Plans", ()):
        yield from _scanned(inner)


def _expect_no_scan(seen: list[tuple[str, Any]]) -> None:
    assert seen
    scans = [
        (sql[:200], sql[-200:], tables)
        for sql, parameters in seen
        if (tables := _whole_tables(sql, parameters))
    ]
    assert scans == []


def test_no_statement_on_recurring_tasks_reads_a_whole_table(crowd: datetime) -> None:
    with recorded() as seen:
        trigger.head()
        created = trigger.fire_due(crowd, 100, term=7)
    assert created == DUE
    _expect_no_scan(seen)

    row = RecurringTask.objects.order_by("pk")[DUE]
    with recorded() as seen:
        row.explain(crowd)
    _expect_no_scan(seen)

    with recorded() as seen:
        overlap.release(100)
        ledger.prune_ledger(crowd, 100)
    _expect_no_scan(seen)

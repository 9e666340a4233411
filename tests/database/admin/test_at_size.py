"""With 100,000 schedules and 300,000 ledger entries, a page reads only what it shows, not whole
tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from django.db import connection

from django_durable_tasks.models import OccurrenceRecord, RecurringTask
from tests.database.admin.site import list_of, operator, page_of
from tests.database.pages import touched_by
from tests.database.recurring.schedules import a_schedule, fire
from tests.repetitions import rows

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(300),
]

SCHEDULES, LINES = rows(100_000), rows(100_000)
TABLES = ("durable_tasks_recurring_task", "durable_tasks_occurrence")
_MORE_SCHEDULES = """
INSERT INTO durable_tasks_recurring_task ({names})
SELECT {values} FROM durable_tasks_recurring_task, generate_series(1, %s) AS n
"""
_LINES_OF_ONE = """
INSERT INTO durable_tasks_occurrence (recurring_task_id, fire_time, unique_fire_time, outcome, reason, count,
                                      count_is_exact)
SELECT id, at.moment, at.moment, CASE WHEN n %% 100 = 0 THEN 'SKIPPED_OVERLAP' ELSE 'DISPATCHED' END, '', 1, true
  FROM durable_tasks_recurring_task, generate_series(1, %s) AS n
 CROSS JOIN LATERAL (SELECT clock_timestamp() - n * interval '1 minute' AS moment) AS at
 WHERE name = %s
"""
_LINES_OF_ALL = """
INSERT INTO durable_tasks_occurrence (recurring_task_id, fire_time, unique_fire_time, outcome, reason, count,
                                      count_is_exact)
SELECT id, at.moment, at.moment, 'DISPATCHED', '', 1, true
  FROM durable_tasks_recurring_task, generate_series(1, 2) AS n
 CROSS JOIN LATERAL (SELECT clock_timestamp() - n * interval '1 hour' AS moment) AS at
"""


@pytest.fixture
def busy() -> Iterator[RecurringTask]:
    """Insert the schedules and entries, and return the schedule with the long ledger."""
    row = a_schedule("busy")
    fire(row.start_time)
    own = {"id": "gen_random_uuid()", "name": "'schedule' || lpad(n::text, 6, '0')"}
    names = [str(field.column) for field in RecurringTask._meta.concrete_fields]
    more = _MORE_SCHEDULES.format(
        names=", ".join(names), values=", ".join(own.get(name, name) for name in names)
    )
    with connection.cursor() as cursor:
        cursor.execute(more, [SCHEDULES])
        cursor.execute(_LINES_OF_ONE, [LINES, "busy"])
        cursor.execute(_LINES_OF_ALL)
        for table in TABLES:
            cursor.execute(f"ANALYZE {table}")
    yield row
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(TABLES)}, durable_tasks_task CASCADE")


def test_an_admin_page_reads_what_it_shows_and_not_whole_tables(busy: RecurringTask) -> None:
    ann = operator()
    schedules, ledger = list_of("recurringtask"), list_of("occurrencerecord")
    assert RecurringTask.objects.count() == SCHEDULES + 1
    assert OccurrenceRecord.objects.count() > 3 * LINES
    theirs = f"{ledger}?schedule={busy.pk}"
    addresses = {
        schedules: 1_000,
        f"{schedules}?p=100": 1_000,
        f"{schedules}?condition=soon": 1_000,
        page_of(busy): 100,
        ledger: 500,
        f"{ledger}?p=100": 500,
        theirs: 4_000,
        f"{theirs}&outcome=unrun": 4_000,
        f"{theirs},2026-01-01T00:00:00%2B00:00": 500,
    }
    for address, most in addresses.items():
        page = touched_by(partial(ann.get, address))
        assert page.result.status_code == 200
        asked = [
            (pages, sql) for pages, sql in page.statements if any(table in sql for table in TABLES)
        ]
        assert asked
        assert max(asked)[0] <= most, (address, max(asked))

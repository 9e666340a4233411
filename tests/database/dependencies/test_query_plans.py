"""Beside a hundred thousand edges, statements on dependencies read only the rows to resolve, count
or release.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from django_durable_tasks.choices import Status
from django_durable_tasks.dependencies import edges
from django_durable_tasks.dependencies.rules import NewEdge
from django_durable_tasks.models import EndingEvent, Task, TaskDependency
from tests.database.pages import Plan

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db, pytest.mark.timeout(300)]

RUNS, TASKS, WIDE = 100, 50_000, 3_000
_TASKS = """
INSERT INTO durable_tasks_task (id, name, queue, priority, args, kwargs, status, run_at, due_at, epoch, completed_at,
                                workflow_id, has_dependents, unresolved_dependencies_count)
SELECT (lpad(to_hex(%(run)s), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid, 'tests.project.tasks.noop',
       'test', 0, '[]', '{}', CASE WHEN n < %(open)s THEN 'SUCCESS' ELSE 'BLOCKED' END, now(), NULL, 3,
       CASE WHEN n < %(open)s THEN now() END, (lpad(to_hex(n %% %(runs)s), 32, '0'))::uuid, true,
       CASE WHEN n < %(open)s THEN 0 ELSE 2 END
  FROM generate_series(0, %(number)s - 1) AS n
"""
# Each task depends on the two before it; the last of a hundred are still open.
_EDGES = """
INSERT INTO durable_tasks_dependency (task_id, depends_on_id, dependency_type, resolved_at, outcome, met)
SELECT below.id, (lpad(to_hex(1), 12, '0') || '70008000' || lpad(to_hex(n - far), 12, '0'))::uuid, 'MUST_SUCCEED',
       below.completed_at, CASE WHEN below.completed_at IS NOT NULL THEN 'SUCCESS' END,
       CASE WHEN below.completed_at IS NOT NULL THEN true END
  FROM generate_series(2, %(number)s - 1) AS n
 CROSS JOIN generate_series(1, 2) AS far
  JOIN durable_tasks_task AS below
    ON below.id = (lpad(to_hex(1), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid
"""
_ENDINGS = """
INSERT INTO durable_tasks_ending_event (task_id, epoch, workflow_id, status, resolved)
SELECT id, epoch, workflow_id, 'SUCCESS', id < %(last)s FROM durable_tasks_task WHERE status = 'SUCCESS' ORDER BY id
"""


def _sql(*texts: str, **given: Any) -> None:
    with connection.cursor() as cursor:
        for text in texts:
            cursor.execute(text, given)


def _id(number: int) -> uuid.UUID:
    return uuid.UUID(f"{1:012x}70008000{number:012x}")


@pytest.fixture(scope="module")
def crowd(committed_rows: Callable[[], None]) -> int:
    """Insert many graphs, most of which have ended, and return the number of the last ended task."""
    still_open = TASKS - TASKS // 100
    _sql(_TASKS, run=1, number=TASKS, open=still_open, runs=RUNS)
    _sql(_EDGES, number=TASKS)
    _sql(_ENDINGS, last=_id(still_open - 20))
    _sql("ANALYZE")
    return still_open - 1


@pytest.fixture
def unanalyzed() -> list[int]:
    """Insert one upstream with three thousand dependents without statistics, and return its ending
    event.
    """
    _sql(
        "TRUNCATE durable_tasks_task, durable_tasks_dependency, durable_tasks_ending_event CASCADE"
    )
    _sql(_TASKS, run=1, number=WIDE + 1, open=1, runs=1)
    children = (
        Task.objects.filter(status=Status.BLOCKED).order_by("pk").values_list("pk", flat=True)
    )
    edges.insert_edges([NewEdge(key, _id(0)) for key in children])
    _sql(_ENDINGS, last=_id(0))
    return list(EndingEvent.objects.values_list("pk", flat=True))


def test_statements_on_dependencies_read_only_due_rows(crowd: int) -> None:
    Plan.of(EndingEvent.objects.unresolved().values("pk")[:500]).expect(
        "durable_ending_unresolved", pages=100
    )
    Plan.of(EndingEvent.objects.uncounted().values("pk")[:500]).expect(
        "durable_tasks_ending_event_pkey", pages=100
    )

    ended = [_id(crowd - number) for number in range(20)]
    below = (
        TaskDependency.objects.below(ended)
        .without_outcome()
        .order_by("task", "pk")
        .values("task")[:2_000]
    )
    Plan.of(below).expect("durable_dependency_below", pages=200)

    waiting = [_id(crowd + 1 + number) for number in range(20)]
    unresolved = TaskDependency.objects.above(waiting).unresolved().order_by().values("task")
    Plan.of(unresolved).expect("durable_dependency_unresolved", pages=200)
    Plan.of(TaskDependency.objects.above(waiting).order_by().values("task")).expect(
        "durable_one_edge", pages=300
    )

    # A hundredth of the tasks, spread over the whole table.
    of_one = Task.objects.filter(
        workflow=uuid.UUID(int=7), status=Status.BLOCKED, unresolved_dependencies_count=0
    )
    Plan.of(of_one.order_by("pk").values("pk")[:500]).expect(
        "durable_task_workflow", pages=TASKS // RUNS + 100
    )


def test_an_ending_is_resolved_by_reading_only_its_own_edges(crowd: int) -> None:
    last = _id(crowd)
    below = Plan.of_statement("below", id=last, limit=101)
    below.expect(
        "durable_dependency_below", "durable_tasks_task_pkey", "durable_ending_task", pages=40
    )
    assert below.root["Actual Rows"] == 2

    notes = list(EndingEvent.objects.unresolved().values_list("pk", flat=True))
    assert len(notes) == 20
    spread = Plan.of_statement(
        "resolve_endings", events=notes, limit=2_000, open=[], limited=[], wait=15.0, alone=False
    )
    spread.expect(
        "durable_tasks_ending_event_pkey",
        "durable_dependency_below",
        "durable_tasks_dependency_pkey",
        "durable_tasks_task_pkey",
        pages=2_000,
    )


def test_missing_statistics_do_not_make_a_fan_out_quadratic(unanalyzed: list[int]) -> None:
    spread = Plan.of_statement(
        "resolve_endings",
        events=unanalyzed,
        limit=2_000,
        open=[],
        limited=[],
        wait=15.0,
        alone=False,
    )
    assert spread.compared() < 10 * WIDE
    updates = [
        node
        for node in spread.nodes
        if node.get("Operation") == "Update" and node["Actual Rows"] == 2_000
    ]
    assert updates


def test_an_ending_event_is_counted_by_reading_only_its_own_rows(crowd: int) -> None:
    notes = list(EndingEvent.objects.uncounted().values_list("pk", flat=True)[:100])
    held = (
        EndingEvent.objects.filter(pk__in=notes).order_by("pk").select_for_update(skip_locked=True)
    )
    with transaction.atomic():
        Plan.of(held.values("pk")).expect("durable_tasks_ending_event_pkey", pages=500)

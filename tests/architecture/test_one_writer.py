"""Only states/ and store/sql write a Task's status, and SQL is in its own files."""

import re

import pytest

from docs.generate import sql_writers
from tests.architecture.sources import PACKAGE, ROOT, expect_none, findings, name_of, python_files
from tests.architecture.writers import (
    executed_literals,
    misplaced_sql,
    savers,
    sql_in_python,
    status_writers,
)

WRITER = f"{PACKAGE}/states/"


def test_only_the_transitions_write_status() -> None:
    others = [file for file in python_files(PACKAGE) if not name_of(file).startswith(WRITER)]
    expect_none(findings(status_writers, others))


def test_only_the_transitions_execute_guarded_updates() -> None:
    def breaches(source: str) -> list[str]:
        return re.findall(
            r"from django_durable_tasks\.states\.guarded_update import[^)\n]*(?:\([^)]*)?\b(?:move|write_running)\b",
            source,
        )

    assert breaches(
        "from django_durable_tasks.states.guarded_update import (\n    locked,\n    move,\n)"
    )
    others = [file for file in python_files(PACKAGE) if not name_of(file).startswith(WRITER)]
    expect_none(findings(breaches, others))


def test_only_the_transitions_execute_the_sql_that_writes_status() -> None:
    assert {"claim", "start", "succeed", "create", "resolve_endings"} <= sql_writers()
    assert not {"heartbeat", "usage", "late"} & sql_writers()
    executed = re.compile(rf"\b(?:sql|text)\(\s*[\"'](?:{'|'.join(sql_writers())})[\"']")
    others = [file for file in python_files(PACKAGE) if not name_of(file).startswith(WRITER)]
    expect_none(findings(executed.findall, others))


def test_no_object_is_saved_without_a_guard() -> None:
    guard = f"{PACKAGE}/models/guarded.py"  # it inserts the row that the engine requested
    expect_none(findings(savers, python_files(PACKAGE, without=frozenset({guard}))))


def test_no_sql_is_in_a_python_string() -> None:
    migrations = sorted((ROOT / PACKAGE / "migrations").glob("*.py"))
    expect_none(findings(sql_in_python, [*python_files(PACKAGE), *migrations]))
    expect_none(findings(executed_literals, python_files(PACKAGE)))


def test_sql_files_are_named_by_operation_and_vendor() -> None:
    expect_none(
        [
            found
            for file in (ROOT / PACKAGE).rglob("*.sql")
            for found in misplaced_sql(name_of(file))
        ]
    )


@pytest.mark.parametrize(
    "breach",
    [
        "Task.objects.filter(pk=1).update(status='SUCCESS')",
        "rows.update(status=Status.FAILED, epoch=2)",
        "Task.objects.bulk_update(rows, ['epoch', 'status'])",
        "task.status = 'SUCCESS'",
        "Task.objects.create(name='a')",
        "Task.objects.bulk_create(rows)",
    ],
)
def test_a_second_writer_of_status_is_found(breach: str) -> None:
    assert status_writers(breach)


def test_the_status_of_another_model_is_not_found() -> None:
    assert not status_writers("RecurringTask.objects.filter(pk=1).update(status='PAUSED')")
    assert not status_writers("edges.workflow_runs().filter(pk=1).update(status='RUNNING')")
    assert status_writers("tasks().filter(workflow__in=workflow_runs()).update(status='RUNNING')")
    assert not status_writers("Task.objects.filter(status='PENDING').count()")


def test_a_saved_object_is_found_and_an_inherited_save_is_not() -> None:
    assert savers("task.save(update_fields=['status'])")
    assert savers("await row.asave()")
    assert not savers("super().save(*args)")


@pytest.mark.parametrize(
    "breach",
    [
        "SQL = 'UPDATE tasks SET status = 1'",
        "SQL = f'INSERT INTO {table} (id) VALUES (1)'",
        "SQL = 'DELETE FROM tasks'",
        "SQL = '''SELECT id\n FROM tasks'''",
    ],
)
def test_sql_in_a_string_is_found(breach: str) -> None:
    assert sql_in_python(breach)


def test_an_executed_literal_is_found() -> None:
    assert executed_literals("cursor.execute('TRUNCATE tasks')")
    assert executed_literals("cursor.execute(f'{verb} tasks')")


def test_prose_and_session_statements_are_not_sql() -> None:
    assert not sql_in_python('"""The UPDATE t SET form of SELECT a FROM b."""')
    assert not executed_literals("cursor.execute('SET statement_timeout = 1000')")
    assert not executed_literals("cursor.execute(statement('claim', vendor), values)")


def test_an_sql_file_in_the_wrong_place_is_found() -> None:
    assert misplaced_sql("django_durable_tasks/models/claim.postgresql.sql")
    assert misplaced_sql("django_durable_tasks/store/sql/claim.sql")
    assert not misplaced_sql("django_durable_tasks/store/sql/claim_due.postgresql.sql")

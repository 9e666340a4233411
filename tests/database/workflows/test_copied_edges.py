"""A start writes many edges with one statement, by COPY on PostgreSQL, with the same values as few
edges.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_durable_tasks import Workflow
from django_durable_tasks.dependencies import edges
from django_durable_tasks.dependencies.rules import NewEdge
from django_durable_tasks.models import Task, TaskDependency
from django_durable_tasks.store.dialects import text
from tests.database.dependencies.worker_and_leader import recount
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db
FEW, MANY = 10, 60
_VALUES = [field.attname for field in TaskDependency._meta.concrete_fields if field.name != "id"]


@pytest.fixture(autouse=True)
def few_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write ten edges or more by COPY."""
    monkeypatch.setattr(edges, "_COPIED", FEW)


def _writes(act: Callable[[], Any]) -> list[str]:
    found: list[str] = []

    def seen(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        writes = sql.startswith(("COPY", "INSERT")) and "durable_tasks_dependency" in sql
        found.extend([sql] if writes else [])
        return execute(sql, params, many, context)

    with connection.execute_wrapper(seen):
        act()
    return found


def _fan_in(number: int) -> Workflow:
    wf = Workflow("fan-in")
    wf.add(noop, step="last", after=[wf.add(noop) for _ in range(number)])
    return wf


@pytest.mark.postgresql
def test_many_edges_are_one_copy() -> None:
    (written,) = _writes(_fan_in(MANY).start)
    assert written.startswith("COPY durable_tasks_dependency")
    assert TaskDependency.objects.count() == MANY
    assert not recount()


@pytest.mark.postgresql
def test_few_edges_are_one_insert() -> None:
    (written,) = _writes(_fan_in(FEW - 1).start)
    assert written.startswith("INSERT")


def test_many_edges_are_one_statement_on_every_database() -> None:
    assert len(_writes(_fan_in(MANY).start)) == 1


def _edges(task: uuid.UUID) -> list[NewEdge]:
    texts = ["", "\\", "\\N", "a\tb\nc", '"\\u0001"', "grün 木", "'"]
    edges = [
        NewEdge(task, uuid.uuid4(), kind, None, policy, "ada", text)
        for kind in ("MUST_SUCCEED", "MUST_FINISH", "MUST_FAIL")
        for policy in (None, "SKIP", "FAIL", "WAIT", "RUN")
        for text in texts
    ]
    return [NewEdge(task, gate="APPROVAL", comment="ask"), NewEdge(task, gate="HOLD"), *edges]


def test_copied_edges_have_the_values_of_edges_that_are_inserted_alone() -> None:
    (task,) = noop.schedule_many([()])
    new = _edges(task)
    for edge in new:
        edges.insert_edges([edge])
    alone = list(TaskDependency.objects.order_by("pk").values(*_VALUES))
    TaskDependency.objects.unguarded().all().delete()
    edges.insert_edges(new)
    assert list(TaskDependency.objects.order_by("pk").values(*_VALUES)) == alone
    assert len(alone) == len(new) > FEW


def test_a_met_edge_among_many_is_resolved() -> None:
    (task,) = noop.schedule_many([()])
    met = NewEdge(task, uuid.uuid4(), outcome="SUCCESS")
    edges.insert_edges([*(NewEdge(task, uuid.uuid4()) for _ in range(MANY)), met])
    (row,) = TaskDependency.objects.filter(resolved_at__isnull=False)
    assert (row.depends_on_id, row.outcome, row.met) == (met.depends_on_id, "SUCCESS", True)
    assert TaskDependency.objects.unresolved().count() == MANY


@pytest.mark.postgresql
def test_the_statement_of_copy_has_the_columns_of_its_rows() -> None:
    sql = text("copy_edges", "postgresql")
    assert sql is not None
    inside = sql[sql.index("(") + 1 : sql.index(")")]
    assert [name.strip() for name in inside.split(",")] == list(edges.COLUMNS)
    assert tuple(edges.COLUMNS) == NewEdge._fields[: len(edges.COLUMNS)]


@pytest.mark.postgresql
def test_a_role_under_row_level_security_inserts() -> None:
    with connection.cursor() as cursor:
        for sql in (
            "CREATE ROLE durable_test_secured_edges",
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO durable_test_secured_edges",
            "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO durable_test_secured_edges",
            "ALTER TABLE durable_tasks_dependency ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY everything ON durable_tasks_dependency USING (true)",
            "SET LOCAL ROLE durable_test_secured_edges",
        ):
            cursor.execute(sql)
        found = _writes(_fan_in(MANY).start)
        cursor.execute("RESET ROLE")
    assert [sql.split()[0] for sql in found] == ["INSERT"]
    assert TaskDependency.objects.count() == MANY


# Steps that share a template ----------------------------------------------------------------------


def test_steps_with_different_options_do_not_share_them() -> None:
    wf = Workflow("options")
    headers: list[dict[str, Any] | None] = [{"number": 1}, {"number": True}, {"number": 1.0}, None]
    for place, given in enumerate(headers):
        wf.add(noop.using(headers=given, priority=place, timeout=10 + place), step=f"{place}")
    wf.add(noop, step="plain")
    wf.start()
    rows = {row.step: row for row in Task.objects.all()}
    for place in range(len(headers)):
        row = rows[f"{place}"]
        assert (row.priority, (row.options or {})["timeout"]) == (place, 10 + place)
    assert rows["plain"].priority == 0
    assert not rows["plain"].options


def test_equal_headers_of_different_types_stay_different() -> None:
    wf = Workflow("headers")
    for place, number in enumerate((1, True, 1.0)):
        wf.add(noop.using(headers={"number": number}), step=f"{place}")
    wf.start()
    found = [(row.options or {})["headers"]["number"] for row in Task.objects.order_by("step")]
    assert [(type(number), number) for number in found] == [(int, 1), (bool, True), (float, 1.0)]


def test_the_policy_of_a_step_is_its_own() -> None:
    wf = Workflow("policies")
    first = wf.add(noop, step="first")
    for policy in ("SKIP", "FAIL", "WAIT", "RUN"):
        wf.add(noop, step=policy, after=first, on_upstream_failure=policy)
    wf.start()
    rows = Task.objects.exclude(step="first")
    assert {row.step: row.on_upstream_failure for row in rows} == {
        policy: policy for policy in ("SKIP", "FAIL", "WAIT", "RUN")
    }

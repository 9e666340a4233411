"""The SQL statements return columns in the order of the types that read them."""

import re

import pytest

from django_durable_tasks.models import Task
from django_durable_tasks.states.claims import RUN_COLUMNS, BlockedDependent, ClaimedTask
from django_durable_tasks.store import dialects

STATEMENTS = [
    ("claim", "RETURNING", ClaimedTask._fields),
    ("claim_these", "RETURNING", ClaimedTask._fields),
    ("start", "RETURNING", RUN_COLUMNS),
    ("below", "SELECT", BlockedDependent._fields),
]


def _names(columns: str) -> tuple[str, ...]:
    """Return the names of a list of columns: the alias, or the column without its table."""
    depth, parts = 0, [""]
    for sign in columns:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return tuple(re.split(r"[\s.]+", part.strip())[-1] for part in parts)


def _returned(operation: str, keyword: str) -> tuple[str, ...]:
    sql = dialects.text(operation, "postgresql")
    assert sql is not None
    if keyword == "SELECT":
        return _names(re.split(r"\n  FROM ", sql)[0].removeprefix("SELECT"))
    return _names(sql.rpartition("RETURNING")[2].partition(")\nSELECT")[0])


@pytest.mark.parametrize(("operation", "keyword", "columns"), STATEMENTS)
def test_a_statement_returns_the_columns_of_its_type(
    operation: str, keyword: str, columns: tuple[str, ...]
) -> None:
    assert _returned(operation, keyword) == columns


def test_the_release_returns_the_status_and_then_the_columns_of_a_claim() -> None:
    sql = dialects.text("resolve_endings", "postgresql")
    assert sql is not None
    (returned,) = re.findall(r"RETURNING (task\.status.*?)\),\n", sql, re.DOTALL)
    assert _names(returned) == ("status", *ClaimedTask._fields)


@pytest.mark.parametrize("columns", [ClaimedTask._fields, RUN_COLUMNS])
def test_the_fields_are_attributes_of_the_model(columns: tuple[str, ...]) -> None:
    assert {field.attname for field in Task._meta.concrete_fields} >= set(columns)


def test_columns_are_found_through_expressions_and_aliases() -> None:
    found = _names(" child.a AS unresolved, t.queue,\n (SELECT 1, 2) AS many ")
    assert found == ("unresolved", "queue", "many")

"""The values of a birth as a row of the ORM, for databases without a raw INSERT of ours, and for bulk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django_durable_tasks.lifecycle.statements import recordset
from django_durable_tasks.models import Task
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.rules.states import Status

_NO_COLUMN = frozenset({"wait", "expires_in", "named", "due_at", "unresolved"})


def row_of(values: dict[str, Any]) -> Task:
    """Return the unsaved row; instants that were not given are the database's."""
    start = values["run_at"] or DatabaseNow()
    fields = {name: value for name, value in values.items() if name not in _NO_COLUMN}
    expected = values["expected_duration"]
    if values["expires_in"] is not None and values["expires_at"] is None:
        fields["expires_at"] = start + timedelta(seconds=values["expires_in"])
    return Task(**fields | {
        "args": json.loads(values["args"]),
        "kwargs": json.loads(values["kwargs"]),
        "options": json.loads(values["options"]) if values["options"] else None,
        "run_at": start,
        "due_at": None
        if values["status"] == Status.BLOCKED
        else values.get("due_at") or start + timedelta(seconds=values["wait"]),
        "unresolved_dependencies_count": values["unresolved"],
        "expected_duration": None if expected is None else timedelta(seconds=expected),
        "open_key": values["key"],
        "open_unique_key": values["unique_key"],
    })  # fmt: skip


def records_of(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return rows that differ in everything for one INSERT; each has its ``run_at``."""
    return {"rows": recordset(rows)}


_OWN = frozenset({"id", "args", "kwargs", "shard_key", "limit_key"})


def alike(rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether the rows differ in what ``_OWN`` names only: those of one call of ``schedule_many``."""
    if rows and not {"recurring_task_id", "workflow_id"}.isdisjoint(rows[0]):
        return False
    first = {name: value for name, value in rows[0].items() if name not in _OWN} if rows else {}
    return all(all(row[name] == value for name, value in first.items()) for row in rows)


def columns_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the rows as columns, for one INSERT."""
    return {
        **rows[0],
        "ids": [row["id"] for row in rows],
        "argses": [row["args"] for row in rows],
        "kwargses": [row["kwargs"] for row in rows],
        "shards": [row["shard_key"] for row in rows],
        "limit_keys": [row["limit_key"] for row in rows],
    }

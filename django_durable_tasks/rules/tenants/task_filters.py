"""The filters of lists of tasks and of bulk operations. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.identifiers import first_uuid7_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks: in this status, queue and of this name, created from ``since`` until before
    ``before``. None matches all.
    """

    status: Status | None = None
    queue: str | None = None
    name: str | None = None
    since: datetime | None = None
    before: datetime | None = None

    @property
    def first_id(self) -> uuid.UUID | None:
        """The least id of the period; ids sort by creation time in milliseconds."""
        return None if self.since is None else _id_at(self.since)

    @property
    def end_id(self) -> uuid.UUID | None:
        """The least id after the period."""
        return None if self.before is None else _id_at(self.before)

    def matches(self, status: str, queue: str, name: str) -> bool:
        """Return whether a task with an id of the period matches."""
        return (
            self.status in (None, status)
            and self.queue in (None, queue)
            and self.name in (None, name)
        )

    def stored(self) -> dict[str, Any]:
        """Return the filters that are given as JSON values."""
        found = {
            "status": None if self.status is None else self.status.value,
            "queue": self.queue,
            "name": self.name,
            "since": None if self.since is None else self.since.isoformat(),
            "before": None if self.before is None else self.before.isoformat(),
        }
        return {name: value for name, value in found.items() if value is not None}


def task_filter(stored: Mapping[str, Any]) -> TaskFilter:
    """Return the filter of ``TaskFilter.stored``."""
    found = dict(stored)
    for name in ("since", "before"):
        if name in found:
            found[name] = datetime.fromisoformat(found[name])
    if "status" in found:
        found["status"] = Status(found["status"])
    return TaskFilter(**found)


def _id_at(at: datetime) -> uuid.UUID:
    return first_uuid7_of(max(0, int(at.timestamp() * 1_000)))

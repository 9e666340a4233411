"""Limits and claims for the tests of limits."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from django_durable_tasks import registry
from django_durable_tasks.choices import Status
from django_durable_tasks.limits import release
from django_durable_tasks.models import Limit, Task
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.states import endings
from django_durable_tasks.store.clock import database_now
from tests.factories import NOOP, QUEUE, many_tasks
from tests.messages import claim_due
from tests.process_state import new_process_state
from tests.project import limited  # noqa: F401 - registers the tasks

NODE = uuid.uuid4()
_LIMITED = [name for name in registry.names() if name.startswith("tests.project.limited.")]


_KNOWN = {name: registry._tasks.pop(name) for name in _LIMITED}


BY_SCOPE: dict[str, dict[str, Any]] = {
    f"task:{NOOP}": {},
    "tenant:1": {},
    "key:acme": {"limit_key": "acme"},
    f"queue:{QUEUE}": {},
    "global": {},
}


def limit(scope: str, places: int | None = None, rate: str = "", **fields: Any) -> None:
    """Set an operator's limit, and discard this process's cached limits."""
    Limit.objects.update_or_create(
        scope=scope, defaults={"max_concurrency": places, "rate": rate, **fields}
    )
    new_process_state()


def claim(number: int = 100, now: datetime | None = None, queue: str = QUEUE) -> list[uuid.UUID]:
    """Claim due tasks of the queue, at this time."""
    return [message.task_id for message in claim_due(queue, now or database_now(), number, NODE)]


def release_waiting(number: int = 1_000) -> int:
    """Release tasks that wait for limits."""
    return release.release_waiting(database_now(), number)


def ids(rows: list[Task]) -> list[uuid.UUID]:
    """Return the primary keys of these tasks."""
    return [row.pk for row in rows]


@pytest.fixture
def limited_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the tasks that are limited in code. Without them nothing is limited in the other
    tests.
    """
    monkeypatch.setattr(registry, "_tasks", registry._tasks | _KNOWN)
    new_process_state()


def waiting_for(number: int, scope: str = f"task:{NOOP}", **fields: Any) -> list[Task]:
    """Create tasks that wait for a limit."""
    return many_tasks(number, due_at=NEVER, waiting_for_limit=scope, **fields)


def waiting_scopes() -> set[str | None]:
    """Return the scopes for which tasks wait."""
    return set(Task.objects.waiting_for_limit().values_list("waiting_for_limit", flat=True))


def under_way() -> Counter[int]:
    """Return the number of QUEUED and RUNNING tasks of each tenant."""
    rows = Task.objects.filter(status__in=[Status.QUEUED, Status.RUNNING])
    return Counter(rows.values_list("tenant_id", flat=True))


def end(*ids: uuid.UUID) -> None:
    """End these tasks."""
    endings.cancel(Task.objects.filter(pk__in=ids), "DONE")

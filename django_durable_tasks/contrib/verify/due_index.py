"""Checks that compare the due index in Redis with the tasks: wrong entries, and PENDING tasks
without an entry.

Neither loses a run: the claim refuses a wrong entry, and the poll finds a task without one.
Redis is read before the tables, so that a task that moves in between is not reported. Tasks
that moved recently are skipped, because their entry may not be written yet.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import Error

from django_durable_tasks import conf
from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.verify.check import (
    PATIENCE,
    Finding,
    Page,
    Rows,
    Severity,
    UnlockedCheck,
    VerifyContext,
    Wrong,
    check,
    ground_rows,
    shown,
)
from django_durable_tasks.models import Node, Task
from django_durable_tasks.scheduler import redis_index
from django_durable_tasks.scheduler.due_index import DueEntry
from django_durable_tasks.scheduler.redis_index import (
    HORIZON,
    RedisEntries,
    from_ms,
    id_of,
    instant_ms,
)
from django_durable_tasks.store.clock import after
from django_durable_tasks.store.errors import Unreadable

_MARGIN = timedelta(seconds=5)
"""Tasks that are due this soon may have been popped already, to be claimed."""
_FOREIGN_ENTRY = (
    "It goes by itself when it is due. If another installation with a database of this name uses"
    " this Redis, give it another one, or another REGION."
)
_NO_REDIS = "nothing to check: REDIS_URL is not set"


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries of the set: members and scores."""

    scores: Mapping[str, int]


def _entries() -> RedisEntries:
    shared = redis_index.connection()
    if shared is None:
        raise Unreadable(_NO_REDIS)
    return RedisEntries(shared)


def _idle() -> str:
    """Return why the set cannot be checked. Nodes of another region change the same tasks and
    update another set.
    """
    if redis_index.url() is None:
        return _NO_REDIS
    since = after(-PATIENCE - HORIZON.total_seconds())
    try:
        others = (
            ground_rows(Node).exclude(region=conf.settings().REGION).filter(last_seen_at__gte=since)
        )
        regions = sorted(set(others.values_list("region", flat=True)))
    except Error:
        return ""  # the check itself reports the error
    if not regions:
        return ""
    return (
        f"nothing to check: the regions {', '.join(map(repr, regions))} change the same tasks and"
        " update separate sets in Redis"
    )


# Wrong entries ------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class EntryCheck(UnlockedCheck):
    """A check that scans the set instead of a table; its keys are members."""

    @property
    def plural(self) -> str:
        """The plural of the objects that are checked."""
        return "entries of the due index"

    def walk(self) -> Iterator[Page]:
        """Scan the set once; yields at least one page."""
        entries, past = _entries(), 0
        number = max(1, entries.number())
        for scores in entries.pages():
            past += len(scores)
            yield Page(Entries(scores), len(scores), min(1.0, past / number))  # type: ignore[arg-type]

    def lock_rows(self, keys: Sequence[Any]) -> Rows:
        """Return those of these entries that are in the set now."""
        return Entries(_entries().scores(keys))  # type: ignore[return-value]


@check(
    "due-entries",
    Entries,
    "Does each entry of the due index belong to a waiting task?",
    group="due-index",
    severity=Severity.LATE,
    idle=_idle,
    kind=EntryCheck,
)
def stale(context: VerifyContext, entries: Any) -> list[Wrong]:
    """Find entries of tasks that are deleted, not PENDING, or due at another instant."""
    task_ids = {task_id for member in entries.scores if (task_id := id_of(member)) is not None}
    columns = ("pk", "status", "due_at", "updated_at")
    rows = {
        pk: rest for pk, *rest in ground_rows(Task).filter(pk__in=task_ids).values_list(*columns)
    }
    right = {
        member: _right(context, rows.get(id_of(member)), score)
        for member, score in entries.scores.items()
    }
    return [
        Wrong(
            member,
            "instant",
            from_ms(entries.scores[member]),
            text,
            *_remedy(member, rows),
            table="due entry",
        )
        for member, text in right.items()
        if text
    ]


def _remedy(member: str, rows: Mapping[uuid.UUID, Any]) -> tuple[str, str]:
    """Return the advice and the repair for an entry. If the task does not exist, the entry may
    belong to another installation.
    """
    task_id = id_of(member)
    is_ours = task_id is None or task_id in rows
    return ("", "remove it") if is_ours else (_FOREIGN_ENTRY, "")


def _right(context: VerifyContext, row: Sequence[Any] | None, score: int) -> str:
    """Return what should be in the set instead; empty if the entry is correct or its task moved
    recently.
    """
    if row is None:
        return "none, because there is no such task"
    status, due_at, updated = row
    if updated >= context.ago(PATIENCE):
        return ""
    if status != Status.PENDING:
        return f"none, because the task is {status}"
    return "" if instant_ms(due_at) == score else f"{shown(due_at)}, when the task is due"


@stale.repaired_by
def _remove(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    gone = _entries().drop({one.key: instant_ms(one.found) for one in findings})
    return dict.fromkeys(gone, "removed")


# Tasks without an entry ---------------------------------------------------------------------------


@check(
    "due-missing",
    Task,
    "Does the due index contain every task it should contain?",
    group="due-index",
    repair="add it",
    severity=Severity.LATE,
    idle=_idle,
    kind=UnlockedCheck,
)
def missing(context: VerifyContext, rows: Rows) -> list[Wrong]:
    """Find PENDING tasks that are due before the mark and have no entry."""
    entries = _entries()
    until = entries.filled_until()
    if until is None:
        return []
    coming = _coming(context, rows, until)
    there = entries.instants(list(coming)) if coming else {}
    absent = {
        pk: there.get(pk) for pk, due_at in coming.items() if there.get(pk) != instant_ms(due_at)
    }
    again = _coming(context, rows.filter(pk__in=list(absent)), until) if absent else {}
    found = {pk: None if score is None else from_ms(score) for pk, score in absent.items()}
    return [
        Wrong(
            pk,
            "entry in the due index",
            found[pk],
            f"{shown(due_at)}, because the index claims all that is due before {shown(until)}",
        )
        for pk, due_at in again.items()
        if due_at == coming[pk]
    ]


def _soon(context: VerifyContext, rows: Rows, until: datetime) -> Rows:
    soon = rows.filter(
        status=Status.PENDING,
        in_batch=False,
        due_at__gt=context.now + _MARGIN,
        due_at__lt=until,
    )
    return soon.filter(updated_at__lt=context.ago(PATIENCE))


def _coming(context: VerifyContext, rows: Rows, until: datetime) -> dict[uuid.UUID, datetime]:
    return dict(_soon(context, rows, until).values_list("pk", "due_at"))


@missing.repaired_by
def _add(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys, entries = [one.key for one in findings], _entries()
    until, seen = entries.filled_until(), entries.members(keys)
    if until is None:
        return {}
    columns = ("due_at", "queue", "pk", "priority", "shard_key")
    waiting = _soon(
        context, ground_rows(Task).filter(pk__in=keys), until
    )  # its status may have changed since it was read
    rows = [DueEntry(*row) for row in waiting.values_list(*columns)]
    return dict.fromkeys(entries.put(rows, seen), "added")


CHECKS = (
    stale,
    missing,
)

"""Operations on several rows, in batches. Rows selected by filters require a confirmation."""

from __future__ import annotations

import uuid
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.management.durable.output import Output, table
from django_durable_tasks.management.durable.selectors import (
    count,
    dead_letters,
    letter_id,
    task_id,
    tasks,
)
from django_durable_tasks.management.durable.subcommand import OK, REFUSED, Options, refuse
from django_durable_tasks.models.dead_letter import DeadLetterQuerySet
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.operations.operation import Operation, OperationResult

_TASK = ("id", "status", "queue", "name", "key", "attempts")
_LETTER = ("id", "task_id", "reason", "fingerprint", "attempts", "created_at")


@dataclass(slots=True, kw_only=True)
class BulkChange:
    """An operation on rows: those that it changes, and those that are left unchanged.

    ``act`` performs the operation on the rows with the given ids and returns the outcome.
    ``explicit`` is true if the rows were named by their ids.
    """

    command: str
    operation: Operation
    rows: list[dict[str, Any]]
    act: Callable[[list[Any]], OperationResult]
    explicit: bool
    left: list[dict[str, Any]] = field(default_factory=list)


def add_limit(parser: ArgumentParser) -> None:
    """Declare ``--limit``."""
    parser.add_argument("--limit", type=count, help="Change at most this many, oldest first.")


def add_ids(parser: ArgumentParser, *, letters: bool = False) -> None:
    """Declare the ids; with ``letters`` also the numbers of dead letters."""
    what = "Ids of tasks, or numbers of dead letters." if letters else "Ids of tasks."
    parser.add_argument(
        "ids", nargs="*", metavar="ID", type=letter_id if letters else task_id, help=what
    )


def task_ids(given: Sequence[uuid.UUID | int]) -> list[uuid.UUID]:
    """Return the ids of the named tasks and of the tasks of the named dead letters. Exits if a dead
    letter does not exist.
    """
    numbers = [one for one in given if isinstance(one, int)]
    found = (
        dict(dead_letters().filter(pk__in=numbers).values_list("pk", "task_id")) if numbers else {}
    )
    missing = [number for number in numbers if number not in found]
    if missing:
        refuse(f"There is no dead letter {missing[0]}.")
    return [found[one] if isinstance(one, int) else one for one in given]


def task_rows(question: TaskQuerySet, limit: int | None) -> list[dict[str, Any]]:
    """Return the rows of these tasks, oldest first."""
    return list(question.order_by("pk").values(*_TASK)[:limit])


def letter_rows(question: DeadLetterQuerySet, limit: int | None) -> list[dict[str, Any]]:
    """Return the rows of these dead letters, oldest first."""
    return list(question.order_by("pk").values(*_LETTER)[:limit])


def left_unchanged(
    ids: Sequence[uuid.UUID], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the named tasks that are not among the rows, each with the reason."""
    others = [one for one in ids if one not in {row["id"] for row in rows}]
    status = dict(tasks().filter(pk__in=others).values_list("pk", "status")) if others else {}
    return [
        {"id": one, "why": f"it is {status[one]}" if one in status else "there is no such task"}
        for one in others
    ]


def carry_out(change: BulkChange, options: Options, out: Output) -> int:
    """Perform the change or show it, write the result, and return the exit code."""
    if options["dry_run"]:
        shown = {
            "command": change.command,
            "dry_run": True,
            "would_change": change.rows,
            "left_alone": change.left,
        }
        out.emit(shown, _preview(change))
        return OK
    if change.operation.confirm and not (change.explicit or len(change.rows) < 2 or options["yes"]):
        refuse(
            f"{change.command} would change {len(change.rows)} rows: show them with"
            " --dry-run, confirm with --yes."
        )
    counts, refused = _in_batches(change, out)
    left = change.left + refused
    out.emit(
        {"command": change.command, **counts, "left_alone": left}, _outcome(change, counts, left)
    )
    return REFUSED if change.explicit and not sum(counts.values()) else OK


def _in_batches(change: BulkChange, out: Output) -> tuple[dict[str, int], list[dict[str, Any]]]:
    ids, size = [row["id"] for row in change.rows], conf.settings().BATCH_SIZE
    counts: Counter[str] = Counter()
    refused: list[dict[str, Any]] = []
    for at in range(0, len(ids), size):
        batch = ids[at : at + size]
        try:
            counts.update(change.act(batch).counts)
        except TransitionRefused as error:
            _one_by_one(change, batch, counts, refused, error)
        if len(ids) > size:
            out.note(f"{min(at + size, len(ids))} of {len(ids)}")
    return dict(counts), refused


def _one_by_one(
    change: BulkChange,
    batch: list[Any],
    counts: Counter[str],
    refused: list[dict[str, Any]],
    error: TransitionRefused,
) -> None:
    """Perform the operation on each row of a batch separately, after the refusal of one row rolled
    back the whole batch.
    """
    if len(batch) == 1:
        refused.append({"id": batch[0], "why": str(error)})
        return
    for one in batch:
        try:
            counts.update(change.act([one]).counts)
        except TransitionRefused as why:
            refused.append({"id": one, "why": str(why)})


def _preview(change: BulkChange) -> str:
    columns = _TASK if "status" in (change.rows or [{}])[0] else _LETTER
    lines = (
        [f"{change.command} would change {len(change.rows)} rows:"]
        if change.rows
        else ["nothing would change"]
    )
    return "\n".join(
        [*lines, *([table(columns, change.rows)] if change.rows else []), *_left(change.left)]
    )


def _outcome(
    change: BulkChange, counts: Mapping[str, int], left: Sequence[Mapping[str, Any]]
) -> str:
    done = (
        ", ".join(f"{number} {word}" for word, number in counts.items() if number)
        or "nothing changed"
    )
    return "\n".join([f"{change.command}: {done}", *_left(left)])


def _left(left: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"  left unchanged {row['id']}: {row['why']}" for row in left]

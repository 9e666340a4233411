"""Verbs that move rows: each batch is one call of the lifecycle, and nothing that filters pick moves unseen."""

from __future__ import annotations

import json
import uuid
from argparse import ArgumentParser, ArgumentTypeError
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.management.durable.output import Output, table
from django_durable_tasks.management.durable.questions import case_id, count, letters, task_id, tasks
from django_durable_tasks.management.durable.verb import OK, REFUSED, Options, refuse
from django_durable_tasks.models.dead_letter import DeadLetterQuerySet
from django_durable_tasks.models.task import TaskQuerySet

_TASK = ("id", "status", "queue", "name", "key", "attempts")
_LETTER = ("id", "task_id", "reason", "fingerprint", "attempts", "created_at")

Act = Callable[[list[Any]], Mapping[str, int]]


@dataclass(slots=True, kw_only=True)
class Change:
    """What a call would move: the rows as they stand, those that it leaves alone, and the call for some of them."""

    verb: str
    rows: list[dict[str, Any]]
    act: Act
    explicit: bool
    left: list[dict[str, Any]] = field(default_factory=list)


def add_bulk(parser: ArgumentParser) -> None:
    """Declare what every verb has that can move more than one row."""
    parser.add_argument("--limit", type=count, help="the first so many rows only, the oldest first")
    parser.add_argument("--dry-run", action="store_true", help="show which rows would change, and change none")
    parser.add_argument("--yes", action="store_true", help="do it although filters pick more than one row")


def add_ids(parser: ArgumentParser, *, cases: bool = False) -> None:
    """Declare the ids; with ``cases`` numbers of dead letters too."""
    what = "ids of tasks, or numbers of dead letters" if cases else "ids of tasks"
    parser.add_argument("ids", nargs="*", metavar="ID", type=case_id if cases else task_id, help=what)


def task_ids(given: Sequence[uuid.UUID | int]) -> list[uuid.UUID]:
    """Return the tasks that these ids mean, themselves or by their dead letters; refuses an unknown dead letter."""
    numbers = [one for one in given if isinstance(one, int)]
    found = dict(letters().filter(pk__in=numbers).values_list("pk", "task_id")) if numbers else {}
    missing = [number for number in numbers if number not in found]
    if missing:
        refuse(f"There is no dead letter {missing[0]}.")
    return [found[one] if isinstance(one, int) else one for one in given]


def task_rows(question: TaskQuerySet, limit: int | None) -> list[dict[str, Any]]:
    """Return the rows of the question as a change shows them, the oldest first."""
    return list(question.order_by("pk").values(*_TASK)[:limit])


def letter_rows(question: DeadLetterQuerySet, limit: int | None) -> list[dict[str, Any]]:
    """Return the dead letters of the question as a change shows them, the oldest first."""
    return list(question.order_by("pk").values(*_LETTER)[:limit])


def left_alone(ids: Sequence[uuid.UUID], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return which of the tasks named are not among the rows, and where they stand."""
    others = [one for one in ids if one not in {row["id"] for row in rows}]
    status = dict(tasks().filter(pk__in=others).values_list("pk", "status")) if others else {}
    return [{"id": one, "why": f"it is {status[one]}" if one in status else "there is no such task"} for one in others]


def carry_out(change: Change, options: Options, out: Output) -> int:
    """Show or make the change, and tell what became of it."""
    if options["dry_run"]:
        told = {"verb": change.verb, "dry_run": True, "would_change": change.rows, "left_alone": change.left}
        out.emit(told, _preview(change))
        return OK
    if not change.explicit and len(change.rows) > 1 and not options["yes"]:
        refuse(f"{change.verb} would change {len(change.rows)} rows: see them with --dry-run, do it with --yes.")
    counts, refused = _in_batches(change, out)
    left = change.left + refused
    out.emit({"verb": change.verb, **counts, "left_alone": left}, _outcome(change, counts, left))
    return REFUSED if change.explicit and not sum(counts.values()) else OK


def _in_batches(change: Change, out: Output) -> tuple[dict[str, int], list[dict[str, Any]]]:
    ids, size = [row["id"] for row in change.rows], conf.settings().BATCH_SIZE
    counts: Counter[str] = Counter()
    refused: list[dict[str, Any]] = []
    for at in range(0, len(ids), size):
        batch = ids[at : at + size]
        try:
            counts.update(change.act(batch))
        except TransitionRefused as error:
            _one_by_one(change.act, batch, counts, refused, error)
        if len(ids) > size:
            out.note(f"{min(at + size, len(ids))} of {len(ids)}")
    return dict(counts), refused


def _one_by_one(
    act: Act, batch: list[Any], counts: Counter[str], refused: list[dict[str, Any]], error: TransitionRefused
) -> None:
    """Do a batch again row by row, because one of its rows was refused and took the others with it."""
    if len(batch) == 1:
        refused.append({"id": batch[0], "why": str(error)})
        return
    for one in batch:
        try:
            counts.update(act([one]))
        except TransitionRefused as why:
            refused.append({"id": one, "why": str(why)})


def _preview(change: Change) -> str:
    columns = _TASK if "status" in (change.rows or [{}])[0] else _LETTER
    lines = [f"{change.verb} would change {len(change.rows)} rows:"] if change.rows else ["nothing would change"]
    return "\n".join([*lines, *([table(columns, change.rows)] if change.rows else []), *_left(change.left)])


def _outcome(change: Change, counts: Mapping[str, int], left: Sequence[Mapping[str, Any]]) -> str:
    done = ", ".join(f"{number} {word}" for word, number in counts.items() if number) or "nothing changed"
    return "\n".join([f"{change.verb}: {done}", *_left(left)])


def _left(left: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"  left alone {row['id']}: {row['why']}" for row in left]


def json_of(kind: type, option: str) -> Callable[[str], Any]:
    """Return the reader of an option that holds a JSON list or object."""

    def read(text: str) -> Any:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ArgumentTypeError(f"{option} is no JSON: {error}") from error
        if not isinstance(value, kind):
            raise ArgumentTypeError(f"{option} takes a JSON {'list' if kind is list else 'object'}")
        return value

    return read

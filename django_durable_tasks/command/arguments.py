"""Command line arguments: selected rows, described schedules, calendars, and fields of
operations.
"""

from __future__ import annotations

import copy
import json
import re
import uuid
from argparse import ArgumentParser, ArgumentTypeError
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django_durable_tasks import conf, ports
from django_durable_tasks.choices import CatchUp, CatchUpOrder, Status
from django_durable_tasks.command.subcommand import OK, REFUSED, Options, Output, refuse, table
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.models import DeadLetter, RecurringTask, Task
from django_durable_tasks.models.tasks import DeadLetterQuerySet, TaskQuerySet
from django_durable_tasks.operations.operation import (
    REASON_HELP,
    Argument,
    ArgumentType,
    Operation,
    OperationResult,
    Reason,
)
from django_durable_tasks.schedules.agenda import Agenda, agenda
from django_durable_tasks.schedules.business_days import (
    MOST_CHARACTERS,
    BusinessDays,
    Roll,
    combined,
    from_holidays,
    from_ics,
)
from django_durable_tasks.schedules.options import KINDS, columns
from django_durable_tasks.schedules.schedule_cache import agenda_from, agenda_of
from django_durable_tasks.schedules.timetables.builder import timetable
from django_durable_tasks.schedules.timetables.types import DstGap, DstOverlap

# Calendars that are named on the command line, without a database.


_HOLIDAYS = re.compile(r"holidays:([A-Za-z0-9]+)(?:-([A-Za-z0-9]+))?")
WAYS = "weekdays, holidays:DE-BY (a country, or an exchange as XNYS), or the path of an .ics file"


def days_of(sources: Sequence[str], years: range) -> BusinessDays | None:
    """Return the dates on which all these calendars are open; None if no calendar is named.
    Holidays and files are read for these years; outside them only the weekend is closed.
    """
    return combined([_days(source, years) for source in sources]) if sources else None


def _days(source: str, years: range) -> BusinessDays:
    if source == "weekdays":
        return BusinessDays(name=source)
    found = _HOLIDAYS.fullmatch(source)
    if found:
        return BusinessDays(name=source, special=from_holidays(found[1].upper(), found[2], years))
    if not source.lower().endswith(".ics"):
        refuse(f"--calendar {source!r}: give {WAYS}.")
    return BusinessDays(name=Path(source).stem, special=from_ics(_text(Path(source)), years))


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read(MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"--calendar {path}: it cannot be read: {error}.")


# A schedule that is described on the command line: an unsaved RecurringTask, or a stored one with
# an edit.


DRAFT = "preview"
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_PERIOD = re.compile(r"(?:(\d+) )?(day|week|month|quarter|year)s?")
_YEARS_AHEAD = 12
_FIRST_YEAR, _LAST_YEAR = 1900, 2500
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_KEYWORDS = (
    "cron",
    "rrule",
    "solar",
    "at",
    "seconds",
    "latitude",
    "longitude",
    "offset",
    "day",
    "month",
    "time",
    "timezone",
    "dst_gap",
    "dst_overlap",
    "roll",
    "jitter",
    "catch_up_mode",
    "misfire_grace",
    "catchup_window",
    "max_catchup_runs",
    "catchup_order",
    "catchup_pace",
    "expires_in",
)


@dataclass(frozen=True, slots=True)
class ScheduleDraft:
    """An unsaved or stored RecurringTask with the timetable that its fields describe."""

    row: RecurringTask
    agenda: Agenda


def moment(text: str) -> datetime:
    """Read an instant in ISO 8601 with its offset."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is no instant; write it as 2026-03-07T00:00:00Z"
        ) from None
    if found.tzinfo is None:
        raise ArgumentTypeError(
            f"{text!r} has no offset; write it as {found.isoformat()}Z, or with +01:00"
        )
    if not _FIRST_YEAR <= found.year <= _LAST_YEAR:
        raise ArgumentTypeError(f"{text!r} is not within the years {_FIRST_YEAR} to {_LAST_YEAR}")
    return found.astimezone(UTC)


def _number_or_text(text: str) -> int | str:
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else text


def add_schedule(parser: ArgumentParser) -> None:
    """Declare the options that describe a schedule."""
    when = parser.add_argument_group("schedule", "several may be given; they are combined by OR")
    when.add_argument(
        "--cron", action="append", metavar="EXPR", help="five fields, or @daily and the like"
    )
    when.add_argument(
        "--seconds",
        choices=("FIRST", "LAST"),
        help="--cron has six fields; where the seconds stand",
    )
    when.add_argument("--rrule", action="append", metavar="TEXT", help="a recurrence of RFC 5545")
    when.add_argument(
        "--every",
        metavar="SPAN",
        help="90, 15m, 2h, 1d of elapsed time; or day, week, '2 months', year",
    )
    when.add_argument(
        "--day",
        type=_number_or_text,
        help="of --every month: 15, -1, 'last working', '2nd tuesday'",
    )
    when.add_argument(
        "--month", type=int, help="of --every year or quarter: the month in it, from 1"
    )
    when.add_argument("--time", metavar="HH:MM", help="of --every day, week, month, quarter, year")
    when.add_argument("--solar", metavar="EVENT", help="sunrise, sunset, dusk_civil, ...")
    when.add_argument("--latitude", type=float, help="of --solar, degrees north")
    when.add_argument("--longitude", type=float, help="of --solar, degrees east")
    when.add_argument("--offset", type=float, help="of --solar, seconds after the event")
    when.add_argument("--at", action="append", metavar="INSTANT", help="a single instant, ISO 8601")
    _add_zone_and_calendars(when)


def _add_zone_and_calendars(when: Any) -> None:
    when.add_argument(
        "--timezone", metavar="ZONE", help="of the wall clock (default: that of new schedules)"
    )
    when.add_argument(
        "--dst-gap", choices=[*DstGap], help="a time that the clock jumps over (default: RUN_AFTER)"
    )
    when.add_argument(
        "--dst-overlap", choices=[*DstOverlap], help="a time that comes twice (default: FIRST)"
    )
    when.add_argument("--calendar", action="append", metavar="SOURCE", help=WAYS)
    when.add_argument(
        "--roll", choices=[*Roll], help="what becomes of fires on closed days (default: SKIP)"
    )
    when.add_argument(
        "--jitter", metavar="SPREAD", help="seconds, or percent of the way to the next fire"
    )


def add_catch_up(parser: ArgumentParser) -> None:
    """Declare the options for missed fires."""
    late = parser.add_argument_group("catch-up", "options of the schedule; durations in seconds")
    late.add_argument(
        "--catch-up-mode", choices=[*CatchUp], help="what becomes of them (default: RUN_ONE_NOW)"
    )
    late.add_argument(
        "--misfire-grace", type=float, metavar="SECONDS", help="late, but not missed (default: 60)"
    )
    late.add_argument(
        "--catchup-window", type=float, metavar="SECONDS", help="what is older is not caught up"
    )
    late.add_argument(
        "--max-catchup-runs",
        type=int,
        metavar="N",
        help="run at most the N newest missed fire times (default: 100)",
    )
    late.add_argument(
        "--catchup-order", choices=[*CatchUpOrder], help="which runs first (default: OLDEST)"
    )
    late.add_argument(
        "--catchup-pace", type=float, metavar="SECONDS", help="between two runs that are caught up"
    )
    late.add_argument(
        "--expires-in", type=float, metavar="SECONDS", help="after its fire time a run is too late"
    )


def add_stored(parser: ArgumentParser, *, optional: bool) -> None:
    """Declare the name of a stored schedule."""
    parser.add_argument(
        "name",
        nargs="?" if optional else None,
        metavar="NAME",
        help="a recurring task, by its name",
    )
    parser.add_argument("--tenant", help="of this tenant (its slug)")


def given(options: Options) -> dict[str, Any]:
    """Return the options of the schedule as keyword arguments of ``upsert``; exits if a duration
    cannot be parsed.
    """
    found = {name: options[name] for name in _KEYWORDS if options.get(name) is not None}
    return found if options["every"] is None else found | _every(options["every"])


def _every(text: str) -> dict[str, Any]:
    if found := _INTERVAL.fullmatch(text):
        return {"interval": float(found[1]) * _UNITS[found[2]]}
    if found := _PERIOD.fullmatch(text):
        return {"every": found[2], "count": int(found[1] or 1)}
    return refuse(
        f"--every {text!r}: give 90, 15m, 2h or 1d for elapsed time, or day, week, '2 months',"
        " quarter, year."
    )


def draft(
    options: Options, start: datetime, *, anchored: datetime | None, backwards: bool = False
) -> ScheduleDraft:
    """Return the schedule that the options alone describe; does not use the database.

    Intervals and recurrence rules are counted from ``anchored``. Without it they are counted from
    ``start``, or with ``backwards`` from the year 2000.
    """
    keywords = given(options)
    if not set(KINDS) & keywords.keys():
        refuse(
            "Give the name of a recurring task, or one of --cron, --rrule, --every, --solar, --at."
        )
    anchor = anchored or (_LONG_AGO if backwards else start)
    values = {"time_zone": ports.schedule_zone(), **columns(DRAFT, keywords)}
    row = RecurringTask(name=DRAFT, start_time=anchor, end_time=options["end"], **values)
    days = calendar(options, start)
    times = timetable(
        row.timetable,
        zone=row.time_zone,
        anchor=anchor,
        dst_gap=row.dst_gap,
        dst_overlap=row.dst_overlap,
        seed=DRAFT,
        days=days,
    )
    return ScheduleDraft(
        row, agenda(times, zone=row.time_zone, days=days, roll=Roll(row.roll), end=row.end_time)
    )


def calendar(options: Options, start: datetime) -> BusinessDays | None:
    """Return the open days of --calendar, from the year before ``start``."""
    return days_of(options["calendar"] or [], range(start.year - 1, start.year + _YEARS_AHEAD))


def stored(options: Options) -> ScheduleDraft:
    """Return the recurring task with this name. Exits if the name is unknown or used by several
    tenants.
    """
    rows = RecurringTask.objects.using(conf.settings().DATABASE).filter(name=options["name"])
    if options["tenant"] is not None:
        rows = rows.filter(tenant__slug=options["tenant"])
    found = list(rows[:2])
    if not found:
        refuse(f"There is no recurring task {options['name']!r}.")
    if len(found) > 1:
        refuse(f"Several tenants have a recurring task {options['name']!r}: give --tenant.")
    return ScheduleDraft(found[0], agenda_of(found[0]))


def edited(before: ScheduleDraft, options: Options, start: datetime) -> ScheduleDraft | None:
    """Return the stored schedule as these options would change it; None if they change nothing."""
    keywords = given(options)
    days = calendar(options, start)
    if not keywords and days is None:
        return None
    row = copy.copy(before.row)
    if set(KINDS) & keywords.keys():
        keywords = {"timezone": row.time_zone, **keywords}
    _set(row, columns(row.name, keywords))
    return ScheduleDraft(row, agenda_of(row) if days is None else agenda_from(row, days))


def _set(row: RecurringTask, values: Mapping[str, Any]) -> None:
    for column, value in values.items():
        setattr(row, column, value)


# Selecting rows by their ids or by filters.


_HELP = {
    "name": "Only tasks of this name.",
    "queue": "Only tasks of this queue.",
    "tenant": "Only tasks of this tenant (its slug).",
    "key": "Only tasks with this key.",
    "fingerprint": "Only tasks with this error fingerprint.",
    "status": "Only tasks in this status.",
}


def tasks() -> TaskQuerySet:
    """Return a queryset of all tasks."""
    found: TaskQuerySet = Task.objects.using(conf.settings().DATABASE)
    return found


def dead_letters() -> DeadLetterQuerySet:
    """Return a queryset of all dead letters."""
    found: DeadLetterQuerySet = DeadLetter.objects.using(conf.settings().DATABASE)
    return found


def task_id(text: str) -> uuid.UUID:
    """Read the id of a task."""
    try:
        return uuid.UUID(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not the id of a task (a UUID)") from None


def letter_id(text: str) -> uuid.UUID | int:
    """Read the id of a task or the number of a dead letter."""
    return int(text) if text.isdecimal() else task_id(text)


def count(text: str) -> int:
    """Read a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def add_filters(parser: ArgumentParser, *names: str) -> None:
    """Declare filters by their names."""
    for name in names:
        choices: Any = [status.value for status in Status] if name == "status" else None
        parser.add_argument(f"--{name}", choices=choices, help=_HELP[name])


def has_filter(options: Options) -> bool:
    """Return whether any filter was given."""
    return any(options.get(name) is not None for name in _HELP)


def narrowed(question: TaskQuerySet, options: Options) -> TaskQuerySet:
    """Apply the filters to a queryset of tasks."""
    fields = {
        "name": "name",
        "queue": "queue",
        "tenant": "tenant__slug",
        "key": "key",
        "status": "status",
    }
    given = {
        field: options[name] for name, field in fields.items() if options.get(name) is not None
    }
    return question.filter(**given)


def narrowed_letters(question: DeadLetterQuerySet, options: Options) -> DeadLetterQuerySet:
    """Apply the filters to a queryset of dead letters."""
    fields = {
        "name": "task__name",
        "queue": "task__queue",
        "tenant": "tenant__slug",
        "fingerprint": "fingerprint",
    }
    given = {
        field: options[name] for name, field in fields.items() if options.get(name) is not None
    }
    return question.filter(**given)


def check_selected(options: Options) -> None:
    """Refuse a call with both ids and filters, or with neither."""
    if bool(options["ids"]) == has_filter(options):
        refuse("Select the tasks either by their ids or by filters.")


def json_of(kind: type, option: str) -> Callable[[str], Any]:
    """Return the reader of an option that holds a JSON list or object."""

    def read(text: str) -> Any:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ArgumentTypeError(f"{option} is not JSON: {error}") from error
        if not isinstance(value, kind):
            raise ArgumentTypeError(f"{option} takes a JSON {'list' if kind is list else 'object'}")
        return value

    return read


# The command line arguments of operations, created from the fields in the registry.


def add_operations(
    parser: ArgumentParser, *operations: Operation, without: Collection[str] = ()
) -> None:
    """Declare the fields of the operations except ``without``, then ``--by`` and ``--reason``.
    ``--dry-run`` and ``--yes`` are added if an operation has a dry run or requires a confirmation.
    """
    known = set(without)
    for operation in operations:
        for argument in operation.fields:
            if argument.name not in known:
                known.add(argument.name)
                _add_field(parser, argument)
    parser.add_argument("--by", help="Who does it. Default: the user of the operating system.")
    required = all(operation.reason == Reason.REQUIRED for operation in operations)
    parser.add_argument("--reason", default="", required=required, help=str(REASON_HELP))
    if any(one.dry_run or one.target.is_queryset for one in operations):
        parser.add_argument(
            "--dry-run", action="store_true", help="Show what would change and change nothing."
        )
    if any(operation.confirm for operation in operations):
        parser.add_argument(
            "--yes",
            action="store_true",
            help="Confirm. Required if it would change more than the objects that you name.",
        )


def values(options: Options, operation: Operation) -> dict[str, Any]:
    """Return the values of the operation's fields as its keyword arguments."""
    return {field.name: options[field.name] for field in operation.fields}


def _add_field(parser: ArgumentParser, field: Argument) -> None:
    option = f"--{field.name.replace('_', '-')}"
    text = str(field.help or field.label)
    if field.kind == ArgumentType.FLAG:
        parser.add_argument(option, action="store_true", help=text)
        return
    how: dict[str, Any] = {"help": text}
    if field.choices:
        how["choices"] = [str(value) for value, _label in field.choices if value]
    else:
        how["type"] = _readers(field, option)
    if field.metavar:
        how["metavar"] = field.metavar
    if field.positional:
        parser.add_argument(field.name, **how)
        return
    if field.default is not None:
        how |= {"default": field.default, "help": f"{text} Default: {field.default}."}
    # Django reserves ``args`` among the options of a command.
    dest = f"new_{field.name}" if field.name in ("args", "kwargs") else field.name
    parser.add_argument(option, dest=dest, required=field.required, **how)


def _readers(field: Argument, option: str) -> Callable[[str], Any]:
    readers: dict[ArgumentType, Callable[[str], Any]] = {
        ArgumentType.TEXT: str,
        ArgumentType.INSTANT: moment,
        ArgumentType.INTEGER: count if field.minimum else int,
        ArgumentType.SECONDS: float,
        ArgumentType.JSON_LIST: json_of(list, option),
        ArgumentType.JSON_OBJECT: json_of(dict, option),
        ArgumentType.TASK_ID: task_id,
        ArgumentType.REQUEST_ID: str,
    }
    return readers[field.kind]


# Operations on several rows, in batches. Rows selected by filters require a confirmation.


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

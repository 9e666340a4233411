"""Schedules on the command line: selection by name, and output."""

from __future__ import annotations

import dataclasses
import uuid
from argparse import ArgumentParser
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.recurring import preview
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.management.durable.output import Output, cell, clean, hidden, table
from django_durable_tasks.management.durable.subcommand import OK, refuse
from django_durable_tasks.models import OccurrenceOverride, OccurrenceRecord, RecurringTask
from django_durable_tasks.models.occurrence import OccurrenceQuerySet
from django_durable_tasks.models.recurring_task import RecurringTaskQuerySet
from django_durable_tasks.rules.recurring.timetables.describe import words

LEDGER_COLUMNS = (
    "fire_time",
    "last_fire_time",
    "count",
    "outcome",
    "reason",
    "task_id",
    "blocked_by",
    "effective_at",
    "count_is_exact",
    "request_id",
    "term",
    "created_at",
)
LEDGER_SHOWN = ("fire_time", "last_fire_time", "count", "outcome", "task_id", "reason")
FIRE_SHOWN = ("nominal", "effective", "remarks")
_ROW = (
    "name",
    "status",
    "task",
    "queue",
    "timetable",
    "time_zone",
    "next_run_at",
    "last_run_at",
    "runs_count",
    "max_runs",
    "overlap",
    "catch_up_mode",
    "status_reason",
    "source",
)
ROW_SHOWN = (
    "name",
    "status",
    "task",
    "schedule",
    "time_zone",
    "next_run_at",
    "last_run_at",
    "runs_count",
    "status_reason",
)
_FACTS = (
    "id",
    "name",
    "description",
    "status",
    "status_reason",
    "status_by",
    "paused_at",
    "paused_until",
    "error",
    "task",
    "args",
    "kwargs",
    "queue",
    "priority",
    "options",
    "schedule",
    "timetable",
    "time_zone",
    "dst_gap",
    "dst_overlap",
    "calendars",
    "roll",
    "jitter",
    "jitter_percent",
    "start_time",
    "end_time",
    "max_runs",
    "runs_count",
    "expires_in",
    "catch_up_mode",
    "misfire_grace",
    "catchup_window",
    "max_catchup_runs",
    "catchup_order",
    "catchup_pace",
    "overlap",
    "overlap_key",
    "next_run_at",
    "watermark_at",
    "last_run_at",
    "ledger_from",
    "tzdata_version",
    "revision",
    "source",
    "undeclared_at",
    "created_at",
    "updated_at",
)
_OVERRIDE = ("fire_time", "action", "move_to", "reason", "by")
_FEW = 5
_SOME = 10


def rows() -> RecurringTaskQuerySet:
    """Return all recurring tasks."""
    found: RecurringTaskQuerySet = RecurringTask.objects.using(conf.settings().DATABASE)
    return found


def add_name(parser: ArgumentParser) -> None:
    """Declare the name of a recurring task, and its tenant."""
    parser.add_argument("name", metavar="NAME", help="the name of the recurring task, or its id")
    add_tenant(parser)


def add_tenant(parser: ArgumentParser) -> None:
    """Declare the tenant, for names that several tenants use."""
    parser.add_argument(
        "--tenant", help="of this tenant (its slug), where several have one of that name"
    )


def found(name: str, tenant: str | None) -> RecurringTask | None:
    """Return the recurring task with this name or id; None if it does not exist. Exits if several
    tenants have a schedule of this name.
    """
    question = rows().select_related("tenant")
    try:
        question = question.filter(pk=uuid.UUID(name))
    except ValueError:
        question = question.filter(name=name)
    if tenant is not None:
        question = question.filter(tenant__slug=tenant)
    several: list[RecurringTask] = list(question.order_by("pk")[:2])
    if len(several) > 1:
        refuse(f"Several tenants have a recurring task {name!r}: add --tenant.")
    return several[0] if several else None


def named(name: str, tenant: str | None) -> RecurringTask:
    """Return the recurring task with this name or id; exits if it does not exist."""
    row = found(name, tenant)
    if row is None:
        refuse(f"There is no recurring task {name!r}; `durable list recurring` shows them.")
    return row


def listed(question: RecurringTaskQuerySet, limit: int) -> list[dict[str, Any]]:
    """Return the rows of a list, each with its schedule as text."""
    return [
        {**row, "schedule": _in_words(row["timetable"])}
        for row in question.values("id", *_ROW)[:limit]
    ]


def _in_words(timetable: Any) -> str:
    try:
        return words(timetable)
    except (AttributeError, LookupError, TypeError, ValueError):
        # A row that was corrupted outside of the ORM is shown all the same.
        return f"not readable: {timetable}"


def ledger_of(row: RecurringTask) -> OccurrenceQuerySet:
    """Return the ledger of a recurring task, the newest entry first."""
    entries: OccurrenceQuerySet = OccurrenceRecord.objects.using(conf.settings().DATABASE).filter(
        recurring_task=row.pk
    )
    return entries.order_by("-fire_time", "-pk")


def show(row: RecurringTask, out: Output) -> int:
    """Show the row, its next fires, its overrides and the last entries of its ledger."""
    data = {name: getattr(row, name) for name in _FACTS if name != "schedule"}
    data |= {"args": hidden(row.args), "kwargs": hidden(row.kwargs), "options": hidden(row.options)}
    data |= {
        "error": clean(row.error),
        "schedule": _in_words(row.timetable),
        "tenant": _tenant(row),
    }
    overrides = OccurrenceOverride.objects.using(conf.settings().DATABASE).filter(
        recurring_task=row.pk
    )
    data["overrides"] = list(overrides.order_by("fire_time").values(*_OVERRIDE))
    data["next_fires"], data["problem"] = _next_fires(row)
    data["ledger"] = list(ledger_of(row).values(*LEDGER_COLUMNS)[:_SOME])
    out.emit(data, _text(data))
    return OK


def _tenant(row: RecurringTask) -> str:
    return str(getattr(row.tenant, "slug", row.tenant))


def _next_fires(row: RecurringTask) -> tuple[list[dict[str, Any]], str]:
    """Return the next fires; for a row that cannot be read, the reason."""
    try:
        return [
            dataclasses.asdict(fire) for fire in preview.upcoming(row, _FEW, database_now())
        ], ""
    except DurableTasksError as broken:
        return [], str(broken)


def _text(data: dict[str, Any]) -> str:
    facts = [(name, data[name]) for name in (*_FACTS, "tenant", "problem") if name != "timetable"]
    lines = [
        f"{name.replace('_', ' '):>20}  {value if isinstance(value, dict | list) else cell(value)}"
        for name, value in facts
        if value not in (None, "", [], {}) or name in ("args", "kwargs")
    ]
    when = "next fires" if data["status"] == "ACTIVE" else "next fires, were it resumed"
    lines += ["", f"{when}:", table(FIRE_SHOWN, data["next_fires"])]
    if data["overrides"]:
        lines += ["", "overrides:", table(_OVERRIDE, data["overrides"])]
    lines += ["", "last ledger entries:", table(LEDGER_SHOWN, data["ledger"])]
    return "\n".join(lines)

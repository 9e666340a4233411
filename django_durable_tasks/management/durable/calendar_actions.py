"""``durable calendars``: import, list and delete calendars."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.db.models import Count

from django_durable_tasks import conf
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.management.durable.calendar_sources import WAYS, days_of
from django_durable_tasks.management.durable.operation_arguments import add_operations
from django_durable_tasks.management.durable.output import Output, table
from django_durable_tasks.management.durable.subcommand import (
    OK,
    REFUSED,
    Options,
    Subcommand,
    by_and_reason,
    refuse,
)
from django_durable_tasks.models import DEFAULT_TENANT_ID, Calendar, Tenant
from django_durable_tasks.operations import calendars

_SHOWN = ("name", "working_days", "dates", "origin", "updated_at", "description")
_YEARS = 3


def run(options: Options, out: Output) -> int:
    """List, import or delete."""
    return _ACTS[options["act"]](options, out)


def _import(options: Options, out: Output) -> int:
    source = options["source"] or refuse(f"import needs a source: {WAYS}.")
    first = options["year"] or database_now().year
    name = options["name"] or refuse("import needs --name.")
    read = days_of([source], range(first, first + options["years"]))
    if read is None:
        refuse(f"{source!r} is not a calendar: give {WAYS}.")
    outcome = calendars.SAVE.perform(
        name,
        days=read.special,
        working_days=options["working_days"],
        origin=source,
        tenant=_tenant(options),
        **by_and_reason(options),
    )
    shown = {
        "command": "calendars",
        "act": "import",
        "name": name,
        "dates": len(read.special),
        "revision": outcome.value.revision,
    }
    years = f"{first} to {first + options['years'] - 1}"
    out.emit(
        shown,
        f"{name} has {len(read.special)} dates of {years}. Import it again before they run out.",
    )
    return OK


def _list(options: Options, out: Output) -> int:
    question = Calendar.objects.using(conf.settings().DATABASE)
    if options["tenant"] is not None:
        question = question.filter(tenant__slug=options["tenant"])
    rows = list(question.annotate(dates=Count("days")).order_by("name", "pk").values("id", *_SHOWN))
    out.emit(rows, table(_SHOWN, rows))
    return OK


def _delete(options: Options, out: Output) -> int:
    name = options["name"] or refuse("delete needs --name.")
    rows = Calendar.objects.using(conf.settings().DATABASE).filter(name=name)
    row = rows.filter(tenant=_tenant(options) or DEFAULT_TENANT_ID).first()
    shown = {"command": "calendars", "act": "delete", "name": name}
    if row is None:
        out.emit({**shown, "deleted": False}, f"There is no calendar {name}.")
        return REFUSED
    outcome = calendars.DELETE.perform(row, **by_and_reason(options))
    out.emit({**shown, "deleted": bool(outcome.changed)}, outcome.message)
    return OK if outcome.changed else REFUSED


_ACTS = {"list": _list, "import": _import, "delete": _delete}


def _tenant(options: Options) -> Any:
    if options["tenant"] is None:
        return None
    found = Tenant.objects.using(conf.settings().DATABASE).filter(slug=options["tenant"]).first()
    return found or refuse(f"There is no tenant {options['tenant']!r}.")


def _weekdays(text: str) -> list[int]:
    if not re.fullmatch(r"[1-7](,[1-7])*", text):
        raise ArgumentTypeError(f"{text!r} are not weekdays: write them as 1,2,3,4,5 (1 is Monday)")
    return [int(day) for day in text.split(",")]


def arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of list, import and delete."""
    parser.add_argument(
        "act", choices=list(_ACTS), nargs="?", default="list", help="What to do. Default: list."
    )
    parser.add_argument("source", nargs="?", help=f"For import: {WAYS}.")
    parser.add_argument("--name", help="For import and delete: the name of the calendar.")
    parser.add_argument("--year", type=int, help="For import: the first year. Default: this year.")
    parser.add_argument(
        "--years",
        type=int,
        default=_YEARS,
        help=f"For import: the number of years. Default: {_YEARS}.",
    )
    parser.add_argument(
        "--working-days",
        metavar="1,2,3,4,5",
        type=_weekdays,
        help="For import: ISO weekdays, 1 is Monday. Default: unchanged.",
    )
    parser.add_argument("--tenant", help="The slug of the tenant.")
    add_operations(parser, *calendars.OPERATIONS)


CALENDARS = Subcommand(
    name="calendars",
    summary="or list calendars",
    operations=calendars.OPERATIONS,
    examples=(
        "calendars",
        "calendars import holidays:DE-BY --name office --year 2026 --years 3",
        "calendars import company.ics --name office --working-days 1,2,3,4,5,6",
        "calendars delete --name office",
    ),
    arguments=arguments,
    run=run,
)

"""``durable calendars``: import, list and delete the calendars that schedules name."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.db.models import Count

from django_durable_tasks import conf
from django_durable_tasks.lifecycle import calendars
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.management.durable.calendar_sources import WAYS, days_of
from django_durable_tasks.management.durable.output import Output, table
from django_durable_tasks.management.durable.verb import (
    OK,
    REFUSED,
    Options,
    Verb,
    add_by_and_reason,
    by_and_reason,
    refuse,
)
from django_durable_tasks.models import Calendar, Tenant

_SHOWN = ("name", "working_days", "dates", "origin", "updated_at", "description")
_YEARS = 3


def run(options: Options, out: Output) -> int:
    """Do what the word says."""
    return _ACTS[options["act"]](options, out)


def _import(options: Options, out: Output) -> int:
    source = options["source"] or refuse(f"import needs a source: {WAYS}.")
    first = options["year"] or database_now().year
    name = options["name"] or refuse("import needs --name.")
    read = days_of([source], range(first, first + options["years"]))
    if read is None:
        refuse(f"{source!r} is no calendar: give {WAYS}.")
    made = calendars.upsert(
        name, days=read.special, working_days=options["working_days"], origin=source, tenant=_tenant(options),
        **by_and_reason(options),
    )  # fmt: skip
    told = {"verb": "calendars", "act": "import", "name": name, "dates": len(read.special), "revision": made.revision}
    years = f"{first} to {first + options['years'] - 1}"
    out.emit(told, f"{name} has {len(read.special)} dates of {years}; import it again before they run out")
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
    gone = calendars.remove(name, tenant=_tenant(options), **by_and_reason(options))
    out.emit({"verb": "calendars", "act": "delete", "name": name, "deleted": gone},
             f"{name} is deleted" if gone else f"there is no calendar {name}")  # fmt: skip
    return OK if gone else REFUSED


_ACTS = {"list": _list, "import": _import, "delete": _delete}


def _tenant(options: Options) -> Any:
    if options["tenant"] is None:
        return None
    found = Tenant.objects.using(conf.settings().DATABASE).filter(slug=options["tenant"]).first()
    return found or refuse(f"There is no tenant {options['tenant']!r}.")


def _weekdays(text: str) -> list[int]:
    if not re.fullmatch(r"[1-7](,[1-7])*", text):
        raise ArgumentTypeError(f"{text!r} are no weekdays; write them as 1,2,3,4,5 (1 is Monday)")
    return [int(day) for day in text.split(",")]


def arguments(parser: ArgumentParser) -> None:
    """Declare the words."""
    parser.add_argument("act", choices=list(_ACTS), nargs="?", default="list", help="what to do (default: list)")
    parser.add_argument("source", nargs="?", help=f"of import: {WAYS}")
    parser.add_argument("--name", help="of import and delete: the calendar's name")
    parser.add_argument("--year", type=int, help="of import: the first year (default: this one)")
    parser.add_argument("--years", type=int, default=_YEARS, help=f"of import: how many years (default: {_YEARS})")
    parser.add_argument(
        "--working-days", metavar="1,2,3,4,5", type=_weekdays, help="of import: ISO weekdays (default: as they are)"
    )
    parser.add_argument("--tenant", help="of this tenant (its slug)")
    add_by_and_reason(parser, "of import and delete: why; import keeps it in the calendar")


CALENDARS = Verb(
    name="calendars",
    help="list the calendars of schedules; import one as a snapshot of holidays or of an .ics file; delete one",
    examples=(
        "calendars",
        "calendars import holidays:DE-BY --name office --year 2026 --years 3",
        "calendars import company.ics --name office --working-days 1,2,3,4,5,6",
        "calendars delete --name office",
    ),
    arguments=arguments,
    run=run,
)

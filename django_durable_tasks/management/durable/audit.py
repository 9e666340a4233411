"""``durable audit``: who changed what, the newest first."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.management.durable.output import Output, table
from django_durable_tasks.management.durable.selectors import count
from django_durable_tasks.management.durable.subcommand import OK, Options, Subcommand
from django_durable_tasks.models import AuditEntry
from django_durable_tasks.rules.audit import OBJECT_TYPES

_COLUMNS = (
    "id",
    "at",
    "operation",
    "object_type",
    "object_id",
    "count",
    "actor",
    "source",
    "address",
    "reason",
    "before",
    "after",
)
_SHOWN = (*_COLUMNS[:8], "reason")


def audit(options: Options, out: Output) -> int:
    """Show one page of entries."""
    found = AuditEntry.objects.using(conf.settings().DATABASE).order_by("-pk")
    filters: dict[str, Any] = {
        "operation": options["operation"],
        "actor": options["actor"],
        "object_id": options["object"],
        "tenant__slug": options["tenant"],
        "pk__lt": options["after"],
    }
    found = found.filter(**{name: value for name, value in filters.items() if value is not None})
    if options["object"] is not None:
        found = found.filter(object_type__in=OBJECT_TYPES)
    rows = list(found.values(*_COLUMNS)[: options["limit"]])
    out.emit(rows, table(_SHOWN, rows, "there are no such entries"))
    if len(rows) == options["limit"]:
        out.note(f"There may be more: add --after {rows[-1]['id']}")
    return OK


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--operation", help="Only this operation, such as tasks.cancel.")
    parser.add_argument("--actor", help="Only this user, key or program.")
    parser.add_argument("--object", help="Only entries about the object with this id or name.")
    parser.add_argument("--tenant", help="Only this tenant (its slug).")
    parser.add_argument("--limit", type=count, default=50, help="How many entries. Default: 50.")
    parser.add_argument("--after", type=count, help="Continue after the last id of a page.")


AUDIT = Subcommand(
    name="audit",
    summary="list who changed what, when, why and from where",
    examples=(
        "audit",
        "audit --operation tasks.cancel --limit 20",
        "audit --actor ada --format json",
        "audit --object 0193b0e0-0000-7000-8000-000000000000",
    ),
    arguments=_arguments,
    run=audit,
)

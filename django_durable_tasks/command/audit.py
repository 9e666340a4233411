"""``durable audit`` and ``durable rotate-keys``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.audit import OBJECT_TYPES
from django_durable_tasks.command.arguments import add_operations, count, moment, values
from django_durable_tasks.command.subcommand import (
    OK,
    UNHEALTHY,
    Options,
    Output,
    Subcommand,
    by_and_reason,
    table,
)
from django_durable_tasks.models import AuditEntry
from django_durable_tasks.tasks import key_rotation

# ``durable audit``: who changed what, the newest first.


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
        "at__gte": options["since"],
        "at__lt": options["until"],
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
    parser.add_argument("--since", type=moment, help="Only entries from this instant on, ISO 8601.")
    parser.add_argument("--until", type=moment, help="Only entries before this instant, ISO 8601.")
    parser.add_argument("--limit", type=count, default=50, help="How many entries. Default: 50.")
    parser.add_argument("--after", type=count, help="Continue after the last id of a page.")


AUDIT = Subcommand(
    name="audit",
    summary="list who changed what, when, why and from where",
    examples=(
        "audit",
        "audit --operation tasks.cancel --limit 20",
        "audit --actor ada --format json",
        "audit --since 2026-03-07T00:00:00Z --until 2026-03-08T00:00:00Z",
        "audit --object 0193b0e0-0000-7000-8000-000000000000",
    ),
    arguments=_arguments,
    run=audit,
)


# ``durable rotate-keys``: encrypt stored values with the first key of ENCRYPTION_KEYS.


_WIDTH = 30


def rotate_keys(options: Options, out: Output) -> int:
    """Rotate and show the progress, what has failed, and what remains."""
    outcome = key_rotation.rotate_keys.perform(
        None,
        **by_and_reason(options),
        **values(options, key_rotation.rotate_keys),
        dry_run=options["dry_run"],
        progress=lambda text: out.note(_bar(text)),
    )
    found: key_rotation.KeyRotation = outcome.value
    left = sum(found.remaining.values())
    data = {
        "command": "rotate-keys",
        "dry_run": options["dry_run"],
        "changed": found.changed,
        "failed": found.failed,
        "remaining": found.remaining,
        "error": found.error,
    }
    lines = [f"{found.changed} rows were encrypted again."] if not options["dry_run"] else []
    lines += [f"{table}: {number} rows remain" for table, number in found.remaining.items()]
    if found.error:
        lines.append(f"{found.failed} rows could not be decrypted. The first: {found.error}")
    elif not left:
        lines.append("All encrypted rows have the first key: the others can be removed.")
    out.emit(data, "\n".join(lines))
    return UNHEALTHY if left and not options["dry_run"] else OK


def _bar(text: str) -> str:
    done, _of, total = text.partition(" of ")
    filled = _WIDTH * int(done) // max(1, int(total))
    return f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {text}"


def _rotate_keys_arguments(parser: ArgumentParser) -> None:
    add_operations(parser, key_rotation.rotate_keys)


ROTATE = Subcommand(
    name="rotate-keys",
    operations=(key_rotation.rotate_keys,),
    examples=(
        "rotate-keys --dry-run",
        "rotate-keys --reason 'yearly rotation'",
        "rotate-keys --include-plain",
    ),
    arguments=_rotate_keys_arguments,
    run=rotate_keys,
)

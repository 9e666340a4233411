"""``durable rotate-keys``: encrypt stored values with the first key of ENCRYPTION_KEYS."""

from __future__ import annotations

from argparse import ArgumentParser

from django_durable_tasks.management.durable.operation_arguments import add_operations, values
from django_durable_tasks.management.durable.output import Output
from django_durable_tasks.management.durable.subcommand import (
    OK,
    UNHEALTHY,
    Options,
    Subcommand,
    by_and_reason,
)
from django_durable_tasks.operations.maintenance import ROTATE_KEYS, KeyRotation

_WIDTH = 30


def rotate_keys(options: Options, out: Output) -> int:
    """Rotate and show the progress, what has failed, and what remains."""
    outcome = ROTATE_KEYS.perform(
        None,
        **by_and_reason(options),
        **values(options, ROTATE_KEYS),
        dry_run=options["dry_run"],
        progress=lambda text: out.note(_bar(text)),
    )
    found: KeyRotation = outcome.value
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


def _arguments(parser: ArgumentParser) -> None:
    add_operations(parser, ROTATE_KEYS)


ROTATE = Subcommand(
    name="rotate-keys",
    operations=(ROTATE_KEYS,),
    examples=(
        "rotate-keys --dry-run",
        "rotate-keys --reason 'yearly rotation'",
        "rotate-keys --include-plain",
    ),
    arguments=_arguments,
    run=rotate_keys,
)

"""``durable partition-ledger``: divide the ledger of an existing project into partitions."""

from __future__ import annotations

from argparse import ArgumentParser

from django_durable_tasks.management.durable.operation_arguments import add_operations
from django_durable_tasks.management.durable.output import Output
from django_durable_tasks.management.durable.subcommand import (
    OK,
    Options,
    Subcommand,
    by_and_reason,
)
from django_durable_tasks.operations.maintenance import PARTITION_LEDGER

_MIB = 1_048_576


def partition_ledger(options: Options, out: Output) -> int:
    """Partition the ledger and show its partitions; in a dry run show how large it is."""
    dry_run = options["dry_run"]
    outcome = PARTITION_LEDGER.perform(
        None, **by_and_reason(options), dry_run=dry_run, progress=out.note
    )
    if dry_run:
        found = outcome.value
        text = (
            f"About {found.entries} entries ({found.in_bytes / _MIB:.0f} MiB) would be read"
            f" under a lock. {found.moved} of them would be moved to the default partition."
        )
        out.emit({"command": "partition-ledger", "dry_run": True, **found._asdict()}, text)
        return OK
    names = [partition.name for partition in outcome.value]
    data = {"command": "partition-ledger", "dry_run": False, "partitions": names}
    out.emit(data, "\n".join(["The ledger is partitioned:", *names]))
    return OK


def _arguments(parser: ArgumentParser) -> None:
    add_operations(parser, PARTITION_LEDGER)


PARTITION = Subcommand(
    name="partition-ledger",
    operations=(PARTITION_LEDGER,),
    examples=("partition-ledger --dry-run", "partition-ledger --reason 'two million fires a day'"),
    arguments=_arguments,
    run=partition_ledger,
)

"""``durable sync``, and the sync of declared schedules after ``migrate``."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser
from typing import Any

from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from django_durable_tasks import conf
from django_durable_tasks.celery import inspect
from django_durable_tasks.engine.audit.actor import acting
from django_durable_tasks.engine.recurring import sync as recurring_sync
from django_durable_tasks.engine.recurring.sync import NOTHING_DONE, SyncStep
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.management.durable.operation_arguments import add_operations, values
from django_durable_tasks.management.durable.output import Output, cell, hidden, table
from django_durable_tasks.management.durable.subcommand import (
    OK,
    REFUSED,
    UNHEALTHY,
    Options,
    Subcommand,
    by_and_reason,
)
from django_durable_tasks.operations.maintenance import SYNC as SYNC_OPERATION
from django_durable_tasks.rules.audit import AuditSource

_APP = "django_durable_tasks"
_SHOWN = ("name", "act", "source", "what")


class TasksNotLoaded(DurableTasksError):
    """The task modules cannot be imported, so their declared schedules are unknown."""


def load() -> None:
    """Import the task modules. Raises TasksNotLoaded if that fails, because schedules that were not
    imported would appear to be undeclared.
    """
    problem = inspect.load_tasks()
    if problem is not None:
        raise TasksNotLoaded(
            f"The modules of tasks cannot be imported, so nothing is compared: {problem}"
        )


def sync(options: Options, out: Output) -> int:
    """Show the differences between declared and stored schedules, or remove them by changing the
    stored ones.
    """
    load()
    only_shown = options["dry_run"] or options["check"]
    fields = values(options, SYNC_OPERATION) | {"dry_run": only_shown}
    steps = SYNC_OPERATION.perform(None, **by_and_reason(options), **fields).value
    shown = [{**dataclasses.asdict(step), "what": _what(step)} for step in steps]
    data = [
        {
            **dataclasses.asdict(step),
            "changes": hidden(dict(step.changes)),
            "done": _done(step, only_shown),
        }
        for step in steps
    ]
    cut = [
        f"\n{row['name']}\n  {row['what']}" for row in shown if cell(row["what"]).endswith("...")
    ]
    out.emit(data, "\n".join([table(_SHOWN, shown, "every schedule is as it is declared"), *cut]))
    if any(step.act in NOTHING_DONE for step in steps):
        return REFUSED
    return UNHEALTHY if options["check"] and steps else OK


def _done(step: SyncStep, only_shown: bool) -> bool:
    return not only_shown and step.act not in NOTHING_DONE


def _what(step: SyncStep) -> str:
    parts = [
        f"{column}: {old!r} -> {new!r}" for column, (old, new) in hidden(dict(step.changes)).items()
    ]
    parts += [f"{', '.join(step.edited)}: an operator's own value stays"] if step.edited else []
    return "; ".join([*([step.reason] if step.reason else []), *parts])


def after_migrate(*, using: str, verbosity: int = 1, stdout: Any = None, **_: Any) -> None:
    """Receiver of ``post_migrate``: sync if SYNC_SCHEDULES_ON_MIGRATE is set and all migrations of
    this package are applied.
    """
    settings = conf.settings()
    if not settings.SYNC_SCHEDULES_ON_MIGRATE or using != settings.DATABASE or not _migrated(using):
        return
    load()
    with acting(AuditSource.SYNC, "migrate"):
        steps = recurring_sync.apply(by="migrate")
    for step in steps:
        if verbosity and stdout is not None:
            stdout.write(f"  Recurring task {step.name}: {step.act} {_what(step)}".rstrip() + "\n")


def _migrated(using: str) -> bool:
    """Return whether the tables match this release. They do not after a migration back to an older
    release.
    """
    executor = MigrationExecutor(connections[using])
    ours = [node for node in executor.loader.graph.leaf_nodes() if node[0] == _APP]
    return not executor.migration_plan(ours)


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--check", action="store_true", help="Change nothing and exit with 1 if something differs."
    )
    add_operations(parser, SYNC_OPERATION)


SYNC = Subcommand(
    name="sync",
    operations=(SYNC_OPERATION,),
    examples=(
        "sync --dry-run",
        "sync",
        "sync --check",
        "sync --prune",
        "sync --adopt --format json",
    ),
    arguments=_arguments,
    run=sync,
)

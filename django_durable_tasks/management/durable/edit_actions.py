"""``reschedule`` and ``edit``: changes of tasks that have not started."""

from __future__ import annotations

from argparse import ArgumentParser

from django_durable_tasks.celery import inspect
from django_durable_tasks.management.durable.bulk import add_ids, add_limit, carry_out
from django_durable_tasks.management.durable.operation_arguments import add_operations
from django_durable_tasks.management.durable.output import Output
from django_durable_tasks.management.durable.selectors import add_filters, check_selected, tasks
from django_durable_tasks.management.durable.subcommand import Options, Subcommand, refuse
from django_durable_tasks.management.durable.task_actions import FILTERS, change_of
from django_durable_tasks.operations.tasks import EDIT, RESCHEDULE

_ID = "0193b0e0-0000-7000-8000-000000000000"


def reschedule(options: Options, out: Output) -> int:
    """Move tasks that have not started to another time."""
    check_selected(options)
    eligible = tasks().filter(RESCHEDULE.applies_to)
    change = change_of(RESCHEDULE, options, eligible, run_at=options["run_at"])
    return carry_out(change, options, out)


def edit(options: Options, out: Output) -> int:
    """Edit one task that has not started."""
    if len(options["ids"]) != 1:
        refuse("edit changes one task: name it by its id.")
    reserved = {"args": "new_args", "kwargs": "new_kwargs"}
    changes = {field.name: options[reserved.get(field.name, field.name)] for field in EDIT.fields}
    if not any(value is not None for value in changes.values()):
        refuse("Give what to change, for example --priority 9.")
    inspect.load_tasks()
    eligible = tasks().filter(EDIT.applies_to)
    return carry_out(change_of(EDIT, options, eligible, **changes), options, out)


def _reschedule_arguments(parser: ArgumentParser) -> None:
    add_ids(parser)
    add_filters(parser, *FILTERS)
    add_limit(parser)
    add_operations(parser, RESCHEDULE)


def _edit_arguments(parser: ArgumentParser) -> None:
    add_ids(parser)
    parser.set_defaults(limit=None)
    add_operations(parser, EDIT)


EDIT_ACTIONS = (
    Subcommand(
        name="reschedule",
        operations=(RESCHEDULE,),
        examples=(
            f"reschedule {_ID} --run-at 2026-12-01T06:00:00Z",
            "reschedule --queue mail --run-at 2026-12-01T06:00:00Z --dry-run",
        ),
        arguments=_reschedule_arguments,
        run=reschedule,
    ),
    Subcommand(
        name="edit",
        operations=(EDIT,),
        examples=(f"edit {_ID} --priority 9 --reason 'the customer waits'",),
        arguments=_edit_arguments,
        run=edit,
    ),
)

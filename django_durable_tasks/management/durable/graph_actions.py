"""``force-run``, ``approve``, ``reject``, ``hold``, ``unhold`` and ``depend``."""

from __future__ import annotations

from argparse import ArgumentParser
from functools import partial

from django_durable_tasks.management.durable.graph_output import operate, operate_on, task_of
from django_durable_tasks.management.durable.operation_arguments import add_operations
from django_durable_tasks.management.durable.output import Output
from django_durable_tasks.management.durable.selectors import task_id, tasks
from django_durable_tasks.management.durable.subcommand import Options, Subcommand, refuse
from django_durable_tasks.operations import dependencies, gates, workflows
from django_durable_tasks.operations.operation import Operation
from django_durable_tasks.rules.dependencies import DependencyType
from django_durable_tasks.rules.states import Status

_ID = "0193b0e0-0000-7000-8000-000000000000"
_OTHER = "0193b0e0-0000-7000-8000-000000000001"


def force_run(options: Options, out: Output) -> int:
    """Run tasks without waiting for their dependencies, approvals and times."""
    eligible = tasks().filter(status__in=(Status.BLOCKED, Status.SKIPPED))
    return operate_on(workflows.FORCE_RUN, "forced", eligible, options["ids"], options, out)


def depend(options: Options, out: Output) -> int:
    """Add or remove a dependency."""
    task, upstream = task_of(options["id"]), task_of(options["on"])
    if not options["remove"]:
        fields = {
            "upstream": upstream,
            "type": options["type"] or DependencyType.MUST_SUCCEED,
            "policy": options["policy"],
        }
        return operate(dependencies.ADD, task, options, out, **fields)
    if options["type"] is not None or options["policy"] is not None:
        refuse("--remove removes a dependency of any type: do not give --type and --policy.")
    return operate(dependencies.REMOVE, task, options, out, upstream=upstream)


def _force_run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "ids", nargs="*", metavar="ID", type=task_id, help="Ids of BLOCKED or SKIPPED tasks."
    )
    add_operations(parser, workflows.FORCE_RUN)


def _gate_arguments(operation: Operation, parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=task_id, help="The id of a task.")
    add_operations(parser, operation)


def _depend_arguments(parser: ArgumentParser) -> None:
    texts = {field.name: field.help for field in dependencies.ADD.fields}
    choices = {field.name: field.choices for field in dependencies.ADD.fields}
    parser.add_argument("id", metavar="ID", type=task_id, help="The id of the task that waits.")
    parser.add_argument(
        "--on", metavar="ID", type=task_id, required=True, help=str(texts["upstream"])
    )
    for name, default in (("type", DependencyType.MUST_SUCCEED), ("policy", "the task's own")):
        parser.add_argument(
            f"--{name}",
            choices=[str(value) for value, _label in choices[name] if value],
            help=f"{texts[name]} Default: {default}.",
        )
    parser.add_argument("--remove", action="store_true", help="Remove the dependency.")
    without = ("upstream", "type", "policy")
    add_operations(parser, *dependencies.OPERATIONS, without=without)


def _gate(operation: Operation, *examples: str) -> Subcommand:
    def run(options: Options, out: Output) -> int:
        return operate(operation, task_of(options["id"]), options, out)

    return Subcommand(
        name=operation.name,
        operations=(operation,),
        examples=tuple(f"{operation.name} {example}" for example in examples),
        arguments=partial(_gate_arguments, operation),
        run=run,
    )


GRAPH_ACTIONS = (
    Subcommand(
        name="force-run",
        operations=(workflows.FORCE_RUN,),
        examples=(
            f"force-run {_ID} --dry-run",
            f"force-run {_ID} --reason 'the file arrived by mail'",
        ),
        arguments=_force_run_arguments,
        run=force_run,
    ),
    _gate(gates.APPROVE, f"{_ID} --reason 'checked the totals'", f"{_ID} --by ann --dry-run"),
    _gate(gates.REJECT, f"{_ID} --reason 'wrong month'", f"{_ID} --dry-run"),
    _gate(gates.HOLD, f"{_ID} --reason 'until the bank has answered'"),
    _gate(gates.UNHOLD, f"{_ID}", f"{_ID} --dry-run"),
    Subcommand(
        name="depend",
        operations=dependencies.OPERATIONS,
        examples=(
            f"depend {_ID} --on {_OTHER}",
            f"depend {_ID} --on {_OTHER} --type MUST_FINISH --dry-run",
            f"depend {_ID} --on {_OTHER} --remove",
        ),
        arguments=_depend_arguments,
        run=depend,
    ),
)

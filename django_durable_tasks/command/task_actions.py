"""Operations on tasks: cancel, retry, replay, discard, force-complete, reschedule and edit."""

from __future__ import annotations

import uuid
from argparse import ArgumentParser
from typing import Any

from django_durable_tasks.celery import inspect
from django_durable_tasks.choices import OPEN, REPLAYABLE, Status
from django_durable_tasks.command.arguments import (
    BulkChange,
    add_filters,
    add_ids,
    add_limit,
    add_operations,
    carry_out,
    check_selected,
    dead_letters,
    has_filter,
    left_unchanged,
    letter_rows,
    narrowed,
    narrowed_letters,
    task_id,
    task_ids,
    task_rows,
    tasks,
)
from django_durable_tasks.command.graph import operate, operate_on, run_of, task_of
from django_durable_tasks.command.subcommand import (
    Options,
    Output,
    Subcommand,
    by_and_reason,
    refuse,
)
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.operations.operation import Operation, OperationResult
from django_durable_tasks.tasks import operator_actions
from django_durable_tasks.workflows import operations as graph_operations

_ID = "0193b0e0-0000-7000-8000-000000000000"
FILTERS = ("name", "queue", "tenant", "key", "status")
_LETTER_FILTERS = ("name", "queue", "tenant", "fingerprint")
_RUN_HELP = "All tasks of a workflow run and of the runs inside it."


def change_of(
    operation: Operation, options: Options, eligible: TaskQuerySet, **edited: Any
) -> BulkChange:
    """Return the change of the eligible tasks that the ids or the filters select."""

    def act(ids: list[Any]) -> OperationResult:
        return operation.perform(tasks().filter(pk__in=ids), **by_and_reason(options), **edited)

    ids = task_ids(options["ids"])
    selected = eligible.filter(pk__in=ids) if ids else narrowed(eligible, options)
    rows = task_rows(selected, options["limit"])
    status = options.get("status")
    if status is not None and not rows and not ids and narrowed(tasks(), options).exists():
        refuse(f"Nothing could be changed: the tasks are {status}.")
    return BulkChange(
        command=options["subcommand"],
        operation=operation,
        rows=rows,
        act=act,
        explicit=bool(ids),
        left=left_unchanged(ids, rows),
    )


def cancel(options: Options, out: Output) -> int:
    """Cancel tasks, a workflow run, or a task with everything that depends on it."""
    if _is_graph(options, "workflow", "branch"):
        if options["workflow"] is not None:
            return operate(
                graph_operations.cancel_workflow, run_of(options["workflow"]), options, out
            )
        return operate(graph_operations.cancel_branch, task_of(options["branch"]), options, out)
    check_selected(options)
    eligible = tasks().filter(status__in=OPEN)
    return carry_out(change_of(operator_actions.cancel, options, eligible), options, out)


def _is_graph(options: Options, *names: str) -> bool:
    """Return whether the operation includes the dependents; exits if the rows are selected in two
    ways.
    """
    given = [name for name in names if options[name] is not None]
    if len(given) > 1 or (
        given and (options["ids"] or has_filter(options) or options["limit"] is not None)
    ):
        refuse(f"--{given[0]} selects the tasks: do not give ids, filters or --limit with it.")
    return bool(given)


def retry(options: Options, out: Output) -> int:
    """Make waiting retries due now."""
    check_selected(options)
    change = change_of(operator_actions.retry, options, tasks().retrying())
    return carry_out(change, options, out)


def replay(options: Options, out: Output) -> int:
    """Run ended tasks again, or the tasks of a workflow run, or a task with everything that depends
    on it.
    """
    if options["mode"] is not None and options["workflow"] is None:
        refuse("--mode selects tasks of a workflow run: give it with --workflow.")
    edited = _edited(options)
    if _is_graph(options, "workflow", "from"):
        return _replay_graph(options, out)
    check_selected(options)
    if edited and len(options["ids"]) != 1:
        refuse("--args and --kwargs replay exactly one task: name it by its id.")
    if edited:
        inspect.load_tasks()
    eligible = tasks().filter(status__in=REPLAYABLE)
    in_letters = options["status"] is None and options["key"] is None
    if not options["ids"] and (in_letters or options["fingerprint"] is not None):
        letters = narrowed_letters(dead_letters().open(), options)
        eligible = eligible.filter(pk__in=letters.order_by().values("open_task"))
    operation = operator_actions.replay_edited if edited else operator_actions.replay
    return carry_out(change_of(operation, options, eligible, **edited), options, out)


def _replay_graph(options: Options, out: Output) -> int:
    if options["workflow"] is None:
        return operate(graph_operations.retry_from, task_of(options["from"]), options, out)
    mode = options["mode"] or graph_operations.retry_workflow.modes[0].name
    return operate(
        graph_operations.retry_workflow, run_of(options["workflow"]), options, out, mode=mode
    )


def _edited(options: Options) -> dict[str, Any]:
    """Return the new arguments. The option has another name because Django reserves ``args``."""
    return {
        name: options[f"new_{name}"]
        for name in ("args", "kwargs")
        if options[f"new_{name}"] is not None
    }


def discard(options: Options, out: Output) -> int:
    """Close dead letters without replaying their tasks."""
    check_selected(options)
    operation = operator_actions.discard_letters

    def act(ids: list[Any]) -> OperationResult:
        return operation.perform(dead_letters().filter(pk__in=ids), **by_and_reason(options))

    ids = task_ids(options["ids"])
    opened = dead_letters().open()
    selected = opened.filter(task_id__in=ids) if ids else narrowed_letters(opened, options)
    rows = letter_rows(selected, options["limit"])
    change = BulkChange(
        command=options["subcommand"],
        operation=operation,
        rows=rows,
        act=act,
        explicit=bool(ids),
        left=_without_letter(ids, rows),
    )
    return carry_out(change, options, out)


def _without_letter(ids: list[uuid.UUID], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = {row["task_id"] for row in rows}
    return [{"id": one, "why": "it has no open dead letter"} for one in ids if one not in found]


def force_complete(options: Options, out: Output) -> int:
    """Set tasks to SUCCESS without running them."""
    eligible = tasks().exclude(status=Status.SUCCESS)
    ids = task_ids(options["ids"])
    return operate_on(graph_operations.force_complete, "completed", eligible, ids, options, out)


def _cancel_arguments(parser: ArgumentParser) -> None:
    add_ids(parser)
    add_filters(parser, *FILTERS)
    parser.add_argument("--workflow", metavar="ID", type=task_id, help=_RUN_HELP)
    parser.add_argument(
        "--branch", metavar="ID", type=task_id, help="A task and all tasks that depend on it."
    )
    add_limit(parser)
    add_operations(parser, *_CANCEL)


def _retry_arguments(parser: ArgumentParser) -> None:
    add_ids(parser)
    add_filters(parser, *FILTERS)
    add_limit(parser)
    add_operations(parser, operator_actions.retry)


def _replay_arguments(parser: ArgumentParser) -> None:
    add_ids(parser, letters=True)
    add_filters(parser, *FILTERS, "fingerprint")
    modes = graph_operations.retry_workflow.modes
    parser.add_argument("--workflow", metavar="ID", type=task_id, help=_RUN_HELP)
    parser.add_argument(
        "--mode",
        choices=[str(mode.name) for mode in modes],
        help=" ".join(f"{mode.name}: {mode.help}" for mode in modes)
        + f" Default: {modes[0].name}.",
    )
    parser.add_argument(
        "--from",
        metavar="ID",
        type=task_id,
        help="An ended task and all tasks that depend on it, including successful ones.",
    )
    add_limit(parser)
    add_operations(parser, *_REPLAY)


def _discard_arguments(parser: ArgumentParser) -> None:
    add_ids(parser, letters=True)
    add_filters(parser, *_LETTER_FILTERS)
    add_limit(parser)
    add_operations(parser, operator_actions.discard_letters)


def _force_complete_arguments(parser: ArgumentParser) -> None:
    add_ids(parser, letters=True)
    add_operations(parser, *_FORCE_COMPLETE)


_CANCEL = (
    operator_actions.cancel,
    graph_operations.cancel_workflow,
    graph_operations.cancel_branch,
)
_REPLAY = (
    operator_actions.replay,
    operator_actions.replay_letters,
    operator_actions.replay_edited,
    graph_operations.retry_workflow,
    graph_operations.retry_from,
)
_FORCE_COMPLETE = (operator_actions.force_complete, graph_operations.force_complete)
TASK_ACTIONS = (
    Subcommand(
        name="cancel",
        operations=_CANCEL,
        examples=(
            f"cancel {_ID}",
            "cancel --name billing.tasks.remind --status PENDING --dry-run",
            "cancel --queue mail --yes --reason 'sent by hand'",
            f"cancel --workflow {_ID} --dry-run",
            f"cancel --branch {_ID} --yes --reason 'wrong input'",
        ),
        arguments=_cancel_arguments,
        run=cancel,
    ),
    Subcommand(
        name="retry",
        operations=(operator_actions.retry,),
        examples=(f"retry {_ID}", "retry --queue mail --dry-run"),
        arguments=_retry_arguments,
        run=retry,
    ),
    Subcommand(
        name="replay",
        operations=_REPLAY,
        summary="filters select tasks with an open dead letter unless --status or --key is given",
        examples=(
            f"replay {_ID}",
            "replay 17 --args '[42]' --kwargs '{\"dry\": false}'",
            "replay --fingerprint 9f86d081884c7d65 --dry-run",
            "replay --name billing.tasks.charge --yes",
            "replay --queue mail --status EXPIRED --dry-run",
            f"replay --workflow {_ID} --dry-run",
            f"replay --workflow {_ID} --mode FAILED_AND_DOWNSTREAM --yes",
            f"replay --from {_ID} --yes",
        ),
        arguments=_replay_arguments,
        run=replay,
    ),
    Subcommand(
        name="discard",
        operations=(operator_actions.discard_letters,),
        examples=(
            "discard 17 --reason 'refunded by hand'",
            "discard --queue mail --reason 'old' --limit 100 --yes",
        ),
        arguments=_discard_arguments,
        run=discard,
    ),
    Subcommand(
        name="force-complete",
        operations=_FORCE_COMPLETE,
        examples=(
            f"force-complete {_ID} --dry-run",
            f"force-complete {_ID} --reason 'paid by bank transfer'",
        ),
        arguments=_force_complete_arguments,
        run=force_complete,
    ),
)


# ``reschedule`` and ``edit``: changes of tasks that have not started.


def reschedule(options: Options, out: Output) -> int:
    """Move tasks that have not started to another time."""
    check_selected(options)
    eligible = tasks().filter(operator_actions.reschedule.applies_to)
    change = change_of(operator_actions.reschedule, options, eligible, run_at=options["run_at"])
    return carry_out(change, options, out)


def edit(options: Options, out: Output) -> int:
    """Edit one task that has not started."""
    if len(options["ids"]) != 1:
        refuse("edit changes one task: name it by its id.")
    reserved = {"args": "new_args", "kwargs": "new_kwargs"}
    changes = {
        field.name: options[reserved.get(field.name, field.name)]
        for field in operator_actions.edit.fields
    }
    if not any(value is not None for value in changes.values()):
        refuse("Give what to change, for example --priority 9.")
    inspect.load_tasks()
    eligible = tasks().filter(operator_actions.edit.applies_to)
    return carry_out(change_of(operator_actions.edit, options, eligible, **changes), options, out)


def _reschedule_arguments(parser: ArgumentParser) -> None:
    add_ids(parser)
    add_filters(parser, *FILTERS)
    add_limit(parser)
    add_operations(parser, operator_actions.reschedule)


def _edit_arguments(parser: ArgumentParser) -> None:
    add_ids(parser)
    parser.set_defaults(limit=None)
    add_operations(parser, operator_actions.edit)


EDIT_ACTIONS = (
    Subcommand(
        name="reschedule",
        operations=(operator_actions.reschedule,),
        examples=(
            f"reschedule {_ID} --run-at 2026-12-01T06:00:00Z",
            "reschedule --queue mail --run-at 2026-12-01T06:00:00Z --dry-run",
        ),
        arguments=_reschedule_arguments,
        run=reschedule,
    ),
    Subcommand(
        name="edit",
        operations=(operator_actions.edit,),
        examples=(f"edit {_ID} --priority 9 --reason 'the customer waits'",),
        arguments=_edit_arguments,
        run=edit,
    ),
)

"""Operations on tasks, workflows and dependencies: select the rows, show or confirm the change,
perform it, and report what has changed and what was left unchanged.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from django.db.models import Q, QuerySet

from django_durable_tasks import conf
from django_durable_tasks.celery import inspect
from django_durable_tasks.choices import OPEN, DependencyType, Status
from django_durable_tasks.command.subcommand import (
    OK,
    REFUSED,
    Declaration,
    Options,
    Output,
    argument,
    count,
    filtered,
    hidden,
    letter_id,
    perform,
    refuse,
    subcommand,
    table,
    task_id,
    values,
)
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.models import DeadLetter, Task, WorkflowRun
from django_durable_tasks.models.tasks import DeadLetterQuerySet, TaskQuerySet
from django_durable_tasks.operations import Operation, Target
from django_durable_tasks.store.tables import database
from django_durable_tasks.tasks import operator_actions
from django_durable_tasks.texts import counted
from django_durable_tasks.workflows import operations as graph_operations
from django_durable_tasks.workflows.operations import GraphReport

# Selecting tasks and dead letters -----------------------------------------------------------------


_FILTERS = {
    "name": "Only tasks of this name.",
    "queue": "Only tasks of this queue.",
    "tenant": "Only tasks of this tenant (its slug).",
    "key": "Only tasks with this key.",
    "fingerprint": "Only tasks with this error fingerprint.",
    "status": "Only tasks in this status.",
}
TASK_LOOKUPS = {
    "name": "name",
    "queue": "queue",
    "tenant": "tenant__slug",
    "key": "key",
    "status": "status",
}
LETTER_LOOKUPS = {
    "name": "task__name",
    "queue": "task__queue",
    "tenant": "tenant__slug",
    "fingerprint": "fingerprint",
}
_TASK = ("id", "status", "queue", "name", "key", "attempts")
_LETTER = ("id", "task_id", "reason", "fingerprint", "attempts", "created_at")


def tasks() -> TaskQuerySet:
    """Return a queryset of all tasks."""
    queryset: TaskQuerySet = Task.objects.using(database())
    return queryset


def dead_letters() -> DeadLetterQuerySet:
    """Return a queryset of all dead letters."""
    queryset: DeadLetterQuerySet = DeadLetter.objects.using(database())
    return queryset


def filters(*names: str) -> list[Declaration]:
    """Return the declarations of filters by their names."""
    choices = {"status": [status.value for status in Status]}
    return [argument(f"--{name}", choices=choices.get(name), help=_FILTERS[name]) for name in names]


_ids = argument("ids", nargs="*", metavar="ID", type=task_id, help="Ids of tasks.")
_ids_or_letters = argument(
    "ids", nargs="*", metavar="ID", type=letter_id, help="Ids of tasks, or numbers of dead letters."
)
_task = argument("id", metavar="ID", type=task_id, help="The id of a task.")
_limit = argument("--limit", type=count, help="Change at most this many, oldest first.")
_workflow = argument(
    "--workflow",
    metavar="ID",
    type=task_id,
    help="All tasks of a workflow run and of the runs inside it.",
)


def _run_of(key: uuid.UUID) -> WorkflowRun:
    run = WorkflowRun.objects.using(database()).filter(pk=key).first()
    return run or refuse(f"There is no workflow run {key}: `durable list workflows` shows them.")


def _task_of(key: uuid.UUID) -> Task:
    return tasks().filter(pk=key).first() or refuse(
        f"There is no task {key}: it never existed, or was deleted after its retention."
    )


def _task_ids(named: Sequence[uuid.UUID | int]) -> list[uuid.UUID]:
    """Return the ids of the named tasks and of the tasks of the named dead letters. Exits if a dead
    letter does not exist.
    """
    numbers = [key for key in named if isinstance(key, int)]
    task_of_letter = dict(
        dead_letters().filter(pk__in=numbers).values_list("pk", "task_id") if numbers else ()
    )
    missing = [number for number in numbers if number not in task_of_letter]
    if missing:
        refuse(f"There is no dead letter {missing[0]}. `durable list dead-letters` lists them.")
    return [task_of_letter[key] if isinstance(key, int) else key for key in named]


def _left_unchanged(ids: Sequence[uuid.UUID], changed: Collection[Any]) -> list[dict[str, Any]]:
    """Return the named tasks that are not changed, each with the reason."""
    unchanged = [key for key in ids if key not in changed]
    status = dict(tasks().filter(pk__in=unchanged).values_list("pk", "status")) if unchanged else {}
    return [
        {"id": key, "why": f"it is {status[key]}" if key in status else "there is no such task"}
        for key in unchanged
    ]


def _has_filter(options: Options) -> bool:
    return any(options.get(name) is not None for name in _FILTERS)


def _selects_graph(options: Options, *names: str) -> bool:
    """Return whether one of these options selects the tasks; exits if they are selected in two
    ways.
    """
    selectors = [name for name in names if options[name] is not None]
    if len(selectors) > 1 or (
        selectors and (options["ids"] or _has_filter(options) or options["limit"] is not None)
    ):
        refuse(f"--{selectors[0]} selects the tasks: do not give ids, filters or --limit with it.")
    return bool(selectors)


# Operations on querysets --------------------------------------------------------------------------


def _change(
    operation: Operation, options: Options, out: Output, eligible: QuerySet[Any] | None = None
) -> int:
    """Perform an operation on the tasks, or the dead letters, that ids or filters select among the
    eligible ones; without ``eligible`` those to which the operation applies.

    Works in batches. Several rows that are selected by filters require a confirmation.
    """
    if bool(options["ids"]) == _has_filter(options):
        refuse("Select the tasks either by their ids or by filters.")
    command, ids = out.command, _task_ids(options["ids"])
    of_letters = operation.target == Target.DEAD_LETTERS
    every: QuerySet[Any] = dead_letters() if of_letters else tasks()
    columns, task, lookups = (
        (_LETTER, "task_id", LETTER_LOOKUPS) if of_letters else (_TASK, "id", TASK_LOOKUPS)
    )
    if eligible is None:
        eligible = every.filter(operation.applies_to or Q())
    selected = (
        eligible.filter(**{f"{task}__in": ids}) if ids else filtered(eligible, options, lookups)
    )
    rows = list(selected.order_by("pk").values(*columns)[: options["limit"]])
    status = options.get("status")
    if status and not rows and filtered(tasks(), options, TASK_LOOKUPS).exists():
        refuse(f"Nothing could be changed: the tasks are {status}.")
    chosen = {row[task] for row in rows}
    if of_letters:
        closed = "it has no open dead letter"
        left_alone = [{"id": key, "why": closed} for key in ids if key not in chosen]
    else:
        left_alone = _left_unchanged(ids, chosen)
    if options["dry_run"]:
        lines = [f"{command} would change {counted(len(rows), 'row')}:", table(columns, rows)]
        text = "\n".join([*(lines if rows else ["nothing would change"]), *_left_lines(left_alone)])
        return out.report(text, dry_run=True, would_change=rows, left_alone=left_alone)
    if operation.confirm and not (ids or len(rows) < 2 or options["yes"]):
        _require_confirmation(command, len(rows))

    keys, size = [row["id"] for row in rows], conf.settings().BATCH_SIZE
    counts = Counter[str]()

    def act(batch: list[Any]) -> None:
        try:
            counts.update(perform(operation, every.filter(pk__in=batch), options).counts)
        except TransitionRefused as error:
            if len(batch) == 1:
                left_alone.append({"id": batch[0], "why": str(error)})
                return
            # The refusal of one row has rolled back its whole batch.
            for key in batch:
                act([key])

    for start in range(0, len(keys), size):
        act(keys[start : start + size])
        if len(keys) > size:
            out.note(f"{min(start + size, len(keys))} of {len(keys)}")
    done = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    text = "\n".join([f"{command}: {done or 'nothing changed'}", *_left_lines(left_alone)])
    code = REFUSED if ids and not counts.total() else OK
    return out.report(text, code, **counts, left_alone=left_alone)


def _require_confirmation(command: str, number: int) -> None:
    refuse(
        f"{command} would change {counted(number, 'row')}: show them with --dry-run, confirm with"
        " --yes."
    )


def _left_lines(left_alone: Sequence[dict[str, Any]]) -> list[str]:
    return [f"  left unchanged {row['id']}: {row['why']}" for row in left_alone]


# Operations on graphs -----------------------------------------------------------------------------


def _change_graph(
    operation: Operation, subject: Any, options: Options, out: Output, **fields: Any
) -> int:
    """Perform an operation on dependent tasks, or show what it would change.

    An operation that requires a confirmation needs ``--yes`` if it would change more tasks than the
    named one.
    """

    def act(dry_run: bool) -> GraphReport:
        report: GraphReport = perform(operation, subject, options, dry_run=dry_run, **fields).value
        return report

    if operation.confirm and operation.sweeps and not (options["dry_run"] or options["yes"]):
        number = act(True).total
        if number > 1:
            _require_confirmation(out.command, number)
    return _emit_graph(act(options["dry_run"]), options, out)


def _change_named(
    operation: Operation, eligible: Q, word: str, options: Options, out: Output
) -> int:
    """Perform a graph operation on those of the named tasks that are eligible, or show what it
    would change. ``word`` is the key of their number in the JSON.
    """
    ids = _task_ids(options["ids"]) or refuse("Name the tasks by their ids.")
    chosen = list(tasks().filter(eligible, pk__in=ids).values_list("pk", flat=True))
    left_alone = _left_unchanged(ids, chosen)
    if not chosen:
        text = "\n".join([f"{out.command} changed 0 rows", *_left_lines(left_alone)])
        return out.report(text, REFUSED, left_alone=left_alone)
    report: GraphReport = perform(
        operation, tasks().filter(pk__in=chosen), options, dry_run=options["dry_run"]
    ).value
    number = sum(change.task_id in ids for change in report.changes)
    return _emit_graph(report, options, out, left_alone, {word: number})


def _emit_graph(
    report: GraphReport,
    options: Options,
    out: Output,
    left_alone: Sequence[dict[str, Any]] = (),
    counts: Mapping[str, int] = MappingProxyType({}),
) -> int:
    columns = ("id", "step", "name", "before", "after", "reason")
    rows = [
        {
            "id": change.task_id,
            "step": change.step,
            "name": change.name,
            "before": change.before,
            "after": change.after,
            "reason": hidden(change.reason),
        }
        for change in report.changes
    ]
    stopped, dry_run = list(report.stop_requested), options["dry_run"]
    head = f"{out.command} {'would change' if dry_run else 'changed'} {len(rows)} row"
    lines = [f"{head}{'' if len(rows) == 1 else 's'}{':' if rows else ''}"]
    lines += [table(columns, rows)] if rows else []
    stop = "stop would be requested" if dry_run else "stop was requested"
    lines += [*(f"  {stop}: {key}" for key in stopped), *_left_lines(left_alone)]
    data: dict[str, Any] = {**counts, "changed": rows, "stop_requested": stopped}
    if dry_run:
        data = {"dry_run": True, "would_change": rows, "would_request_stop": stopped}
    code = OK if dry_run or report.total else REFUSED
    return out.report("\n".join(lines), code, **data, left_alone=list(left_alone))


# Subcommands --------------------------------------------------------------------------------------


_SELECTION = filters("name", "queue", "tenant", "key", "status")


@subcommand(
    _ids,
    *_SELECTION,
    _workflow,
    argument(
        "--branch", metavar="ID", type=task_id, help="A task and all tasks that depend on it."
    ),
    _limit,
    operations=(
        operator_actions.cancel,
        graph_operations.cancel_workflow,
        graph_operations.cancel_branch,
    ),
)
def cancel(options: Options, out: Output) -> int:
    """Cancel tasks, a workflow run, or a task with everything that depends on it.

    Examples:
        cancel 0193b0e0-0000-7000-8000-000000000000
        cancel --name billing.tasks.remind --status PENDING --dry-run
        cancel --queue mail --yes --reason 'sent by hand'
        cancel --workflow 0193b0e0-0000-7000-8000-000000000000 --dry-run
        cancel --branch 0193b0e0-0000-7000-8000-000000000000 --yes --reason 'wrong input'
    """
    if not _selects_graph(options, "workflow", "branch"):
        # Not those to which the operation applies: a second request to stop is reported, too.
        return _change(operator_actions.cancel, options, out, tasks().filter(status__in=OPEN))
    if options["workflow"] is not None:
        run = _run_of(options["workflow"])
        return _change_graph(graph_operations.cancel_workflow, run, options, out)
    task = _task_of(options["branch"])
    return _change_graph(graph_operations.cancel_branch, task, options, out)


@subcommand(_ids, *_SELECTION, _limit, operations=(operator_actions.retry,))
def retry(options: Options, out: Output) -> int:
    """Make waiting retries due now.

    Examples:
        retry 0193b0e0-0000-7000-8000-000000000000
        retry --queue mail --dry-run
    """
    return _change(operator_actions.retry, options, out)


_MODES = graph_operations.retry_workflow.modes


@subcommand(
    _ids_or_letters,
    *_SELECTION,
    *filters("fingerprint"),
    _workflow,
    argument(
        "--mode",
        choices=[mode.name for mode in _MODES],
        help=" ".join(f"{mode.name}: {mode.help}" for mode in _MODES)
        + f" Default: {_MODES[0].name}.",
    ),
    argument(
        "--from",
        metavar="ID",
        type=task_id,
        help="An ended task and all tasks that depend on it, including successful ones.",
    ),
    _limit,
    operations=(
        operator_actions.replay,
        operator_actions.replay_letters,
        operator_actions.replay_edited,
        graph_operations.retry_workflow,
        graph_operations.retry_from,
    ),
)
def replay(options: Options, out: Output) -> int:
    """Run ended tasks again, or the tasks of a workflow run, or a task with everything that depends
    on it; filters select tasks with an open dead letter unless --status or --key is given.

    Examples:
        replay 0193b0e0-0000-7000-8000-000000000000
        replay 17 --args '[42]' --kwargs '{"dry": false}'
        replay --fingerprint 9f86d081884c7d65 --dry-run
        replay --name billing.tasks.charge --yes
        replay --queue mail --status EXPIRED --dry-run
        replay --workflow 0193b0e0-0000-7000-8000-000000000000 --dry-run
        replay --workflow 0193b0e0-0000-7000-8000-000000000000 --mode FAILED_AND_DOWNSTREAM --yes
        replay --from 0193b0e0-0000-7000-8000-000000000000 --yes
    """
    if options["mode"] is not None and options["workflow"] is None:
        refuse("--mode selects tasks of a workflow run: give it with --workflow.")
    if _selects_graph(options, "workflow", "from"):
        if options["workflow"] is None:
            task = _task_of(options["from"])
            return _change_graph(graph_operations.retry_from, task, options, out)
        run, mode = _run_of(options["workflow"]), options["mode"] or _MODES[0].name
        return _change_graph(graph_operations.retry_workflow, run, options, out, mode=mode)
    operation = operator_actions.replay
    edited = values(options, operator_actions.replay_edited)
    if any(value is not None for value in edited.values()):
        operation = operator_actions.replay_edited
        if len(options["ids"]) != 1:
            refuse("--args and --kwargs replay exactly one task: name it by its id.")
        inspect.load_tasks()
    eligible = tasks().filter(operation.applies_to)
    in_letters = options["status"] is None and options["key"] is None
    if not options["ids"] and (in_letters or options["fingerprint"] is not None):
        letters = filtered(dead_letters().open(), options, LETTER_LOOKUPS)
        eligible = eligible.filter(pk__in=letters.order_by().values("open_task"))
    return _change(operation, options, out, eligible)


@subcommand(
    _ids_or_letters,
    *filters("name", "queue", "tenant", "fingerprint"),
    _limit,
    operations=(operator_actions.discard_letters,),
)
def discard(options: Options, out: Output) -> int:
    """Close dead letters without replaying their tasks.

    Examples:
        discard 17 --reason 'refunded by hand'
        discard --queue mail --reason 'old' --limit 100 --yes
    """
    return _change(operator_actions.discard_letters, options, out)


@subcommand(
    _ids_or_letters, operations=(operator_actions.force_complete, graph_operations.force_complete)
)
def force_complete(options: Options, out: Output) -> int:
    """Set tasks to SUCCESS without running them.

    Examples:
        force-complete 0193b0e0-0000-7000-8000-000000000000 --dry-run
        force-complete 0193b0e0-0000-7000-8000-000000000000 --reason 'paid by bank transfer'
    """
    eligible = ~Q(status=Status.SUCCESS)
    return _change_named(graph_operations.force_complete, eligible, "completed", options, out)


@subcommand(_ids, *_SELECTION, _limit, operations=(operator_actions.reschedule,))
def reschedule(options: Options, out: Output) -> int:
    """Move tasks that have not started to another time.

    Examples:
        reschedule 0193b0e0-0000-7000-8000-000000000000 --run-at 2026-12-01T06:00:00Z
        reschedule --queue mail --run-at 2026-12-01T06:00:00Z --dry-run
    """
    return _change(operator_actions.reschedule, options, out)


@subcommand(_ids, operations=(operator_actions.edit,))
def edit(options: Options, out: Output) -> int:
    """Edit one task that has not started.

    Examples:
        edit 0193b0e0-0000-7000-8000-000000000000 --priority 9 --reason 'the customer waits'
    """
    if len(options["ids"]) != 1:
        refuse("edit changes one task: name it by its id.")
    if all(value is None for value in values(options, operator_actions.edit).values()):
        refuse("Give what to change, for example --priority 9.")
    inspect.load_tasks()
    return _change(operator_actions.edit, {**options, "limit": None}, out)


@subcommand(
    argument("ids", nargs="*", metavar="ID", type=task_id, help="Ids of BLOCKED or SKIPPED tasks."),
    operations=(graph_operations.force_run,),
)
def force_run(options: Options, out: Output) -> int:
    """Run tasks without waiting for their dependencies, approvals and times.

    Examples:
        force-run 0193b0e0-0000-7000-8000-000000000000 --dry-run
        force-run 0193b0e0-0000-7000-8000-000000000000 --reason 'the file arrived by mail'
    """
    eligible = Q(status__in=(Status.BLOCKED, Status.SKIPPED))
    return _change_named(graph_operations.force_run, eligible, "forced", options, out)


@subcommand(_task, operations=(graph_operations.approve,))
def approve(options: Options, out: Output) -> int:
    """Give the approval that a task waits for.

    Examples:
        approve 0193b0e0-0000-7000-8000-000000000000 --reason 'checked the totals'
        approve 0193b0e0-0000-7000-8000-000000000000 --by ann --dry-run
    """
    return _change_graph(graph_operations.approve, _task_of(options["id"]), options, out)


@subcommand(_task, operations=(graph_operations.reject,))
def reject(options: Options, out: Output) -> int:
    """Cancel a task that waits for an approval.

    Examples:
        reject 0193b0e0-0000-7000-8000-000000000000 --reason 'wrong month'
        reject 0193b0e0-0000-7000-8000-000000000000 --dry-run
    """
    return _change_graph(graph_operations.reject, _task_of(options["id"]), options, out)


@subcommand(_task, operations=(graph_operations.hold,))
def hold(options: Options, out: Output) -> int:
    """Hold a task that has not started.

    Examples:
        hold 0193b0e0-0000-7000-8000-000000000000 --reason 'until the bank has answered'
    """
    return _change_graph(graph_operations.hold, _task_of(options["id"]), options, out)


@subcommand(_task, operations=(graph_operations.unhold,))
def unhold(options: Options, out: Output) -> int:
    """End the hold of a task.

    Examples:
        unhold 0193b0e0-0000-7000-8000-000000000000
        unhold 0193b0e0-0000-7000-8000-000000000000 --dry-run
    """
    return _change_graph(graph_operations.unhold, _task_of(options["id"]), options, out)


_EDGE = {field.name: field for field in graph_operations.add_edge.fields}


def _edge_argument(name: str, default: str) -> Declaration:
    choices = [str(value) for value, _label in _EDGE[name].choices if value]
    return argument(f"--{name}", choices=choices, help=f"{_EDGE[name].help} Default: {default}.")


@subcommand(
    argument("id", metavar="ID", type=task_id, help="The id of the task that waits."),
    argument(
        "--on",
        metavar="ID",
        dest="upstream",
        type=task_id,
        required=True,
        help=str(_EDGE["upstream"].help),
    ),
    _edge_argument("type", DependencyType.MUST_SUCCEED),
    _edge_argument("policy", "the task's own"),
    argument("--remove", action="store_true", help="Remove the dependency."),
    operations=(graph_operations.add_edge, graph_operations.remove_edge),
)
def depend(options: Options, out: Output) -> int:
    """Add or remove a dependency.

    Examples:
        depend 0193b0e0-0000-7000-8000-000000000000 --on 0193b0e0-0000-7000-8000-000000000001
        depend 0193b0e0-0000-7000-8000-000000000000 --on 0193b0e0-0000-7000-8000-000000000001
            --type MUST_FINISH --dry-run
        depend 0193b0e0-0000-7000-8000-000000000000 --on 0193b0e0-0000-7000-8000-000000000001
            --remove
    """
    task, upstream = _task_of(options["id"]), _task_of(options["upstream"])
    kind, policy = options["type"], options["policy"]
    if not options["remove"]:
        fields = {"type": kind or DependencyType.MUST_SUCCEED, "policy": policy}
        return _change_graph(
            graph_operations.add_edge, task, options, out, upstream=upstream, **fields
        )
    if kind is not None or policy is not None:
        refuse("--remove removes a dependency of any type: do not give --type and --policy.")
    return _change_graph(graph_operations.remove_edge, task, options, out, upstream=upstream)

"""``cancel``, ``retry``, ``replay``, ``discard`` and ``force-complete``: which rows each picks and which call it is."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django_durable_tasks.celery import wiring
from django_durable_tasks.lifecycle import cancellation, dead_letters, graph_operations, recovery
from django_durable_tasks.lifecycle.graph_operations import Report, RetryMode
from django_durable_tasks.management.durable.changing import (
    Change,
    add_bulk,
    add_ids,
    carry_out,
    json_of,
    left_alone,
    letter_rows,
    task_ids,
    task_rows,
)
from django_durable_tasks.management.durable.operating import add_dry_run, operate, operate_on, run_of, task_of
from django_durable_tasks.management.durable.output import Output
from django_durable_tasks.management.durable.questions import (
    add_filters,
    check_meant,
    has_filter,
    letters,
    narrowed,
    narrowed_letters,
    task_id,
    tasks,
)
from django_durable_tasks.management.durable.verb import Options, Verb, add_by_and_reason, by_and_reason, refuse
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.rules.states import OPEN, REPLAYABLE, Status

_ID = "0193b0e0-0000-7000-8000-000000000000"
_FILTERS = ("name", "queue", "tenant", "key", "status")
_CASE_FILTERS = ("name", "queue", "tenant", "fingerprint")


def _change(verb: str, options: Options, eligible: TaskQuerySet, act: Any) -> Change:
    """The change of tasks that are named by ids, or picked by filters, among the eligible."""
    if options["ids"]:
        ids = task_ids(options["ids"])
        rows = task_rows(eligible.filter(pk__in=ids), options["limit"])
        return Change(verb=verb, rows=rows, act=act, explicit=True, left=left_alone(ids, rows))
    return Change(
        verb=verb, rows=task_rows(narrowed(eligible, options), options["limit"]), act=act, explicit=False
    )  # fmt: skip


def cancel(options: Options, out: Output) -> int:
    """Cancel waiting tasks, ask running ones to stop; a whole workflow, or a task with all that depends on it."""
    if _graph(options, "workflow", "branch"):
        return _cancel_graph(options, out)
    check_meant(options)

    def act(ids: list[Any]) -> dict[str, int]:
        done = cancellation.cancel(tasks().filter(pk__in=ids), **by_and_reason(options))
        return {"cancelled": done.at_once, "asked": done.asked}

    return carry_out(_change("cancel", options, tasks().filter(status__in=OPEN), act), options, out)


def _cancel_graph(options: Options, out: Output) -> int:
    doer = by_and_reason(options)

    def act(dry_run: bool) -> Report:
        if options["workflow"] is not None:
            return graph_operations.cancel_workflow(run_of(options["workflow"]), **doer, dry_run=dry_run)
        return graph_operations.cancel_branch(task_of(options["branch"]), **doer, dry_run=dry_run)

    return operate("cancel", act, options, out, sweeping=True)


def retry(options: Options, out: Output) -> int:
    """Release waiting tries, replay ended tasks; of a whole workflow, or from a task down."""
    if options["mode"] is not None and options["workflow"] is None:
        refuse("--mode says which tasks of a workflow run again: it goes with --workflow.")
    if _graph(options, "workflow", "from"):
        return _retry_graph(options, out)
    check_meant(options)

    def act(ids: list[Any]) -> dict[str, int]:
        done = recovery.retry(tasks().filter(pk__in=ids), **by_and_reason(options))
        return {"released": done.released, "replayed": len(done.replayed)}

    eligible = tasks().filter(status__in=REPLAYABLE) | tasks().retrying()
    return carry_out(_change("retry", options, eligible, act), options, out)


def _retry_graph(options: Options, out: Output) -> int:
    doer, mode = by_and_reason(options), options["mode"] or RetryMode.FAILED

    def act(dry_run: bool) -> Report:
        if options["workflow"] is not None:
            return graph_operations.retry_workflow(run_of(options["workflow"]), mode, **doer, dry_run=dry_run)
        return graph_operations.retry_from(task_of(options["from"]), **doer, dry_run=dry_run)

    return operate("retry", act, options, out, sweeping=True)


def _graph(options: Options, *names: str) -> bool:
    """Return whether a whole graph is meant; refuses a call that names rows in two ways."""
    given = [name for name in names if options[name] is not None]
    if len(given) > 1 or (given and (options["ids"] or has_filter(options) or options["limit"] is not None)):
        refuse(f"--{given[0]} names the rows alone: leave ids, filters and --limit out.")
    return bool(given)


def replay(options: Options, out: Output) -> int:
    """Run ended tasks again; filters pick among those with an open dead letter."""
    check_meant(options)
    edited = {name: options[f"new_{name}"] for name in ("args", "kwargs") if options[f"new_{name}"] is not None}
    if edited and len(options["ids"]) != 1:
        refuse("--args and --kwargs replay exactly one task, named by its id.")
    if edited:
        wiring.load_tasks()

    def act(ids: list[Any]) -> dict[str, int]:
        question = tasks().filter(pk__in=ids)
        return {"replayed": len(dead_letters.replay(question, **by_and_reason(options), **edited))}

    eligible = tasks().filter(status__in=REPLAYABLE)
    if not options["ids"]:
        cases = narrowed_letters(letters().open(), options)
        eligible = eligible.filter(pk__in=cases.order_by().values("open_task"))
        options = {**options, **dict.fromkeys(_CASE_FILTERS)}
    return carry_out(_change("replay", options, eligible, act), options, out)


def discard(options: Options, out: Output) -> int:
    """Close dead letters without running their tasks again."""
    check_meant(options)

    def act(ids: list[Any]) -> dict[str, int]:
        return {"discarded": dead_letters.discard(letters().filter(pk__in=ids), **by_and_reason(options))}

    if not options["ids"]:
        rows = letter_rows(narrowed_letters(letters().open(), options), options["limit"])
        return carry_out(Change(verb="discard", rows=rows, act=act, explicit=False), options, out)
    ids = task_ids(options["ids"])
    rows = letter_rows(letters().open().filter(task_id__in=ids), options["limit"])
    others = [one for one in ids if one not in {row["task_id"] for row in rows}]
    left = [{"id": one, "why": "it has no open dead letter"} for one in others]
    return carry_out(Change(verb="discard", rows=rows, act=act, explicit=True, left=left), options, out)


def force_complete(options: Options, out: Output) -> int:
    """Call tasks done."""

    def act(question: TaskQuerySet, dry_run: bool) -> Report:
        return graph_operations.force_complete(question, **by_and_reason(options), dry_run=dry_run)

    eligible = tasks().exclude(status=Status.SUCCESS)
    return operate_on("force-complete", "completed", act, eligible, task_ids(options["ids"]), options, out)


def _cancel_arguments(parser: ArgumentParser) -> None:
    add_ids(parser)
    add_filters(parser, *_FILTERS)
    parser.add_argument("--workflow", metavar="ID", type=task_id, help="a workflow run, with all runs inside it")
    parser.add_argument("--branch", metavar="ID", type=task_id, help="a task, and everything that depends on it")
    add_by_and_reason(parser)
    add_bulk(parser)


def _retry_arguments(parser: ArgumentParser) -> None:
    add_ids(parser, cases=True)
    add_filters(parser, *_FILTERS)
    parser.add_argument("--workflow", metavar="ID", type=task_id, help="a workflow run, with all runs inside it")
    parser.add_argument(
        "--mode", choices=[str(mode) for mode in RetryMode],
        help="which tasks of the workflow: FAILED, what failed and was skipped because of it (default);"
        " FAILED_AND_DOWNSTREAM, that and everything downstream; ALL, everything that ended",
    )  # fmt: skip
    parser.add_argument(
        "--from", metavar="ID", type=task_id, help="this ended task, and everything that depends on it, successes too"
    )
    add_by_and_reason(parser, "why; it is kept in the rows, and in the dead letters that it closes")
    add_bulk(parser)


def _replay_arguments(parser: ArgumentParser) -> None:
    add_ids(parser, cases=True)
    add_filters(parser, *_CASE_FILTERS)
    parser.add_argument(
        "--args", dest="new_args", metavar="JSON", type=json_of(list, "--args"), help="other arguments: a JSON list"
    )
    parser.add_argument(
        "--kwargs",
        dest="new_kwargs",
        metavar="JSON",
        type=json_of(dict, "--kwargs"),
        help="other keyword arguments: a JSON object",
    )
    add_by_and_reason(parser, "why; it is kept in the rows, and in the dead letters that it closes")
    add_bulk(parser)


def _discard_arguments(parser: ArgumentParser) -> None:
    add_ids(parser, cases=True)
    add_filters(parser, *_CASE_FILTERS)
    add_by_and_reason(parser, "why the tasks are not needed; it is kept in the dead letters", required=True)
    add_bulk(parser)


def _force_complete_arguments(parser: ArgumentParser) -> None:
    add_ids(parser, cases=True)
    add_by_and_reason(parser, "how it was done otherwise; it is kept in the execution log")
    add_dry_run(parser)


MOVES = (
    Verb(
        name="cancel",
        help="cancel waiting tasks at once, and ask running ones to stop; also a whole workflow, or a branch of it",
        examples=(f"cancel {_ID}", "cancel --name billing.tasks.remind --status PENDING --dry-run",
                  "cancel --queue mail --yes --reason 'sent by hand'",
                  f"cancel --workflow {_ID} --dry-run", f"cancel --branch {_ID} --yes --reason 'wrong input'"),
        arguments=_cancel_arguments,
        run=cancel,
    ),
    Verb(
        name="retry",
        help="run now: a task that waits for its next try, or one that failed, was cancelled, skipped or expired; also"
        " a workflow, or all from one task on",
        examples=(f"retry {_ID}", "retry 17", "retry --queue mail --status FAILED --dry-run",
                  f"retry --workflow {_ID} --dry-run", f"retry --workflow {_ID} --mode FAILED_AND_DOWNSTREAM --yes",
                  f"retry --from {_ID} --yes"),
        arguments=_retry_arguments,
        run=retry,
    ),
    Verb(
        name="replay",
        help="run ended tasks again with both budgets renewed, and close their dead letters; also with other arguments",
        examples=(f"replay {_ID}", "replay 17 --args '[42]' --kwargs '{\"dry\": false}'",
                  "replay --fingerprint 9f86d081884c7d65 --dry-run", "replay --name billing.tasks.charge --yes"),
        arguments=_replay_arguments,
        run=replay,
    ),
    Verb(
        name="discard",
        help="close dead letters without running their tasks again",
        examples=("discard 17 --reason 'refunded by hand'", "discard --queue mail --reason 'old' --limit 100 --yes"),
        arguments=_discard_arguments,
        run=discard,
    ),
    Verb(
        name="force-complete",
        help="call tasks done without running them, and let go what waits for them; the log says by whom",
        examples=(f"force-complete {_ID} --dry-run", f"force-complete {_ID} --reason 'paid by bank transfer'",),
        arguments=_force_complete_arguments,
        run=force_complete,
    ),
)  # fmt: skip

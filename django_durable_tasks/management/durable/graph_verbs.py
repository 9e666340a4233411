"""``force-run, approve, reject, hold, unhold, depend``: what an operator says of single tasks of a graph."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from typing import Any

from django_durable_tasks.lifecycle import graph_operations
from django_durable_tasks.lifecycle.graph_operations import Report
from django_durable_tasks.management.durable.operating import add_dry_run, operate, operate_on, task_of
from django_durable_tasks.management.durable.output import Output
from django_durable_tasks.management.durable.questions import task_id, tasks
from django_durable_tasks.management.durable.verb import Options, Verb, add_by_and_reason, by_and_reason, refuse
from django_durable_tasks.rules.graphs import DependencyType, OnUpstreamFailure
from django_durable_tasks.rules.states import Status

_ID = "0193b0e0-0000-7000-8000-000000000000"
_OTHER = "0193b0e0-0000-7000-8000-000000000001"


def force_run(options: Options, out: Output) -> int:
    """Run tasks whatever they wait for."""

    def act(question: Any, dry_run: bool) -> Report:
        return graph_operations.force_run(question, **by_and_reason(options), dry_run=dry_run)

    eligible = tasks().filter(status__in=(Status.BLOCKED, Status.SKIPPED))
    return operate_on("force-run", "forced", act, eligible, options["ids"], options, out)


def _one(verb: str, do: Callable[..., Report], options: Options, out: Output) -> int:
    task = task_of(options["id"])
    return operate(verb, lambda dry_run: do(task, **by_and_reason(options), dry_run=dry_run), options, out)


def depend(options: Options, out: Output) -> int:
    """Add an edge, or take it away."""
    task, upstream = task_of(options["id"]), task_of(options["on"])
    doer = by_and_reason(options)
    if options["remove"] and (options["type"] is not None or options["policy"] is not None):
        refuse("--remove takes the edge away, whatever its type: leave --type and --policy out.")

    def act(dry_run: bool) -> Report:
        if options["remove"]:
            return graph_operations.remove_edge(task, upstream, **doer, dry_run=dry_run)
        kind = options["type"] or DependencyType.MUST_SUCCEED
        return graph_operations.add_edge(task, upstream, kind, **doer, policy=options["policy"], dry_run=dry_run)

    return operate("depend", act, options, out)


def _force_run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", type=task_id, help="ids of BLOCKED or SKIPPED tasks")
    add_by_and_reason(parser)
    add_dry_run(parser)


def _one_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=task_id, help="the id of a task")
    add_by_and_reason(parser, "why; it is kept beside the gate")
    add_dry_run(parser)


def _depend_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=task_id, help="the id of the task that waits; it has not started")
    parser.add_argument("--on", metavar="ID", type=task_id, required=True, help="the id of the task that it waits for")
    parser.add_argument(
        "--type", choices=[str(kind) for kind in DependencyType], help="how that one must end (default: MUST_SUCCEED)"
    )
    parser.add_argument(
        "--policy", choices=[str(policy) for policy in OnUpstreamFailure],
        help="what becomes of the task when it ends otherwise (default: as the task says)",
    )  # fmt: skip
    parser.add_argument("--remove", action="store_true", help="take the edge away instead")
    add_by_and_reason(parser, "why; it is kept beside the dependency")
    add_dry_run(parser)


def _gate(name: str, what: str, do: Callable[..., Report], *examples: str) -> Verb:
    return Verb(
        name=name, help=what, examples=tuple(f"{name} {example}" for example in examples), arguments=_one_arguments,
        run=partial(_one, name, do),
    )  # fmt: skip


GRAPH_VERBS = (
    Verb(
        name="force-run",
        help="run BLOCKED and SKIPPED tasks now, whatever their dependencies, approvals and holds say",
        examples=(f"force-run {_ID} --dry-run", f"force-run {_ID} --reason 'the file has come by mail'"),
        arguments=_force_run_arguments,
        run=force_run,
    ),
    _gate("approve", "let a task run that waits for an approval; who and when is written down",
          graph_operations.approve, f"{_ID} --reason 'checked the totals'", f"{_ID} --by ann --dry-run"),
    _gate("reject", "cancel a task that waits for an approval, and what depends on it",
          graph_operations.reject, f"{_ID} --reason 'wrong month'", f"{_ID} --dry-run"),
    _gate("hold", "let a task that has not started wait until `unhold`",
          graph_operations.hold, f"{_ID} --reason 'until the bank has answered'"),
    _gate("unhold", "end the hold of a task; it runs when nothing else holds it",
          graph_operations.unhold, f"{_ID}", f"{_ID} --dry-run"),
    Verb(
        name="depend",
        help="let a task that has not started wait for another one, or no more; a circle is refused with its path",
        examples=(f"depend {_ID} --on {_OTHER}", f"depend {_ID} --on {_OTHER} --type MUST_FINISH --dry-run",
                  f"depend {_ID} --on {_OTHER} --remove"),
        arguments=_depend_arguments,
        run=depend,
    ),
)  # fmt: skip

"""``pause``, ``resume``, ``republish``, ``prune`` and ``limit``."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser

from django_durable_tasks.celery import inspect, publisher
from django_durable_tasks.cluster import queues
from django_durable_tasks.command.arguments import add_operations, tasks, values
from django_durable_tasks.command.recurring import add_tenant, named
from django_durable_tasks.command.subcommand import (
    OK,
    REFUSED,
    UNHEALTHY,
    Options,
    Output,
    Subcommand,
    by_and_reason,
    plain,
    refuse,
    table,
)
from django_durable_tasks.limits import operator_limits
from django_durable_tasks.limits.scopes import SCOPE_FORMS
from django_durable_tasks.schedules import lifecycle
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import retention


def pause(options: Options, out: Output) -> int:
    """Pause a queue, or one schedule."""
    if options["recurring"] is not None:
        return _pause_schedule(options, out)
    if options["until"] is not None or options["tenant"] is not None:
        refuse("--until and --tenant need --recurring.")
    name = options["queue"]
    known = {depth.queue for depth in queues.depths(database_now())}
    outcome = queues.pause.perform(name, **by_and_reason(options))
    if name not in known:
        out.note(f"No task waits in queue {name!r} and no worker consumes it. It is paused anyway.")
    shown = {"command": "pause", "queue": name, "paused": True, "reason": options["reason"]}
    out.emit(shown, outcome.message)
    return OK


def resume(options: Options, out: Output) -> int:
    """Resume a queue, or one schedule."""
    if options["recurring"] is not None:
        return _resume_schedule(options, out)
    if options["run_missed"] or options["pace"] is not None or options["tenant"] is not None:
        refuse("--run-missed, --pace and --tenant need --recurring.")
    name = options["queue"]
    outcome = queues.resume.perform(name, **by_and_reason(options))
    resumed = bool(outcome.changed)
    out.emit({"command": "resume", "queue": name, "resumed": resumed}, outcome.message)
    return OK if resumed else REFUSED


def _pause_schedule(options: Options, out: Output) -> int:
    row, operation = named(options["recurring"], options["tenant"]), lifecycle.pause
    outcome = operation.perform(row, **by_and_reason(options), **values(options, operation))
    shown = {
        "command": "pause",
        "recurring": row.name,
        "paused": True,
        "reason": options["reason"],
        "until": options["until"],
    }
    out.emit(shown, f"{row.name}: {outcome.message}")
    return OK


def _resume_schedule(options: Options, out: Output) -> int:
    row, operation = named(options["recurring"], options["tenant"]), lifecycle.resume
    outcome = operation.perform(row, **by_and_reason(options), **values(options, operation))
    resumed = bool(outcome.changed)
    next_run = plain(row.next_run_at) if row.next_run_at else "never"
    text = f"{outcome.message} Next run: {next_run}" if resumed else "was not paused"
    shown = {
        "command": "resume",
        "recurring": row.name,
        "resumed": resumed,
        "next_run_at": row.next_run_at,
    }
    out.emit(shown, f"{row.name}: {text}")
    return OK if resumed else REFUSED


def republish(options: Options, out: Output) -> int:
    """Publish QUEUED tasks again."""
    selected = tasks() if options["all"] else tasks().filter(queue=options["queue"])
    found: publisher.Republished = publisher.republish_queued.perform(
        selected, **by_and_reason(options), dry_run=options["dry_run"], progress=out.note
    ).value
    if options["dry_run"]:
        lines = [f"{name}: {number} messages" for name, number in found.queued.items()]
        shown = {"command": "republish", "dry_run": True, "would_republish": found.queued}
        out.emit(shown, "\n".join(lines) or "nothing is queued")
        return OK
    return _republished(found, out)


def _republished(found: publisher.Republished, out: Output) -> int:
    done = found.published.total()
    if found.error:
        out.note(
            f"The broker does not accept messages ({found.error}). The tasks are published again"
            " when it does."
        )
        shown = {"command": "republish", "republished": dict(found.published), "complete": False}
        out.emit(shown, f"{done} of {sum(found.queued.values())} messages published")
        return UNHEALTHY
    for name, number in found.rejected.items():
        out.note(f"The broker rejects the messages of queue {name}: {number} tasks wait.")
    shown = {
        "command": "republish",
        "republished": dict(found.published),
        "rejected": dict(found.rejected),
        "complete": not found.rejected,
    }
    out.emit(shown, f"{done} messages published")
    return UNHEALTHY if found.rejected else OK


def prune(options: Options, out: Output) -> int:
    """Delete ended tasks, ledger entries and limit buckets after their retention."""
    outcome = retention.prune_all.perform(
        None, **by_and_reason(options), dry_run=options["dry_run"], progress=out.note
    )
    if options["dry_run"]:
        lines = [f"{status}: {number} tasks" for status, number in outcome.value.items()]
        shown = {"command": "prune", "dry_run": True, "would_delete": outcome.value}
        out.emit(shown, "\n".join(lines) or "no retention is set: nothing is deleted")
        return OK
    deleted = outcome.changed
    out.emit({"command": "prune", "deleted": deleted}, f"{deleted} tasks deleted")
    return OK


def _add_subject(parser: ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("queue", metavar="QUEUE", nargs="?", help="The name of the queue.")
    what.add_argument(
        "--recurring", metavar="NAME", help="The name or id of a schedule, instead of a queue."
    )
    add_tenant(parser)


def _pause_arguments(parser: ArgumentParser) -> None:
    _add_subject(parser)
    add_operations(parser, *_PAUSE)


def _resume_arguments(parser: ArgumentParser) -> None:
    _add_subject(parser)
    add_operations(parser, *_RESUME)


def _republish_arguments(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--queue", metavar="QUEUE", help="Only the tasks of this queue.")
    which.add_argument("--all", action="store_true", help="The tasks of all queues.")
    add_operations(parser, publisher.republish_queued)


def _prune_arguments(parser: ArgumentParser) -> None:
    add_operations(parser, retention.prune_all)


_PAUSE = (queues.pause, lifecycle.pause)
_RESUME = (queues.resume, lifecycle.resume)
QUEUE_ACTIONS = (
    Subcommand(
        name="pause",
        operations=_PAUSE,
        examples=(
            "pause mail --reason 'the mail server is being moved'",
            "pause --recurring nightly-report --reason 'month end' --until 2026-12-01T06:00:00Z",
        ),
        arguments=_pause_arguments,
        run=pause,
    ),
    Subcommand(
        name="resume",
        operations=_RESUME,
        examples=(
            "resume mail",
            "resume --recurring nightly-report",
            "resume --recurring nightly-report --run-missed --pace 60",
        ),
        arguments=_resume_arguments,
        run=resume,
    ),
    Subcommand(
        name="republish",
        operations=(publisher.republish_queued,),
        examples=("republish --queue mail", "republish --all --dry-run"),
        arguments=_republish_arguments,
        run=republish,
    ),
    Subcommand(
        name="prune",
        operations=(retention.prune_all,),
        examples=("prune --dry-run", "prune"),
        arguments=_prune_arguments,
        run=prune,
    ),
)


_COLUMNS = ("scope", "source", "max_concurrency", "taken", "rate", "tokens", "waiting")


def limit(options: Options, out: Output) -> int:
    """List the limits, set one, or remove one."""
    inspect.load_tasks()
    return {"list": _list, "set": _set, "remove": _remove}[options["action"]](options, out)


def _list(options: Options, out: Output) -> int:
    rows = [dataclasses.asdict(standing) for standing in operator_limits.limit_usages()]
    out.emit(rows, table(_COLUMNS, rows, "nothing is limited"))
    return OK


def _set(options: Options, out: Output) -> int:
    scope, fields = _scope(options), values(options, operator_limits.set_limit)
    outcome = operator_limits.set_limit.perform(scope, **by_and_reason(options), **fields)
    shown = {"command": "limit", "scope": scope, **fields, "reason": options["reason"]}
    out.emit(shown, outcome.message)
    return OK


def _remove(options: Options, out: Output) -> int:
    scope = _scope(options)
    outcome = operator_limits.remove_limit.perform(scope, **by_and_reason(options))
    removed = bool(outcome.changed)
    out.emit({"command": "limit", "scope": scope, "removed": removed}, outcome.message)
    return OK if removed else REFUSED


def _scope(options: Options) -> str:
    scope: str | None = options["scope"]
    if scope is None:
        refuse(f"Name the scope: {SCOPE_FORMS}.")
    return scope


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "set", "remove"), help="What to do.")
    parser.add_argument(
        "scope",
        metavar="SCOPE",
        nargs="?",
        help="global, queue:NAME, task:NAME, tenant:ID or key:TEXT.",
    )
    add_operations(parser, operator_limits.set_limit, operator_limits.remove_limit)


LIMIT = Subcommand(
    name="limit",
    summary="or list the limits",
    operations=(operator_limits.set_limit, operator_limits.remove_limit),
    examples=(
        "limit list",
        (
            "limit set queue:mail --max-concurrency 5 --rate 100/m --reason 'the provider asked"
            " for it'"
        ),
        "limit set task:shop.tasks.charge --max-concurrency 0",
        "limit remove queue:mail",
    ),
    arguments=_arguments,
    run=limit,
)

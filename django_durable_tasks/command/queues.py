"""Operations on queues, limits and the whole installation."""

from __future__ import annotations

import dataclasses

from django_durable_tasks.celery import inspect, publisher
from django_durable_tasks.cluster import queues
from django_durable_tasks.command.schedules import schedule_named, tenant_of_schedule
from django_durable_tasks.command.subcommand import (
    OK,
    REFUSED,
    UNHEALTHY,
    Options,
    Output,
    argument,
    one_of,
    perform,
    plain,
    refuse,
    subcommand,
    table,
    values,
)
from django_durable_tasks.command.tasks import tasks
from django_durable_tasks.limits import operator_limits
from django_durable_tasks.limits.scopes import SCOPE_FORMS
from django_durable_tasks.option_values import checked_name
from django_durable_tasks.schedules import lifecycle
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import key_rotation, retention
from django_durable_tasks.texts import counted, did_you_mean

_queue_or_schedule = one_of(
    argument("queue", metavar="QUEUE", nargs="?", help="The name of the queue."),
    argument(
        "--recurring", metavar="NAME", help="The name or id of a schedule, instead of a queue."
    ),
    required=True,
)


@subcommand(
    _queue_or_schedule,
    tenant_of_schedule,
    argument(
        "--unused",
        action="store_true",
        help="Pause a queue that no task of the project names and no worker consumes.",
    ),
    operations=(queues.pause, lifecycle.pause),
)
def pause(options: Options, out: Output) -> int:
    """Pause a queue, or one schedule.

    Examples:
        pause mail --reason 'the mail server is being moved'
        pause --recurring nightly-report --reason 'month end' --until 2026-12-01T06:00:00Z
    """
    data = {"paused": True, "reason": options["reason"]}
    if options["recurring"] is not None:
        row = schedule_named(options["recurring"], options["tenant"])
        outcome = perform(lifecycle.pause, row, options)
        data |= {"recurring": row.name, "until": options["until"]}
        return out.report(f"{row.name}: {outcome.message}", **data)
    if options["until"] is not None or options["tenant"] is not None:
        refuse("--until and --tenant need --recurring.")
    queue = options["queue"]
    checked_name("queue", queue)
    names = {depth.queue for depth in queues.depths(database_now(), inspect.declared_queues())}
    if queue not in names and not options["unused"]:
        hint = did_you_mean(queue, names)
        refuse(
            f"No queue named {queue!r} is in use.{hint and f' {hint}'} Nothing was paused."
            " To pause a queue before it is used, add --unused."
        )
    outcome = perform(queues.pause, queue, options)
    return out.report(outcome.message, **data, queue=queue)


@subcommand(_queue_or_schedule, tenant_of_schedule, operations=(queues.resume, lifecycle.resume))
def resume(options: Options, out: Output) -> int:
    """Resume a queue, or one schedule.

    Examples:
        resume mail
        resume --recurring nightly-report
        resume --recurring nightly-report --run-missed --pace 60
    """
    if options["recurring"] is not None:
        row = schedule_named(options["recurring"], options["tenant"])
        outcome = perform(lifecycle.resume, row, options)
        next_run = plain(row.next_run_at) if row.next_run_at else "never"
        text = f"{outcome.message} Next run: {next_run}" if outcome.changed else "was not paused"
        data = {"recurring": row.name, "next_run_at": row.next_run_at}
        text = f"{row.name}: {text}"
    else:
        if options["run_missed"] or options["pace"] is not None or options["tenant"] is not None:
            refuse("--run-missed, --pace and --tenant need --recurring.")
        outcome = perform(queues.resume, options["queue"], options)
        data, text = {"queue": options["queue"]}, outcome.message
    code = OK if outcome.changed else REFUSED
    return out.report(text, code, **data, resumed=bool(outcome.changed))


@subcommand(
    one_of(
        argument("--queue", metavar="QUEUE", help="Only the tasks of this queue."),
        argument("--all", action="store_true", help="The tasks of all queues."),
        required=True,
    ),
    operations=(publisher.republish_queued,),
)
def republish(options: Options, out: Output) -> int:
    """Publish QUEUED tasks again.

    Examples:
        republish --queue mail
        republish --all --dry-run
    """
    selected = tasks() if options["all"] else tasks().filter(queue=options["queue"])
    result: publisher.Republished = perform(
        publisher.republish_queued, selected, options, dry_run=options["dry_run"], progress=out.note
    ).value
    if options["dry_run"]:
        lines = [
            f"{queue}: {counted(number, 'message')}" for queue, number in result.queued.items()
        ]
        text = "\n".join(lines) or "nothing is queued"
        return out.report(text, dry_run=True, would_republish=result.queued)
    done = result.published.total()
    data = {"republished": dict(result.published)}
    if result.error:
        out.note(
            f"The broker does not accept messages ({result.error}). The tasks are published again"
            " when it does."
        )
        text = f"{done} of {counted(sum(result.queued.values()), 'message')} published"
        return out.report(text, UNHEALTHY, **data, complete=False)
    for queue, number in result.rejected.items():
        waiting = counted(number, "task waits", "tasks wait")
        out.note(f"The broker rejects the messages of queue {queue}: {waiting}.")
    return out.report(
        f"{counted(done, 'message')} published",
        UNHEALTHY if result.rejected else OK,
        **data,
        rejected=dict(result.rejected),
        complete=not result.rejected,
    )


@subcommand(operations=(retention.prune_all,))
def prune(options: Options, out: Output) -> int:
    """Delete ended tasks, ledger entries and limit buckets after their retention.

    Examples:
        prune --dry-run
        prune
    """
    dry_run = options["dry_run"]
    outcome = perform(retention.prune_all, None, options, dry_run=dry_run, progress=out.note)
    if dry_run:
        lines = [f"{status}: {counted(number, 'task')}" for status, number in outcome.value.items()]
        text = "\n".join(lines) or "no retention is set: nothing is deleted"
        return out.report(text, dry_run=True, would_delete=outcome.value)
    return out.report(f"{counted(outcome.changed, 'task')} deleted", deleted=outcome.changed)


_LIMIT = ("scope", "source", "max_concurrency", "taken", "rate", "tokens", "waiting")


@subcommand(
    argument("action", choices=("list", "set", "remove"), help="What to do."),
    argument(
        "scope",
        metavar="SCOPE",
        nargs="?",
        help="global, queue:NAME, task:NAME, tenant:ID or key:TEXT.",
    ),
    operations=(operator_limits.set_limit, operator_limits.remove_limit),
)
def limit(options: Options, out: Output) -> int:
    """List the limits, set one, or remove one.

    Examples:
        limit list
        limit set queue:mail --max-concurrency 5 --rate 100/m --reason 'the provider asked for it'
        limit set task:shop.tasks.charge --max-concurrency 0
        limit remove queue:mail
    """
    inspect.load_tasks()
    if options["action"] == "list":
        due = queues.due_tasks(database_now())
        rows = [dataclasses.asdict(usage) for usage in operator_limits.limit_usages(due)]
        return out.emit(rows, table(_LIMIT, rows, "nothing is limited"))
    scope = options["scope"] or refuse(f"Name the scope: {SCOPE_FORMS}.")
    if options["action"] == "set":
        outcome = perform(operator_limits.set_limit, scope, options)
        fields = values(options, operator_limits.set_limit)
        return out.report(outcome.message, scope=scope, **fields, reason=options["reason"])
    outcome = perform(operator_limits.remove_limit, scope, options)
    removed = bool(outcome.changed)
    return out.report(outcome.message, OK if removed else REFUSED, scope=scope, removed=removed)


# Characters of the bar in front of the numbers.
_BAR = 30


@subcommand(operations=(key_rotation.rotate_keys,))
def rotate_keys(options: Options, out: Output) -> int:
    """Encrypt stored values with the first key of ENCRYPTION_KEYS, and show the progress, what has
    failed, and what remains.

    Examples:
        rotate-keys --dry-run
        rotate-keys --reason 'yearly rotation'
        rotate-keys --include-plain
    """

    def progress(text: str) -> None:
        done, _of, total = text.partition(" of ")
        filled = _BAR * int(done) // max(1, int(total))
        out.note(f"[{'#' * filled}{'.' * (_BAR - filled)}] {text}")

    dry_run = options["dry_run"]
    result: key_rotation.KeyRotation = perform(
        key_rotation.rotate_keys, None, options, dry_run=dry_run, progress=progress
    ).value
    remain = sum(result.remaining.values())
    lines = (
        [] if dry_run else [f"{counted(result.changed, 'row was', 'rows were')} encrypted again."]
    )
    lines += [
        f"{name}: {counted(number, 'row remains', 'rows remain')}"
        for name, number in result.remaining.items()
    ]
    if result.error:
        lines.append(
            f"{counted(result.failed, 'row')} could not be decrypted. The first: {result.error}"
        )
    elif not remain:
        lines.append("All encrypted rows have the first key: the others can be removed.")
    return out.report(
        "\n".join(lines),
        UNHEALTHY if remain and not dry_run else OK,
        dry_run=dry_run,
        changed=result.changed,
        failed=result.failed,
        remaining=result.remaining,
        error=result.error,
    )

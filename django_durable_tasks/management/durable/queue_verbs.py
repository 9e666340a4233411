"""``pause``, ``resume``, ``ring`` and ``prune``: what is done to a queue, a schedule or the whole table."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter

from django.db.models import Count

from django_durable_tasks import conf
from django_durable_tasks.celery import dispatcher
from django_durable_tasks.exceptions import BrokerUnavailable
from django_durable_tasks.lifecycle import claims, queues, retention
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.management.durable.drafts import moment
from django_durable_tasks.management.durable.output import Output, plain
from django_durable_tasks.management.durable.questions import tasks
from django_durable_tasks.management.durable.recurring import add_tenant, named
from django_durable_tasks.management.durable.verb import (
    OK,
    REFUSED,
    UNHEALTHY,
    Options,
    Verb,
    add_by_and_reason,
    by_and_reason,
    refuse,
)
from django_durable_tasks.rules.recurring import RecurringStatus


def pause(options: Options, out: Output) -> int:
    """Hold a queue, or one recurring task."""
    if options["recurring"] is not None:
        return _pause_recurring(options, out)
    if options["until"] is not None or options["tenant"] is not None:
        refuse("--until and --tenant go with --recurring.")
    name = options["queue"]
    known = {depth.queue for depth in queues.depths(database_now())}
    queues.pause(name, **by_and_reason(options))
    if name not in known:
        out.note(f"No task waits in a queue {name!r} and no worker listens to one: it is paused all the same.")
    out.emit({"verb": "pause", "queue": name, "paused": True, "reason": options["reason"]}, f"{name} is paused")
    return OK


def resume(options: Options, out: Output) -> int:
    """Let a queue go on, or one recurring task."""
    if options["recurring"] is not None:
        return _resume_recurring(options, out)
    if options["run_missed"] or options["pace"] is not None or options["tenant"] is not None:
        refuse("--run-missed, --pace and --tenant go with --recurring.")
    name = options["queue"]
    resumed = queues.resume(name, **by_and_reason(options))
    text = f"{name} goes on" if resumed else f"{name} was not paused"
    out.emit({"verb": "resume", "queue": name, "resumed": resumed}, text)
    return OK if resumed else REFUSED


def _pause_recurring(options: Options, out: Output) -> int:
    row = named(options["recurring"], options["tenant"])
    row.pause(until=options["until"], **by_and_reason(options))
    told = {
        "verb": "pause",
        "recurring": row.name,
        "paused": True,
        "reason": options["reason"],
        "until": options["until"],
    }
    until = f" until {plain(options['until'])}" if options["until"] else ""
    out.emit(told, f"{row.name} is paused{until}; what passes meanwhile is told as PAUSED")
    return OK


def _resume_recurring(options: Options, out: Output) -> int:
    row = named(options["recurring"], options["tenant"])
    resumed = row.status != RecurringStatus.ACTIVE
    row.resume(**by_and_reason(options), run_missed=options["run_missed"], pace=options["pace"])
    next_run = plain(row.next_run_at) if row.next_run_at else "never"
    text = f"{row.name} goes on, next at {next_run}" if resumed else f"{row.name} was not paused"
    out.emit({"verb": "resume", "recurring": row.name, "resumed": resumed, "next_run_at": row.next_run_at}, text)
    return OK if resumed else REFUSED


def ring(options: Options, out: Output) -> int:
    """Publish every QUEUED row once more."""
    question = tasks().queued()
    if not options["all"]:
        question = question.filter(queue=options["queue"])
    counted = dict(question.order_by().values_list("queue").annotate(number=Count("*")))
    if options["dry_run"]:
        text = "\n".join(f"{name}: {number} messages" for name, number in counted.items()) or "nothing is queued"
        out.emit({"verb": "republish", "dry_run": True, "would_republish": counted}, text)
        return OK
    total, rung, rejected = sum(counted.values()), Counter[str](), Counter[str]()
    for rings in claims.ring_all(question, conf.settings().BATCH_SIZE):
        try:
            refused = dispatcher.republish(rings)
        except BrokerUnavailable as error:
            out.note(f"The broker does not take them ({error}); the rows stay, and are published again when it does.")
            out.emit(
                {"verb": "republish", "republished": dict(rung), "complete": False}, f"{rung.total()} of {total} rung"
            )
            return UNHEALTHY
        rung.update(Counter(one.queue for one in rings) - refused)
        rejected += refused
        if total > conf.settings().BATCH_SIZE:
            out.note(f"{rung.total()} of {total}")
    for name, number in rejected.items():
        out.note(f"The broker rejects the messages of queue {name}: {number} tasks of it wait.")
    told = {"verb": "republish", "republished": dict(rung), "rejected": dict(rejected), "complete": not rejected}
    out.emit(told, f"{rung.total()} messages rung")
    return UNHEALTHY if rejected else OK


def prune(options: Options, out: Output) -> int:
    """Delete ended tasks whose retention is over."""
    now = database_now()
    if options["dry_run"]:
        counted = retention.prunable(now)
        text = "\n".join(f"{status}: {number} tasks" for status, number in counted.items())
        out.emit({"verb": "prune", "dry_run": True, "would_delete": counted}, text or "everything is kept for ever")
        return OK
    deleted, size = 0, conf.settings().BATCH_SIZE
    stayed = retention.Stayed()
    while (number := retention.prune(now, size, stayed)) > 0:
        deleted += number
        if number == size:
            out.note(f"{deleted} deleted")
    out.emit({"verb": "prune", "deleted": deleted}, f"{deleted} tasks deleted")
    return OK


def _pause_arguments(parser: ArgumentParser) -> None:
    _add_what(parser)
    add_by_and_reason(parser, "why; status and admin show it")
    parser.add_argument("--until", metavar="INSTANT", type=moment, help="of --recurring: it goes on then by itself")


def _resume_arguments(parser: ArgumentParser) -> None:
    _add_what(parser)
    add_by_and_reason(parser, "why; it is kept in the row of the queue, or of the recurring task")
    parser.add_argument("--run-missed", action="store_true", help="of --recurring: catch up what the pause held back")
    parser.add_argument("--pace", metavar="SECONDS", type=float, help="of --run-missed: so far apart")


def _add_what(parser: ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("queue", metavar="QUEUE", nargs="?", help="the queue's name")
    what.add_argument("--recurring", metavar="NAME", help="a recurring task instead: its name or id")
    add_tenant(parser)


def _ring_arguments(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--queue", metavar="QUEUE", help="what is published of this queue")
    which.add_argument("--all", action="store_true", help="what is published of every queue")
    parser.add_argument("--dry-run", action="store_true", help="count what would be rung, and ring nothing")


def _prune_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="count what would be deleted, and delete nothing")


QUEUE_VERBS = (
    Verb(
        name="pause",
        help="hold a queue, or a recurring task: nothing of it starts until it is resumed; runs in progress go on",
        examples=(
            "pause mail --reason 'the mail server is being moved'",
            "pause --recurring nightly-report --reason 'month end' --until 2026-12-01T06:00:00Z",
        ),
        arguments=_pause_arguments,
        run=pause,
    ),
    Verb(
        name="resume",
        help="let a paused queue, or a paused recurring task, go on",
        examples=(
            "resume mail",
            "resume --recurring nightly-report",
            "resume --recurring nightly-report --run-missed --pace 60",
        ),
        arguments=_resume_arguments,
        run=resume,
    ),
    Verb(
        name="republish",
        help="publish again, now, what waits for a worker: for a broker that was flushed or lost its messages",
        examples=("republish --queue mail", "republish --all --dry-run"),
        arguments=_ring_arguments,
        run=ring,
    ),
    Verb(
        name="prune",
        help="delete ended tasks whose retention is over, in batches (the leader does so by itself)",
        examples=("prune --dry-run", "prune"),
        arguments=_prune_arguments,
        run=prune,
    ),
)

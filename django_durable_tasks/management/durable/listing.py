"""``durable list``: tasks, workflows, recurring tasks, dead letters, queues and nodes.

Pages are selected by key, so the last page costs as much as the first.
"""

from __future__ import annotations

import dataclasses
import uuid
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from django.db.models import F

from django_durable_tasks import conf
from django_durable_tasks.engine.cluster import queues
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.management.durable import recurring, workflow_pages
from django_durable_tasks.management.durable.output import Output, clean, first_line, table
from django_durable_tasks.management.durable.selectors import (
    add_filters,
    count,
    dead_letters,
    letter_id,
    narrowed,
    narrowed_letters,
    tasks,
)
from django_durable_tasks.management.durable.subcommand import OK, Options, Subcommand, refuse
from django_durable_tasks.models import Node
from django_durable_tasks.rules.recurring.policies import RecurringStatus
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.workflows.plan import WorkflowStatus

_TASK = (
    "id",
    "status",
    "queue",
    "name",
    "priority",
    "run_at",
    "due_at",
    "attempts",
    "reason",
    "last_error",
)
_TASK_SHOWN = (
    "id",
    "status",
    "queue",
    "name",
    "priority",
    "run_at",
    "due_at",
    "attempts",
    "reason",
)
_LETTER = (
    "id",
    "task_id",
    "reason",
    "fingerprint",
    "attempts",
    "created_at",
    "resolved_at",
    "resolution",
    "resolved_by",
    "comment",
    "error_message",
)
_LETTER_SHOWN = (
    "id",
    "task_id",
    "name",
    "reason",
    "fingerprint",
    "attempts",
    "created_at",
    "state",
    "error_message",
)
_NODE = (
    "id",
    "name",
    "kind",
    "host",
    "pid",
    "version",
    "pool",
    "concurrency",
    "queues",
    "started_at",
    "last_seen_at",
    "stopped_at",
    "declared_dead",
)
_NODE_SHOWN = (
    "name",
    "kind",
    "host",
    "pid",
    "pool",
    "concurrency",
    "queues",
    "last_seen_at",
    "stopped_at",
)
_QUEUE_SHOWN = (
    "queue",
    "pending",
    "due",
    "limited",
    "queued",
    "unanswered",
    "running",
    "late",
    "oldest_due_at",
    "workers",
    "concurrency",
    "paused_by",
    "reason",
)

_OF_SCHEDULES = {RecurringStatus.ACTIVE.value, RecurringStatus.PAUSED.value}

Page = tuple[tuple[str, ...], list[dict[str, Any]]]


def _tasks(options: Options) -> Page:
    if options["status"] in _OF_SCHEDULES:
        refuse(
            f"No task is {options['status']}: a recurring task is. `durable list recurring` shows"
            " them."
        )
    if options["status"] == WorkflowStatus.STARTING:
        refuse("No task is STARTING: a workflow run is. `durable list workflows` shows them.")
    question = narrowed(tasks(), options).order_by("-pk")
    if options["after"] is not None:
        if not isinstance(options["after"], uuid.UUID):
            refuse("--after of tasks is the id of a task (a UUID).")
        question = question.filter(pk__lt=options["after"])
    rows = list(question.values(*_TASK)[: options["limit"]])
    return _TASK_SHOWN, [{**row, "last_error": clean(row["last_error"])} for row in rows]


def _workflows(options: Options) -> Page:
    return workflow_pages.ROW_SHOWN, workflow_pages.listed(options)


def _recurring(options: Options) -> Page:
    fields = {"status": "status", "queue": "queue", "name": "task", "tenant": "tenant__slug"}
    question = recurring.rows().filter(
        **{fields[name]: options[name] for name in fields if options[name] is not None}
    )
    if options["after"] is not None:
        if not isinstance(options["after"], uuid.UUID):
            refuse("--after of recurring tasks is the id of one (a UUID).")
        question = question.filter(pk__lt=options["after"])
    return recurring.ROW_SHOWN, recurring.listed(question.order_by("-pk"), options["limit"])


def _dead_letters(options: Options) -> Page:
    question = dead_letters() if options["all"] else dead_letters().open()
    question = narrowed_letters(question, options).order_by("-pk")
    if options["after"] is not None:
        if not isinstance(options["after"], int):
            refuse("--after of dead letters is a number.")
        question = question.filter(pk__lt=options["after"])
    rows = [
        {
            **row,
            "error_message": clean(row["error_message"]),
            "state": "open" if row["resolved_at"] is None else "closed",
        }
        for row in question.values(*_LETTER, name=F("task__name"), queue=F("task__queue"))[
            : options["limit"]
        ]
    ]
    return _LETTER_SHOWN, rows


def _queues(options: Options) -> Page:
    found = [dataclasses.asdict(depth) for depth in queues.depths(database_now())]
    return (
        _QUEUE_SHOWN,
        [row for row in found if options["queue"] in (None, row["queue"])][: options["limit"]],
    )


def _nodes(options: Options) -> Page:
    question = Node.objects.using(conf.settings().DATABASE)
    living = question.all() if options["all"] else question.alive()
    return _NODE_SHOWN, list(
        living.order_by("-last_seen_at", "pk").values(*_NODE)[: options["limit"]]
    )


_KINDS: dict[str, tuple[Callable[[Options], Page], tuple[str, ...]]] = {
    "tasks": (_tasks, ("status", "queue", "name", "tenant", "key", "after")),
    "workflows": (_workflows, ("status", "name", "tenant", "key", "after")),
    "recurring": (_recurring, ("status", "queue", "name", "tenant", "after")),
    "dead-letters": (_dead_letters, ("queue", "name", "tenant", "fingerprint", "after", "all")),
    "queues": (_queues, ("queue",)),
    "nodes": (_nodes, ("all",)),
}


def arguments(parser: ArgumentParser) -> None:
    """Declare what can be listed, and the filters."""
    parser.add_argument(
        "kind",
        nargs="?",
        choices=list(_KINDS),
        default="tasks",
        help="what to list (default: tasks)",
    )
    words = [
        *(status.value for status in Status),
        WorkflowStatus.STARTING.value,
        *sorted(_OF_SCHEDULES),
    ]
    parser.add_argument("--status", choices=words, help="only in this status")
    add_filters(parser, "queue", "name", "tenant", "key", "fingerprint")
    parser.add_argument(
        "--limit", type=count, default=50, help="how many rows at most (default: 50)"
    )
    parser.add_argument(
        "--after", type=letter_id, help="go on after the last id of the page before"
    )
    parser.add_argument(
        "--all", action="store_true", help="closed dead letters and departed nodes too"
    )


def run(options: Options, out: Output) -> int:
    """Show one page, the newest first."""
    read, taken = _KINDS[options["kind"]]
    for name in ("status", "queue", "name", "tenant", "key", "fingerprint", "after", "all"):
        if options[name] not in (None, False) and name not in taken:
            refuse(
                f"--{name} does not narrow {options['kind']}; it takes:"
                f" {', '.join(f'--{one}' for one in taken)}."
            )
    columns, rows = read(options)
    shown = [
        (
            {**row, "error_message": first_line(row["error_message"])}
            if "error_message" in row
            else row
        )
        for row in rows
    ]
    out.emit(rows, table(columns, shown))
    if "after" in taken and len(rows) == options["limit"]:
        out.note(f"There may be more: add --after {rows[-1]['id']}")
    return OK


LIST = Subcommand(
    name="list",
    summary="list tasks, workflows, schedules, dead letters, queues or nodes, newest first",
    examples=(
        "list",
        "list tasks --status FAILED --queue mail --limit 20",
        "list tasks --status PENDING --after 0193b0e0-0000-7000-8000-000000000000",
        "list dead-letters --name billing.tasks.charge --format json",
        "list workflows --status RUNNING --name nightly",
        "list recurring --status PAUSED",
        "list queues",
        "list nodes --all",
    ),
    arguments=arguments,
    run=run,
)

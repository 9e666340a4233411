"""``durable show``: a task with its attempts, a workflow run, or a schedule."""

from __future__ import annotations

import uuid
from argparse import ArgumentParser
from inspect import Parameter
from typing import Any, NoReturn

from django_durable_tasks import conf, registry
from django_durable_tasks.celery.explain import sentences
from django_durable_tasks.engine.audit.history import of_task
from django_durable_tasks.management.durable import recurring, workflow_pages
from django_durable_tasks.management.durable.output import (
    Output,
    cell,
    clean,
    first_line,
    hidden,
    table,
)
from django_durable_tasks.management.durable.selectors import tasks
from django_durable_tasks.management.durable.subcommand import OK, Options, Subcommand, refuse
from django_durable_tasks.models import Task
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.target_types import TargetType
from django_durable_tasks.rules.tasks.explanations import Sentence
from django_durable_tasks.rules.tasks.masking import masked_positional

_FACTS = (
    "id",
    "name",
    "queue",
    "priority",
    "status",
    "reason",
    "key",
    "unique_key",
    "idempotency_key",
    "args",
    "kwargs",
    "options",
    "run_at",
    "due_at",
    "lease_until",
    "expires_at",
    "created_at",
    "started_at",
    "completed_at",
    "cancel_requested_at",
    "attempts",
    "failures",
    "max_attempts",
    "crashes",
    "max_crashes",
    "publish_count",
    "epoch",
    "run_id",
    "node",
    "progress",
    "result",
    "last_error",
)
_LOG = (
    "attempt_number",
    "status",
    "started_at",
    "completed_at",
    "worker",
    "node",
    "celery_id",
    "error_message",
    "traceback",
)
_LETTER = (
    "id",
    "reason",
    "fingerprint",
    "created_at",
    "resolved_at",
    "resolution",
    "resolved_by",
    "comment",
)
_REQUEST = (
    "attempt_number",
    "outcome",
    "status",
    "failure",
    "started_at",
    "method",
    "url",
    "reason",
    "retry_delay",
    "total_seconds",
    "response_body",
)
_AUDIT = ("at", "operation", "actor", "source", "reason")
_REQUEST_LINE = ("attempt_number", "outcome", "status", "failure", "started_at", "method", "url")
_TIMELINE = (
    "attempt_number",
    "status",
    "started_at",
    "completed_at",
    "seconds",
    "worker",
    "error_message",
)


def facts_of(task: Task) -> dict[str, Any]:
    """Return the row, its attempts and dead letters, with secrets masked."""
    row = {name: getattr(task, name) for name in _FACTS}
    row["args"] = masked_positional(task.args, _parameters(task.name), conf.settings().SECRET_NAMES)
    row |= {name: hidden(row[name]) for name in ("kwargs", "options", "progress", "result")}
    row["last_error"] = clean(task.last_error)
    attempts = []
    for log in task.executions.using(task._state.db).order_by("pk"):
        attempt = {name: getattr(log, name) for name in _LOG}
        attempt |= {"error_message": clean(log.error_message), "traceback": clean(log.traceback)}
        attempts.append({**attempt, "seconds": log.duration})
    row["tenant"] = str(getattr(task.tenant, "slug", task.tenant))
    row["graph"] = workflow_pages.graph_of(task)
    row["executions"] = attempts
    row["requests"] = _requests(task)
    row["audit"] = [{name: getattr(one, name) for name in _AUDIT} for one in of_task(task)]
    row["dead_letters"] = list(
        task.dead_letters.using(task._state.db).order_by("pk").values(*_LETTER)
    )
    return row


def _requests(task: Task) -> list[dict[str, Any]]:
    """Return the HTTP requests of the task. Other tasks cost no statement."""
    if task.target_type != TargetType.HTTP_CALLBACK:
        return []
    return list(task.deliveries.using(task._state.db).order_by("pk").values(*_REQUEST))


def _parameters(name: str) -> list[str] | None:
    """Return the names of the positional parameters; None if the task is not registered, so that
    every value is masked.
    """
    known = registry.find(name)
    if known is None:
        return None
    positional = (
        Parameter.POSITIONAL_ONLY,
        Parameter.POSITIONAL_OR_KEYWORD,
        Parameter.VAR_POSITIONAL,
    )
    return [one.name for one in known.signature.parameters.values() if one.kind in positional]


def _text(facts: dict[str, Any], why: list[Sentence]) -> str:
    lines = [f"why: {why[0].text}", *(f"     {sentence.text}" for sentence in why[1:]), ""]
    for name in (*_FACTS, "tenant"):
        if facts[name] not in (None, "", [], {}) or name in ("args", "kwargs"):
            value = first_line(facts[name]) if name == "last_error" else facts[name]
            shown = str(value) if isinstance(value, dict | list) else cell(value)
            lines.append(f"{name.replace('_', ' '):>20}  {shown}")
    lines += workflow_pages.graph_text(facts["graph"])
    timeline = [
        {
            **log,
            "error_message": first_line(log["error_message"]),
            "seconds": _rounded(log["seconds"]),
        }
        for log in facts["executions"]
    ]
    if facts["status"] == Status.RUNNING:
        timeline.append(
            {
                **dict.fromkeys(_TIMELINE),
                "attempt_number": facts["attempts"],
                "status": "RUNNING",
                "started_at": facts["started_at"],
                "worker": facts["node"],
            }
        )
    lines += ["", table(_TIMELINE, timeline, "no attempt yet")]
    if facts["requests"]:
        lines += ["", table(_REQUEST_LINE, facts["requests"])]
    if facts["dead_letters"]:
        lines += ["", table(_LETTER, facts["dead_letters"])]
    if facts["audit"]:
        lines += ["", table(_AUDIT, facts["audit"])]
    return "\n".join(lines)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def run(options: Options, out: Output) -> int:
    """Show one task, one workflow run, or the recurring task with this name or id."""
    task = _task(options["id"])
    started = None if task is not None else workflow_pages.found(options["id"])
    if started is not None:
        return workflow_pages.show(started, out)
    if task is None:
        row = recurring.found(options["id"], options["tenant"])
        return recurring.show(row, out) if row is not None else _refuse(options["id"])
    why = sentences(task)
    facts = facts_of(task)
    data = {"why": why[0].text, "sentences": [sentence.text for sentence in why], **facts}
    out.emit(data, _text(facts, why))
    return OK


def _task(text: str) -> Task | None:
    try:
        found: Task | None = tasks().select_related("tenant").filter(pk=uuid.UUID(text)).first()
    except ValueError:
        return None
    return found


def _refuse(text: str) -> NoReturn:
    try:
        uuid.UUID(text)
    except ValueError:
        refuse(f"{text!r} is not the id of a task (a UUID), and no recurring task has that name.")
    refuse(f"There is no task and no workflow run {text}: it never was, or its retention is over.")


def arguments(parser: ArgumentParser) -> None:
    """Declare the id."""
    parser.add_argument(
        "id",
        metavar="ID|NAME",
        help=(
            "the id of a task, which is also the id of its DurableResult; "
            "or of a workflow run; or the name or id of a recurring task"
        ),
    )
    recurring.add_tenant(parser)


SHOW = Subcommand(
    name="show",
    summary=(
        "show one task, its attempts, what it waits for, and why it did not run; or a workflow run"
        " with its progress; or a recurring task with its next fires and its ledger"
    ),
    examples=(
        "show 0193b0e0-0000-7000-8000-000000000000",
        "show 0193b0e0-0000-7000-8000-000000000000 --format json",
        "show nightly-report",
    ),
    arguments=arguments,
    run=run,
)

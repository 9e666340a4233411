"""Which rows a verb means: ids on the command line, or filters."""

from __future__ import annotations

import uuid
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.management.durable.verb import Options, refuse
from django_durable_tasks.models import DeadLetter, Task
from django_durable_tasks.models.dead_letter import DeadLetterQuerySet
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.rules.states import Status

_HELP = {
    "name": "only of this durable task (its registered name)",
    "queue": "only of this queue",
    "tenant": "only of this tenant (its slug)",
    "key": "only under this key",
    "fingerprint": "only of this kind of error",
    "status": "only in this status",
}


def tasks() -> TaskQuerySet:
    """Return all tasks."""
    found: TaskQuerySet = Task.objects.using(conf.settings().DATABASE)
    return found


def letters() -> DeadLetterQuerySet:
    """Return all dead letters."""
    found: DeadLetterQuerySet = DeadLetter.objects.using(conf.settings().DATABASE)
    return found


def task_id(text: str) -> uuid.UUID:
    """Read the id of a task."""
    try:
        return uuid.UUID(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not the id of a task (a UUID)") from None


def case_id(text: str) -> uuid.UUID | int:
    """Read the id of a task or the number of a dead letter."""
    return int(text) if text.isdecimal() else task_id(text)


def count(text: str) -> int:
    """Read a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def add_filters(parser: ArgumentParser, *names: str) -> None:
    """Declare filters by their names."""
    for name in names:
        choices: Any = [status.value for status in Status] if name == "status" else None
        parser.add_argument(f"--{name}", choices=choices, help=_HELP[name])


def has_filter(options: Options) -> bool:
    """Return whether any filter was given."""
    return any(options.get(name) is not None for name in _HELP)


def narrowed(question: TaskQuerySet, options: Options) -> TaskQuerySet:
    """Narrow a question about tasks by the filters that were given."""
    fields = {"name": "name", "queue": "queue", "tenant": "tenant__slug", "key": "key", "status": "status"}
    given = {field: options[name] for name, field in fields.items() if options.get(name) is not None}
    return question.filter(**given)


def narrowed_letters(question: DeadLetterQuerySet, options: Options) -> DeadLetterQuerySet:
    """Narrow a question about dead letters by the filters that were given."""
    fields = {"name": "task__name", "queue": "task__queue", "tenant": "tenant__slug", "fingerprint": "fingerprint"}
    given = {field: options[name] for name, field in fields.items() if options.get(name) is not None}
    return question.filter(**given)


def check_meant(options: Options) -> None:
    """Refuse a call that names rows both ways, or in none."""
    if bool(options["ids"]) == has_filter(options):
        refuse("Name rows by their ids, or by filters: one of the two.")

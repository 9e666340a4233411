"""Selecting rows by their ids or by filters."""

from __future__ import annotations

import json
import uuid
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.management.durable.subcommand import Options, refuse
from django_durable_tasks.models import DeadLetter, Task
from django_durable_tasks.models.dead_letter import DeadLetterQuerySet
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.rules.states import Status

_HELP = {
    "name": "Only tasks of this name.",
    "queue": "Only tasks of this queue.",
    "tenant": "Only tasks of this tenant (its slug).",
    "key": "Only tasks with this key.",
    "fingerprint": "Only tasks with this error fingerprint.",
    "status": "Only tasks in this status.",
}


def tasks() -> TaskQuerySet:
    """Return a queryset of all tasks."""
    found: TaskQuerySet = Task.objects.using(conf.settings().DATABASE)
    return found


def dead_letters() -> DeadLetterQuerySet:
    """Return a queryset of all dead letters."""
    found: DeadLetterQuerySet = DeadLetter.objects.using(conf.settings().DATABASE)
    return found


def task_id(text: str) -> uuid.UUID:
    """Read the id of a task."""
    try:
        return uuid.UUID(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not the id of a task (a UUID)") from None


def letter_id(text: str) -> uuid.UUID | int:
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
    """Apply the filters to a queryset of tasks."""
    fields = {
        "name": "name",
        "queue": "queue",
        "tenant": "tenant__slug",
        "key": "key",
        "status": "status",
    }
    given = {
        field: options[name] for name, field in fields.items() if options.get(name) is not None
    }
    return question.filter(**given)


def narrowed_letters(question: DeadLetterQuerySet, options: Options) -> DeadLetterQuerySet:
    """Apply the filters to a queryset of dead letters."""
    fields = {
        "name": "task__name",
        "queue": "task__queue",
        "tenant": "tenant__slug",
        "fingerprint": "fingerprint",
    }
    given = {
        field: options[name] for name, field in fields.items() if options.get(name) is not None
    }
    return question.filter(**given)


def check_selected(options: Options) -> None:
    """Refuse a call with both ids and filters, or with neither."""
    if bool(options["ids"]) == has_filter(options):
        refuse("Select the tasks either by their ids or by filters.")


def json_of(kind: type, option: str) -> Callable[[str], Any]:
    """Return the reader of an option that holds a JSON list or object."""

    def read(text: str) -> Any:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ArgumentTypeError(f"{option} is not JSON: {error}") from error
        if not isinstance(value, kind):
            raise ArgumentTypeError(f"{option} takes a JSON {'list' if kind is list else 'object'}")
        return value

    return read

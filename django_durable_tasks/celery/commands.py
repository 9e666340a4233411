"""Loads Django for the commands of ``celery`` other than ``worker`` and ``beat``.

Celery loads Django only for these two. Without it ``celery -A shop inspect ping`` finds no
transport of this package, and ``celery -A shop call`` sends a plain message for a durable task.
Celery imports this module through the entry point ``celery.commands``, which must name a command.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

import click
import django
from django.apps import apps
from django.conf import settings as django_settings
from django.core.management import execute_from_command_line

from django_durable_tasks.celery import project_app

_APP = "django_durable_tasks"
_COMMANDS = {
    "amqp": ("amqp",),
    "call": ("call",),
    "control": ("control", "inspect", "status"),
    "events": ("events",),
    "list": ("list_",),
    "migrate": ("migrate",),
    "purge": ("purge",),
    "result": ("result",),
    "shell": ("shell",),
}


def load_project() -> bool:
    """Load Django if the process has the settings of a project with this app. Return whether it
    has.
    """
    if not project_app.settings_module():
        return False
    if not any(app.split(".")[0] == _APP for app in django_settings.INSTALLED_APPS):
        return False
    if not apps.ready:
        django.setup()
    return True


def _load_tasks() -> None:
    """Import the modules of tasks, so that the names of durable tasks are known."""
    inspect = import_module("django_durable_tasks.celery.inspect")  # it needs the models
    problem = inspect.load_tasks()
    if problem is not None:
        raise click.ClickException(
            f"The modules of tasks cannot be imported ({problem}): correct the module."
        )


def _wrap(command: click.Command) -> None:
    original: Any = command.callback

    @functools.wraps(original)
    def callback(*args: Any, **kwargs: Any) -> Any:
        if load_project() and command.name == "call":
            _load_tasks()
        return original(*args, **kwargs)

    command.callback = callback


for _module, _names in _COMMANDS.items():
    for _name in _names:
        _command = getattr(import_module(f"celery.bin.{_module}"), _name, None)
        if isinstance(_command, click.Command):  # a later version of Celery may lack it
            _wrap(_command)


@click.command(
    hidden=True,
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def durable(arguments: tuple[str, ...], **_preload: Any) -> None:
    """Run ``manage.py durable``."""
    execute_from_command_line(["celery", "durable", *arguments])

"""``manage.py durable SUBCOMMAND``: the argument parser. The subcommands are in
``command``.
"""

from __future__ import annotations

import sys
from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from django_durable_tasks.audit import acting
from django_durable_tasks.choices import AuditSource
from django_durable_tasks.command import dev, fire_times, listing, queues, schedules, status, tasks
from django_durable_tasks.command.subcommand import (
    EXIT_CODES,
    OPTIONAL_SUBCOMMANDS,
    REFUSED,
    UNHEALTHY,
    Output,
    operator,
    subcommands_of,
)
from django_durable_tasks.conf import InvalidSetting
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.store.errors import is_unmigrated, reason_of

GROUPS = {
    "development": subcommands_of(dev),
    "state": subcommands_of(status, listing),
    "tasks, workflows, dependencies": subcommands_of(tasks),
    "queues, limits, maintenance": subcommands_of(queues),
    "schedules, calendars": subcommands_of(schedules, fire_times),
    "optional apps": OPTIONAL_SUBCOMMANDS,
}
SUBCOMMANDS = {name: one for group in GROUPS.values() for name, one in group.items()}


class Command(BaseCommand):
    """Inspect and change durable tasks, workflows and schedules."""

    help = (
        "Inspects and changes durable tasks, workflows and schedules."
        " `durable SUBCOMMAND --help` shows examples."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the subcommands."""
        parser.formatter_class = RawDescriptionHelpFormatter
        groups = [
            "\n".join([f"{title}:", *(one.help_line for one in group.values())])
            for title, group in GROUPS.items()
            if group
        ]
        parser.epilog = "\n\n".join([*groups, EXIT_CODES])
        parsers = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)
        for subcommand in SUBCOMMANDS.values():
            subcommand.add_to(parsers)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the subcommand and exit with its code."""
        subcommand = SUBCOMMANDS[options["subcommand"]]
        as_json = options["format"] == "json"
        out = Output(subcommand.name, self.stdout, self.stderr, as_json=as_json)
        try:
            with acting(AuditSource.COMMAND, operator()):
                code = subcommand.run(options, out)
        except (DurableTasksError, InvalidSetting) as refused:
            raise CommandError(str(refused), returncode=REFUSED) from refused
        except DatabaseError as error:
            message = (
                reason_of(error)
                if is_unmigrated(error)
                else f"The database refused or does not answer: {error}"
            )
            raise CommandError(message, returncode=UNHEALTHY) from error
        if code:
            sys.exit(code)

"""``manage.py durable SUBCOMMAND``: the argument parser. The subcommands are in
``command``.
"""

from __future__ import annotations

import sys
from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.utils.text import capfirst

from django_durable_tasks.audit import acting
from django_durable_tasks.choices import AuditSource
from django_durable_tasks.command import dev, listing, queues, schedules, status, tasks
from django_durable_tasks.command import subcommand as cli
from django_durable_tasks.conf import InvalidSetting
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.store.errors import is_unmigrated, reason_of

GROUPS = {
    "development": cli.subcommands_of(dev),
    "state": cli.subcommands_of(status, listing),
    "tasks, workflows, dependencies": cli.subcommands_of(tasks),
    "queues, limits, maintenance": cli.subcommands_of(queues),
    "schedules, calendars": cli.subcommands_of(schedules),
    "optional apps": cli.OPTIONAL_SUBCOMMANDS,
}
SUBCOMMANDS = {name: one for group in GROUPS.values() for name, one in group.items()}
_OF_APPS = {
    "beat": ("import-beat", "shadow"),
    "callbacks": ("check-url", "signing-secret"),
    "notifications": ("notify",),
    "verify": ("verify",),
    "api": ("api-key", "quota", "staff"),
}
"""The subcommands of optional apps, which may not be installed."""


class Command(BaseCommand):
    """Inspect and change durable tasks, workflows and schedules."""

    help = (
        "Inspects and changes durable tasks, workflows and schedules."
        " `durable SUBCOMMAND --help` shows examples."
    )
    requires_system_checks = []

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command; name the app of a subcommand whose app is not installed."""
        name = argv[2] if len(argv) > 2 else ""
        for app, names in _OF_APPS.items():
            if name in names and name not in SUBCOMMANDS:
                self.stderr.write(
                    f"{name} is a command of the app 'django_durable_tasks.contrib.{app}': add it"
                    " to INSTALLED_APPS, and run `manage.py migrate`."
                )
                sys.exit(cli.REFUSED)
        super().run_from_argv(argv)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the subcommands."""
        parser.formatter_class = RawDescriptionHelpFormatter
        groups = [
            "\n".join([f"{title}:", *(one.help_line for one in group.values())])
            for title, group in GROUPS.items()
            if group
        ]
        parser.epilog = "\n\n".join([*groups, cli.EXIT_CODES])
        parsers = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND")
        for subcommand in SUBCOMMANDS.values():
            subcommand.add_to(parsers)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the subcommand and exit with its code."""
        if options["subcommand"] is None:
            # The list of the subcommands is worth more than the message that one is required.
            self.create_parser("manage.py", "durable").print_help(sys.stderr)
            sys.exit(cli.REFUSED)
        subcommand = SUBCOMMANDS[options["subcommand"]]
        as_json = options["format"] == "json"
        out = cli.Output(subcommand.name, self.stdout, self.stderr, as_json=as_json)
        try:
            with acting(AuditSource.COMMAND, cli.operator()):
                code = subcommand.run(options, out)
        except (DurableTasksError, InvalidSetting) as refused:
            raise CommandError(str(refused), returncode=cli.REFUSED) from refused
        except DatabaseError as error:
            message = (
                capfirst(reason_of(error))
                if is_unmigrated(error)
                else f"The database refused or does not answer: {error}"
            )
            raise CommandError(message, returncode=cli.UNHEALTHY) from error
        if code:
            sys.exit(code)

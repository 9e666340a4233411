"""``manage.py durable SUBCOMMAND``: the argument parser. The subcommands are in
``management.durable``.
"""

from __future__ import annotations

import sys
from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from django_durable_tasks.audit import acting
from django_durable_tasks.choices import AuditSource
from django_durable_tasks.command.audit import AUDIT, ROTATE
from django_durable_tasks.command.fire_times import DST_REPORT, EXPLAIN, PREVIEW, SIMULATE, TZDATA
from django_durable_tasks.command.graph import GRAPH, GRAPH_ACTIONS
from django_durable_tasks.command.listing import LIST, SHOW
from django_durable_tasks.command.queue_actions import LIMIT, QUEUE_ACTIONS
from django_durable_tasks.command.recurring import CALENDARS, SCHEDULE_ACTIONS, SYNC
from django_durable_tasks.command.status import HEALTH, STATUS
from django_durable_tasks.command.subcommand import (
    EXIT_CODES,
    OPTIONAL_SUBCOMMANDS,
    REFUSED,
    UNHEALTHY,
    Output,
    operator,
)
from django_durable_tasks.command.task_actions import EDIT_ACTIONS, TASK_ACTIONS
from django_durable_tasks.command.tenant_actions import API_KEY, QUOTA, STAFF
from django_durable_tasks.conf import InvalidSetting
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.store.errors import is_unmigrated, reason_of

SUBCOMMANDS = {
    subcommand.name: subcommand
    for subcommand in (
        STATUS,
        HEALTH,
        LIST,
        SHOW,
        GRAPH,
        *TASK_ACTIONS,
        *EDIT_ACTIONS,
        *GRAPH_ACTIONS,
        *QUEUE_ACTIONS,
        LIMIT,
        API_KEY,
        QUOTA,
        STAFF,
        *SCHEDULE_ACTIONS,
        *EXPLAIN,
        CALENDARS,
        PREVIEW,
        SIMULATE,
        DST_REPORT,
        TZDATA,
        SYNC,
        AUDIT,
        ROTATE,
        *OPTIONAL_SUBCOMMANDS.values(),
    )
}


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
        parser.epilog = EXIT_CODES
        parsers = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)
        for subcommand in SUBCOMMANDS.values():
            own = parsers.add_parser(
                subcommand.name,
                help=subcommand.help,
                description=subcommand.description,
                epilog=f"{subcommand.epilog}\n{EXIT_CODES}",
                formatter_class=RawDescriptionHelpFormatter,
                # A prefix that works today would mean another option, or none, tomorrow.
                allow_abbrev=False,
            )
            subcommand.arguments(own)
            first = subcommand.formats[0]
            own.add_argument(
                "--format",
                choices=subcommand.formats,
                default=first,
                help=f"json writes one object or list. Default: {first}.",
            )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the subcommand and exit with its code."""
        out = Output(self.stdout, self.stderr, as_json=options["format"] == "json")
        try:
            with acting(AuditSource.COMMAND, operator()):
                code = SUBCOMMANDS[options["subcommand"]].run(options, out)
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

"""``manage.py durable SUBCOMMAND``: the argument parser. The subcommands are in
``management.durable``.
"""

from __future__ import annotations

import sys
from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from django_durable_tasks.conf import InvalidSetting
from django_durable_tasks.engine.audit.actor import acting
from django_durable_tasks.engine.db.outages import is_unmigrated, reason_of
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.management.durable.api_key_actions import API_KEY
from django_durable_tasks.management.durable.audit import AUDIT
from django_durable_tasks.management.durable.calendar_actions import CALENDARS
from django_durable_tasks.management.durable.check_url import CHECK_URL, SIGNING_SECRET
from django_durable_tasks.management.durable.dst import DST_REPORT, TZDATA
from django_durable_tasks.management.durable.edit_actions import EDIT_ACTIONS
from django_durable_tasks.management.durable.explain import EXPLAIN
from django_durable_tasks.management.durable.graph import GRAPH
from django_durable_tasks.management.durable.graph_actions import GRAPH_ACTIONS
from django_durable_tasks.management.durable.health import HEALTH
from django_durable_tasks.management.durable.import_beat import IMPORT_BEAT
from django_durable_tasks.management.durable.limit_actions import LIMIT
from django_durable_tasks.management.durable.listing import LIST
from django_durable_tasks.management.durable.notify_actions import NOTIFY
from django_durable_tasks.management.durable.output import Output
from django_durable_tasks.management.durable.preview import PREVIEW
from django_durable_tasks.management.durable.queue_actions import QUEUE_ACTIONS
from django_durable_tasks.management.durable.quota_actions import QUOTA
from django_durable_tasks.management.durable.rotate_keys import ROTATE
from django_durable_tasks.management.durable.schedule_actions import SCHEDULE_ACTIONS
from django_durable_tasks.management.durable.shadow import SHADOW
from django_durable_tasks.management.durable.show import SHOW
from django_durable_tasks.management.durable.simulate import SIMULATE
from django_durable_tasks.management.durable.staff_actions import STAFF
from django_durable_tasks.management.durable.status import STATUS
from django_durable_tasks.management.durable.subcommand import (
    EXIT_CODES,
    REFUSED,
    UNHEALTHY,
    operator,
)
from django_durable_tasks.management.durable.sync import SYNC
from django_durable_tasks.management.durable.task_actions import TASK_ACTIONS
from django_durable_tasks.management.durable.verify import VERIFY
from django_durable_tasks.rules.audit import AuditSource

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
        NOTIFY,
        *SCHEDULE_ACTIONS,
        *EXPLAIN,
        CALENDARS,
        PREVIEW,
        SIMULATE,
        DST_REPORT,
        TZDATA,
        SYNC,
        IMPORT_BEAT,
        SHADOW,
        VERIFY,
        AUDIT,
        ROTATE,
        CHECK_URL,
        SIGNING_SECRET,
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

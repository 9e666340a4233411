"""``manage.py durable VERB``: look at the work and move it; parsing only, the verbs stand in ``management.durable``."""

from __future__ import annotations

import sys
from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from django_durable_tasks.conf import InvalidSetting
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.lifecycle.outages import is_unmigrated, reason_of
from django_durable_tasks.management.durable.calendar_verbs import CALENDARS
from django_durable_tasks.management.durable.clocks import DST_REPORT, TZDATA
from django_durable_tasks.management.durable.declaring import SYNC
from django_durable_tasks.management.durable.diagrams import GRAPH
from django_durable_tasks.management.durable.graph_verbs import GRAPH_VERBS
from django_durable_tasks.management.durable.importing import IMPORT_BEAT
from django_durable_tasks.management.durable.limit_verbs import LIMIT
from django_durable_tasks.management.durable.listing import LIST
from django_durable_tasks.management.durable.moves import MOVES
from django_durable_tasks.management.durable.output import Output
from django_durable_tasks.management.durable.preview import PREVIEW
from django_durable_tasks.management.durable.probing import ALIVE
from django_durable_tasks.management.durable.queue_verbs import QUEUE_VERBS
from django_durable_tasks.management.durable.schedule_verbs import SCHEDULE_VERBS
from django_durable_tasks.management.durable.shadowing import SHADOW
from django_durable_tasks.management.durable.showing import SHOW
from django_durable_tasks.management.durable.simulate import SIMULATE
from django_durable_tasks.management.durable.status import STATUS
from django_durable_tasks.management.durable.telling import TELLING
from django_durable_tasks.management.durable.verb import EXIT_CODES, REFUSED, UNHEALTHY
from django_durable_tasks.management.durable.verify import VERIFY

VERBS = {
    verb.name: verb
    for verb in (
        STATUS,
        ALIVE,
        LIST,
        SHOW,
        GRAPH,
        *MOVES,
        *GRAPH_VERBS,
        *QUEUE_VERBS,
        LIMIT,
        *SCHEDULE_VERBS,
        *TELLING,
        CALENDARS,
        PREVIEW,
        SIMULATE,
        DST_REPORT,
        TZDATA,
        SYNC,
        IMPORT_BEAT,
        SHADOW,
        VERIFY,
    )
}


class Command(BaseCommand):
    """Look at durable tasks, and cancel, retry, replay, discard, pause, ring and prune them."""

    help = "Look at durable tasks and move them; `durable VERB --help` shows examples."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the verbs."""
        parser.formatter_class = RawDescriptionHelpFormatter
        parser.epilog = EXIT_CODES
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        for verb in VERBS.values():
            own = verbs.add_parser(
                verb.name,
                help=verb.help,
                description=f"{verb.help[0].upper()}{verb.help[1:]}.",
                epilog=f"{verb.epilog}\n{EXIT_CODES}",
                formatter_class=RawDescriptionHelpFormatter,
            )
            verb.arguments(own)
            first = verb.formats[0]
            own.add_argument(
                "--format", choices=verb.formats, default=first, help=f"json: one object or list (default: {first})"
            )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the verb, and exit with its code."""
        out = Output(self.stdout, self.stderr, as_json=options["format"] == "json")
        try:
            code = VERBS[options["verb"]].run(options, out)
        except (DurableTasksError, InvalidSetting) as refused:
            raise CommandError(str(refused), returncode=REFUSED) from refused
        except DatabaseError as error:
            told = reason_of(error) if is_unmigrated(error) else f"The database refused or does not answer: {error}"
            raise CommandError(told, returncode=UNHEALTHY) from error
        if code:
            sys.exit(code)

"""``manage.py seed_real_schedules PATH``: imports the periodic jobs of a real project, to evaluate
the package.
"""

import csv
import re
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from billing.jobs.housekeeping import try_out
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import RecurringTask

PREFIX = "real:"
EVERY = 50  # rows between two progress messages
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:h|ms|m|s))+")


def seconds(duration: str) -> float:
    """Parse a duration in the format of Go, such as ``1h30m``; raises ValueError."""
    if not _DURATION.fullmatch(duration):
        raise ValueError(f"{duration!r} is no duration such as 1h30m.")
    return sum(
        float(number) * _UNITS[unit]
        for number, unit in re.findall(r"(\d+(?:\.\d+)?)(h|ms|m|s)", duration)
    )


def timing(row: dict[str, str]) -> dict[str, Any]:
    """Return when a job runs; a minimum interval is used as the interval if there is no other."""
    if row["cron"]:
        return {"cron": row["cron"]}
    return {"interval": seconds(row["interval"] or row["minimum_interval"])}


class Command(BaseCommand):
    """Declare a schedule for each row of a table."""

    help = (
        "Declare a schedule for each job of a CSV table with the columns name, cron, interval,"
        " minimum_interval."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("path", type=Path, help="the table")
        parser.add_argument(
            "--active", action="store_true", help="let them fire (default: paused, to be looked at)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        rows = list(_rows(options["path"]))
        refused = []
        for number, row in enumerate(rows, 1):
            try:
                self._declare(row, paused=not options["active"])
            except (DurableTasksError, ValueError) as why:
                refused.append(f"{row['name']}: {why}")
            if number % EVERY == 0 or number == len(rows):
                self.stdout.write(f"{number} of {len(rows)}")
                self.stdout.flush()
        for one in refused:
            self.stderr.write(f"refused: {one}")
        how = "active" if options["active"] else "paused"
        self.stdout.write(
            f"{len(rows) - len(refused)} schedules declared, new ones {how}; {len(refused)}"
            " refused."
        )

    def _declare(self, row: dict[str, str], *, paused: bool) -> None:
        RecurringTask.objects.upsert(
            name=f"{PREFIX}{row['name']}",
            task=try_out,
            args=[row["name"]],
            paused=paused,
            overlap="SKIP",
            description="A periodic job of a real project, to try the package out on.",
            **timing(row),
        )


def _rows(path: Path) -> Iterator[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as table:
            yield from csv.DictReader(table)
    except OSError as why:
        raise CommandError(f"{path} cannot be read: {why}") from why

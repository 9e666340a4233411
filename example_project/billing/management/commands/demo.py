"""``manage.py demo``: half a minute of business, in which a worker and the leading scheduler are
killed.
"""

import os
import shutil
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from customers.visits import report as customers_report
from django.core.management import call_command
from django.core.management.base import BaseCommand
from supervision import fires, graphs, printing, report
from supervision.demonstration import Demonstration
from supervision.entrance import enter
from supervision.platform import NotStarted, Platform
from supervision.processes import Interrupted, Patience, free_port
from supervision.screen import Screen

from billing.management.commands.seed import seed


class Command(BaseCommand):
    """Run the demo; exit with 0 if nothing was lost or duplicated."""

    help = (
        "Run the platform for half a minute, kill two of its processes, and report what the"
        " database says."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--customers", type=int, default=3_000, help="how many (default: 3000)")
        parser.add_argument(
            "--folder", type=Path, help="an empty folder, kept (default: a temporary one, removed)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        given = options["folder"]
        entered = os.environ.get("BILLING_ENTERED")
        folder = (given or Path(entered or tempfile.mkdtemp(prefix="billing-demo-"))).resolve()
        enter(folder, printing.SHORTENED, BILLING_CADENCE="quick", CUSTOMERS_PORT=str(free_port()))
        screen, code = Screen(self.stdout._out), 1
        try:
            code = 0 if self._report(self._play(screen, options["customers"])) else 1
        except Interrupted:
            self.stdout.write("\n  Stopped; no process is left.")
            code = 130
        except NotStarted as why:
            self.stderr.write(str(why))
        if code == 1 or given is not None:
            self.stdout.write(f"\n  Database, logs and mails are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        sys.exit(code)

    def _play(self, screen: Screen, customers: int) -> Demonstration:
        patience = Patience()
        screen.write_line(f"Migrating a fresh database and making {customers} customers.")
        call_command("migrate", verbosity=0)
        seed(customers)
        screen.write_line(
            "Starting the site, two schedulers and two workers with two processes each."
        )
        with Platform(patience, screen.write_line) as platform:
            platform.start()
            screen.write_line(f"Business begins. The site: {platform.address}")
            demonstration = Demonstration(platform, screen)
            try:
                demonstration.play()
            finally:
                screen.close()
            screen.write_line("Stopping all processes.")
        return demonstration

    def _report(self, demonstration: Demonstration) -> bool:
        found = report.read(
            demonstration.workload.committed,
            demonstration.workload.rolled_back,
            demonstration.killed_nodes,
        )
        fired = fires.read(demonstration.leaderless)
        drawn = graphs.read()
        wrong = printing.problems(found, fired, drawn, demonstration)
        self.stdout.write("")
        for line in (
            *printing.lines(found, fired, drawn, demonstration),
            "",
            *customers_report(demonstration.visits),
        ):
            self.stdout.write(line)
        for problem in wrong:
            self.stderr.write(f"  {problem}")
        self.stdout.write(
            f"\n  {'Nothing was lost and nothing doubled.' if not wrong else 'This must not be.'}"
        )
        return not wrong

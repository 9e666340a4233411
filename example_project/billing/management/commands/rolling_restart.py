"""``manage.py rolling_restart``: the fifty jobs on several schedulers and workers that are
restarted repeatedly.
"""

import json
import os
import shutil
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand
from supervision import printing
from supervision.entrance import enter
from supervision.platform import NotStarted, Platform
from supervision.processes import Interrupted, Patience
from supervision.rolling import Figures, Restarts

from billing.management.commands.seed import seed


class Command(BaseCommand):
    """Restart every node in turn; exit with 0 if no fire was missed or duplicated."""

    help = (
        "Restart each of several schedulers and workers in turn while fifty jobs fire, and count"
        " the fires."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--nodes", type=int, default=3, help="schedulers, and as many workers (default: 3)"
        )
        parser.add_argument("--rounds", type=int, default=10, help="restarts of each (default: 10)")
        parser.add_argument("--customers", type=int, default=200, help="how many (default: 200)")
        parser.add_argument(
            "--defaults", action="store_true", help="with default settings, not shortened ones"
        )
        parser.add_argument(
            "--folder", type=Path, help="an empty folder, kept (default: a temporary one, removed)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        given = options["folder"]
        entered = os.environ.get("BILLING_ENTERED")
        folder = (given or Path(entered or tempfile.mkdtemp(prefix="billing-rolling-"))).resolve()
        enter(folder, {} if options["defaults"] else printing.SHORTENED, BILLING_CADENCE="quick")
        try:
            found = self._play(options)
        except Interrupted:
            sys.exit(130)
        except NotStarted as why:
            self.stderr.write(str(why))
            sys.exit(1)
        self.stdout.write(json.dumps(found.as_dict()))
        if found.good and given is None:
            shutil.rmtree(folder, ignore_errors=True)
        sys.exit(0 if found.good else 1)

    def _play(self, options: dict[str, Any]) -> Figures:
        patience = Patience()
        call_command("migrate", verbosity=0)
        seed(options["customers"])
        with Platform(patience, self.stderr.write) as platform:
            restarts = Restarts(platform, self.stderr.write)
            restarts.start(options["nodes"])
            restarts.play(options["rounds"])
        return restarts.figures()

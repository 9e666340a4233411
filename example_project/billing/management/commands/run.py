"""``manage.py run``: the platform with all its processes, until Ctrl-C."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from customers.invitation import open_accounts
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand
from supervision.entrance import enter
from supervision.platform import NotStarted, Platform
from supervision.processes import Interrupted, Patience, free_port
from supervision.workload import Workload

from billing import schedules
from billing.management.commands.seed import seed
from billing.models import Customer

PACE = 2.0


class Command(BaseCommand):
    """Run the site, two schedulers and two workers."""

    help = (
        "Run the site, two schedulers and two workers until Ctrl-C, with a little business"
        " going on."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--port", type=int, default=8000, help="of the site, if it is free (default: 8000)"
        )
        parser.add_argument(
            "--customers-port",
            type=int,
            default=8100,
            help="of the simulated servers of the customers, if it is free (default: 8100)",
        )
        parser.add_argument(
            "--folder",
            type=Path,
            default=settings.PROJECT / "var" / "run",
            help="kept between runs",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        enter(
            options["folder"].resolve(),
            {},
            CUSTOMERS_PORT=str(free_port(options["customers_port"])),
        )
        patience = Patience()
        self.stdout.write("Preparing the database, then starting six processes ...")
        self._prepare()
        try:
            with Platform(patience, self.stdout.write, options["port"]) as platform:
                platform.start()
                self._greet(platform)
                self._stay(platform, patience)
        except Interrupted:
            self.stdout.write("All processes have ended.")
        except NotStarted as why:
            self.stderr.write(str(why))
            raise SystemExit(1) from None
        for problem in platform.problems:
            self.stderr.write(problem)
        if platform.problems:
            raise SystemExit(1)

    def _prepare(self) -> None:
        call_command("migrate", verbosity=0)
        if not Customer.objects.exists():
            seed(3_000)
        schedules.sync()
        users = get_user_model().objects
        if not users.filter(username="admin").exists():
            users.create_superuser("admin", "admin@example.com", "admin")

    def _greet(self, platform: Platform) -> None:
        names = ", ".join(sorted(program.name for program in platform.programs))
        self.stdout.write(
            f"\n  Site    {platform.address}\n  Admin   {platform.address}admin/   login: admin /"
            f" admin\n  Runs    {names}\n  Files   {settings.FOLDER} (database, logs, mails)\n"
        )
        self.stdout.write(open_accounts(f"{platform.address}api/v1"))
        self.stdout.write("  Ctrl-C stops everything.\n")
        self.stdout.flush()

    def _stay(self, platform: Platform, patience: Patience) -> None:
        workload, step, reported = Workload(), 0, set[str]()
        while True:
            workload.step(step)
            step += 1
            for program in platform.fallen():
                if program.name not in reported:
                    reported.add(program.name)
                    self.stderr.write(f"{program.name} has ended; {program.log} says why.")
            patience.pause(PACE)

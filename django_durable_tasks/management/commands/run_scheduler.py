"""``manage.py run_scheduler``: runs one scheduler process. Any number may run: all of them
dispatch, one of them is the leader.
"""

from __future__ import annotations

import gc
import signal
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError
from django.db import Error, connections

from django_durable_tasks.command.schedules import load_declarations
from django_durable_tasks.exceptions import DurableTasksError, InvalidOption
from django_durable_tasks.scheduler import redis_client
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.schedules import sync
from django_durable_tasks.states.demand import SHARDS, parse_shards
from django_durable_tasks.store.connections import name_connections
from django_durable_tasks.store.errors import is_unmigrated, reason_of

# Threshold of the first generation of the garbage collector. A tick creates thousands of objects
# that do not outlive it. At Python's default of 700 the collector would scan them, and the
# timetables of all schedules, a hundred times per tick, which takes a sixth of the processor time
# of the tick.
_COLLECT_AFTER = 10_000
_PORT_MAX = 65_535
# The label of the optional app that serves the metrics.
_METRICS_APP = "durable_tasks_metrics"


def _shards(text: str) -> frozenset[int]:
    """Parse ``--shards``; an invalid value exits with the code for wrong usage."""
    try:
        return parse_shards(text)
    except InvalidOption as refused:
        raise ArgumentTypeError(str(refused)) from refused


def _address(text: str) -> tuple[str, int]:
    """Parse ``--metrics-port``; an invalid value exits with the code for wrong usage."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > _PORT_MAX:
        raise ArgumentTypeError(f"{text!r} is not a port: give 9464 or 0.0.0.0:9464.")
    return host.strip("[]") or "127.0.0.1", int(port)


class Command(BaseCommand):
    """Run a scheduler until SIGTERM or SIGINT."""

    help = (
        "Publish due tasks to the broker; the leader among several schedulers also recovers and"
        " prunes."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.formatter_class = RawDescriptionHelpFormatter
        parser.epilog = (
            "examples:\n  manage.py run_scheduler                 run until SIGTERM\n  manage.py"
            " run_scheduler --node-id a     under a name that the admin shows\n  manage.py"
            " run_scheduler --shards 0-31   keep to half of the tasks; others are served only when"
            " late\n  manage.py run_scheduler --redis redis://cache:6379/3\n                       "
            "                   share the index of due rows with the other schedulers\n  manage.py"
            " run_scheduler --once          publish what is due, sweep once, and exit\n"
        )
        parser.add_argument(
            "--node-id",
            default="",
            help="the name shown for this scheduler (default: host and pid)",
        )
        parser.add_argument(
            "--shards",
            type=_shards,
            help=f"the shards to keep to, of 0-{SHARDS - 1}: 0-31 or 0-15,40",
        )
        parser.add_argument(
            "--redis",
            metavar="URL",
            help="keep the index of due rows in this Redis (default: REDIS_URL, else memory)",
        )
        parser.add_argument(
            "--metrics-port",
            type=_address,
            metavar="[HOST:]PORT",
            help="serve the metrics on this port (default host: 127.0.0.1); needs"
            " django_durable_tasks.contrib.metrics",
        )
        parser.add_argument("--once", action="store_true", help="do one round and exit")

    def handle(self, *args: Any, **options: Any) -> None:
        gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])
        self._warn_of_declarations()
        if options["redis"]:
            redis_client.use_url(options["redis"])
        scheduler = Scheduler(options["node_id"], shards=options["shards"])
        name_connections(f"scheduler {scheduler.name}")
        if options["once"]:
            try:
                self.stdout.write(f"published {scheduler.run_once()} tasks")
            except Error as error:
                raise CommandError(
                    reason_of(error) if is_unmigrated(error) else str(error)
                ) from error
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: scheduler.stop())
        server = self._metrics_server(options["metrics_port"])
        self.stdout.write(f"{scheduler.name} runs; stop it with Ctrl-C.")
        connections.close_all()  # the scheduler opens its own connections
        try:
            scheduler.run()
        finally:
            if server is not None:
                server.stop()

    def _metrics_server(self, address: tuple[str, int] | None) -> Any:
        """Start the server of ``--metrics-port``; return None without it. Raises CommandError."""
        if address is None:
            return None
        try:
            metrics: Any = apps.get_app_config(_METRICS_APP)
            server = metrics.server(*address)
        except LookupError as error:
            raise CommandError(
                "--metrics-port needs django_durable_tasks.contrib.metrics in INSTALLED_APPS."
            ) from error
        except ImportError as error:
            raise CommandError(
                f"--metrics-port needs django-durable-tasks[metrics]: {error}"
            ) from error
        except OSError as error:
            raise CommandError(f"--metrics-port {address[0]}:{address[1]}: {error}") from error
        server.start()
        self.stdout.write(f"Metrics: http://{address[0]}:{server.server_port}/metrics")
        # A file or a pipe is buffered, and the port 0 is known only from this line.
        self.stdout.flush()
        return server

    def _warn_of_declarations(self) -> None:
        """Log which recurring tasks differ from the declarations. An unavailable database does not
        prevent the start of the scheduler.
        """
        try:
            load_declarations()
            warning = sync.waiting(sync.diff())
        except (DurableTasksError, Error) as error:
            reason = reason_of(error) if is_unmigrated(error) else error
            warning = f"Declared schedules were not compared with the rows: {reason}"
        if warning:
            self.stderr.write(warning)

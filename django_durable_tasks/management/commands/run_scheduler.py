"""``manage.py run_scheduler``: runs one scheduler process. Any number may run: all of them
dispatch, one of them is the leader.
"""

from __future__ import annotations

import gc
import signal
import threading
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable
from functools import partial
from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError
from django.db import Error, connections

from django_durable_tasks.celery import inspect
from django_durable_tasks.command.processes import Child, celery_worker
from django_durable_tasks.command.schedules import load_declarations
from django_durable_tasks.command.subcommand import count
from django_durable_tasks.exceptions import DurableTasksError, InvalidOption
from django_durable_tasks.scheduler import notifier
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.schedules import sync
from django_durable_tasks.states.demand import parse_shards
from django_durable_tasks.store.connections import name_connections
from django_durable_tasks.store.errors import is_unmigrated, reason_of
from django_durable_tasks.task_values import SHARDS

# Threshold of the first generation of the garbage collector. A tick creates thousands of objects
# that do not outlive it. At Python's default of 700 the collector would scan them, and the
# timetables of all schedules, a hundred times per tick, which takes a sixth of the processor time
# of the tick.
_COLLECT_AFTER = 10_000
_PORT_MAX = 65_535
# Seconds between two looks whether the worker has ended.
_LOOK_INTERVAL = 1.0
# Ctrl-C reaches the worker itself, which ends warm after the first one and cold after the second.
_SIGNALS_TO_WORKER = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGTERM,
    signal.SIGQUIT: signal.SIGQUIT,
}
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


class _Worker:
    """The worker of ``--with-worker``: ``stop_scheduler`` is called when it ends or has to end."""

    def __init__(self, arguments: list[str], stop_scheduler: Callable[[], None]) -> None:
        self._stop_scheduler = stop_scheduler
        self._stopping = self.ended_first = False
        self._pause = threading.Event()
        self.child = Child("worker", arguments)
        self._watch = threading.Thread(target=self._wait, name="durable-worker", daemon=True)
        self._watch.start()

    def _wait(self) -> None:
        while self.child.code is None:
            self._pause.wait(_LOOK_INTERVAL)
        self.ended_first = not self._stopping
        self._stop_scheduler()

    def on_signal(self, number: signal.Signals, *_: object) -> None:
        """Handle a signal of this process: pass ``number`` to the worker, and stop the
        scheduler.
        """
        self._stopping = True
        self.child.send(number)
        self._stop_scheduler()

    def end(self) -> None:
        """Wait until the worker has finished its tasks. The platform limits how long that takes."""
        if not self._stopping and self.child.code is None:
            self.on_signal(signal.SIGTERM)
        while not self.child.wait(_LOOK_INTERVAL):
            pass
        self._pause.set()
        self.child.close()


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
            "  manage.py run_scheduler --with-worker -c 4\n                                       "
            "   run a worker with four processes, too\n"
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
        parser.add_argument(
            "--with-worker",
            action="store_true",
            help="start a Celery worker too, which consumes the queues of all tasks; if one of the"
            " two ends, the other stops and the exit code is 1",
        )
        parser.add_argument(
            "-c",
            "--concurrency",
            type=count,
            metavar="N",
            help="the processes of that worker (default: CELERY_WORKER_CONCURRENCY, else the number"
            " of processors)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])
        # Which recurring tasks differ from the declarations. An unavailable database does not
        # prevent the start of the scheduler.
        try:
            load_declarations()
            warning = sync.waiting(sync.diff())
        except (DurableTasksError, Error) as error:
            reason = reason_of(error) if is_unmigrated(error) else error
            warning = f"Declared schedules were not compared with the rows: {reason}"
        if warning:
            self.stderr.write(warning)
        if options["concurrency"] and not options["with_worker"]:
            raise CommandError("-c needs --with-worker.")
        if options["once"] and options["with_worker"]:
            raise CommandError("--once runs no worker: leave out --with-worker.")
        if options["redis"]:
            notifier.use_redis(options["redis"])
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
        worker = None
        if options["with_worker"]:
            problem = inspect.load_tasks()
            if problem is not None:
                raise CommandError(f"The modules of tasks cannot be imported: {problem}")
            node = options["node_id"].replace("@", "-")
            name = ("-n", f"worker-of-{node}@%h") if node else ()
            concurrency = ("-c", str(options["concurrency"])) if options["concurrency"] else ()
            worker = _Worker(celery_worker(*name, *concurrency), scheduler.stop)
            # Celery finishes the running tasks after SIGTERM, and interrupts them after SIGQUIT.
            for number, sent in _SIGNALS_TO_WORKER.items():
                signal.signal(number, partial(worker.on_signal, sent))
        server = self._metrics_server(options["metrics_port"])
        self.stdout.write(f"{scheduler.name} runs; stop it with Ctrl-C.")
        connections.close_all()  # the scheduler opens its own connections
        try:
            scheduler.run()
        finally:
            if server is not None:
                server.stop()
            if worker is not None:
                worker.end()
        if worker is not None and worker.ended_first:
            raise CommandError(f"The worker ended with exit code {worker.child.code}.")

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

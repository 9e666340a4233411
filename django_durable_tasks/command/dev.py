"""``durable dev``: a scheduler, a worker and, with ``--web``, Django's development server, for
development.

Processes with code reload:

* This process starts the development server, which reloads itself, and a second process of this
  command, and starts the latter again when the code has changed.
* The second process has ``RUN_MAIN=true``, as with ``runserver``. It starts scheduler and worker,
  watches the files, and prints. It exits with RELOAD when a file has changed.

Without code reload the first process does all of it. All processes are in one process group, so
that Ctrl-C reaches each of them, and each ends if the process that started it dies.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import socket
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from pathlib import Path

from django.apps import apps
from django.core import checks
from django.db import Error, connections
from django.db.migrations.executor import MigrationExecutor
from django.utils import autoreload

from django_durable_tasks import conf, registry
from django_durable_tasks.celery import inspect, project_app
from django_durable_tasks.cluster import nodes
from django_durable_tasks.command.dev_report import Lines, Report
from django_durable_tasks.command.processes import (
    Child,
    StopRequests,
    celery_worker,
    manage,
    stop,
)
from django_durable_tasks.command.subcommand import (
    OK,
    UNHEALTHY,
    Options,
    Output,
    argument,
    count,
    subcommand,
)
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import Node, NodeKind, Task
from django_durable_tasks.schedules import sync
from django_durable_tasks.schedules.sync import NOTHING_DONE
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.store.tables import database
from django_durable_tasks.tasks import attempts
from django_durable_tasks.texts import counted

# The exit code that asks the first process to start the code again, as that of runserver.
RELOAD = 3
# Threads run on every system, fork nothing, and share the connection pools of SQLite's file. They
# do not interrupt a task at its time limit.
_POOLS = ("threads", "prefork", "solo")
_CONCURRENCY = 4
# Seconds between two looks at files; Django's reloader looks as often.
_LOOK_AT_FILES_EVERY = 1.0
# Seconds between two looks at processes and the database.
_POLL = 0.3
# Seconds between two checks whether the database and the broker answer.
_RETRY_EVERY = 1.0
# Seconds in which running tasks may finish after a change of the code, and after Ctrl-C. Later they
# are interrupted and run again.
_GRACE_OF_RELOAD, _GRACE_OF_STOP = 5.0, 10.0
# Seconds in which a process must end that has no tasks, such as the development server.
_GRACE_OF_OTHERS = 5.0
# Seconds until the second process, which waits for the tasks, must have ended.
_GRACE_OF_CODE = _GRACE_OF_STOP + 20.0
_DEFAULT_ADDRESS = "127.0.0.1:8000"
_APP = "django_durable_tasks"
_RETURNED = "`durable dev` stopped its worker before the task ended."


def _address(text: str) -> str:
    """Read ``ADDRPORT`` as runserver does."""
    host, _, port = text.rpartition(":")
    if not re.fullmatch(r"\d{1,5}", port) or int(port) > 65_535:
        raise ArgumentTypeError(f"{text!r} is not a port: give 8000 or 0.0.0.0:8000.")
    return f"{host or '127.0.0.1'}:{port}"


@subcommand(
    argument(
        "-c",
        "--concurrency",
        type=count,
        default=_CONCURRENCY,
        metavar="N",
        help=f"how many tasks the worker runs at a time (default: {_CONCURRENCY})",
    ),
    argument(
        "--pool",
        choices=_POOLS,
        default=_POOLS[0],
        help="the pool of the worker (default: threads, which works on every system and does not"
        " interrupt tasks at their time limits)",
    ),
    argument(
        "--web",
        nargs="?",
        type=_address,
        const=_DEFAULT_ADDRESS,
        metavar="ADDRPORT",
        help=f"also run Django's development server (default of its address: {_DEFAULT_ADDRESS})",
    ),
    argument("--no-reload", action="store_true", help="do not restart when code changes"),
    formats=("text",),
)
def dev(options: Options, out: Output) -> int:
    """Run a scheduler, a worker and, with --web, the development server until Ctrl-C, and print
    what runs and why tasks wait. They restart when code changes, and declared schedules are synced.

    Examples:
        dev
        dev --web
        dev --web 0.0.0.0:8080 -c 8
        dev --pool prefork --no-reload
    """
    lines, requests = Lines(sys.stdout), StopRequests()
    is_second = os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true"
    with requests.handled():
        if is_second:
            return _run_code(options, lines, requests, watches=True)
        problem = _problem() or _import_problem() or _address_problem(options["web"])
        if problem is not None:
            out.note(problem)
            return UNHEALTHY
        _greet(options, lines)
        web = [] if options["web"] is None else [_web(options, lines)]
        try:
            if options["no_reload"]:
                return _run_code(options, lines, requests, web=web)
            return _run_and_reload(lines, requests, web)
        finally:
            # Also after a second Ctrl-C: if it were killed, the process that it started would stay.
            stop(web, _GRACE_OF_OTHERS)
            for child in web:
                child.close()


def _greet(options: Options, lines: Lines) -> None:
    lines.write("dev", "Scheduler and worker start. Ctrl-C stops them.")
    for message in checks.run_checks(databases=[conf.settings().DATABASE]):
        if str(message.id).startswith("durable_tasks.") and not message.is_silenced():
            lines.write("dev", f"{message.msg} {message.hint or ''}".strip(), "wait")
    if all(name.startswith(f"{_APP}.") for name in registry.names()):
        lines.write(
            "dev", "No task is defined yet: write one with @durable_task in APP/tasks.py.", "wait"
        )
    if options["web"] is not None:
        lines.write("dev", f"The site is at http://{options['web']}/")


def _web(options: Options, lines: Lines) -> Child:
    reload = ["--noreload"] if options["no_reload"] else []
    return Child(
        "web",
        manage("runserver", options["web"], *reload),
        on_line=lines.write,
        defers_interrupts=True,
    )


# What is checked before the start ---------------------------------------------------------------


def _problem() -> str | None:
    """Return one sentence with the reason why nothing can run now and its remedy, or None."""
    if not inspect.is_configured():
        module = project_app.unimported_module()
        return (
            "The Celery application of the project was not created: import"
            f" {module or 'it'} in __init__.py of its package (check durable_tasks.E007)."
        )
    if (problem := inspect.transport_problem()) is not None:
        return (
            f"The transport of the broker cannot be loaded ({problem}): correct CELERY_BROKER_URL."
            f" For durable-database:// add {project_app.DATABASE_TRANSPORT!r} to INSTALLED_APPS and"
            " run `manage.py migrate`."
        )
    if not inspect.read().broker_is_set:
        return (
            f"No broker is configured: add {project_app.DATABASE_TRANSPORT!r} to INSTALLED_APPS and"
            " run `manage.py migrate`, or write CELERY_BROKER_URL in settings.py."
        )
    alias = conf.settings().DATABASE
    try:
        executor = MigrationExecutor(connections[alias])
        plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except Error as error:
        return (
            f"The database {alias!r} does not answer ({str(error).strip()}): start it, or correct"
            " DATABASES."
        )
    if plan:
        labels = ", ".join(sorted({migration.app_label for migration, _ in plan}))
        migrations = counted(len(plan), f"migration of {labels} is", f"migrations of {labels} are")
        return f"{migrations} not applied: run `manage.py migrate`."
    broker = inspect.broker_problem()
    if broker is not None:
        return (
            f"The broker does not answer ({broker}): start it, or correct CELERY_BROKER_URL in"
            " settings.py."
        )
    return None


def _import_problem() -> str | None:
    """Return why the code cannot run, or None."""
    problem = inspect.load_tasks()
    if problem is not None:
        return f"The modules of tasks cannot be imported ({problem}): correct the module."
    messages = checks.run_checks(databases=[conf.settings().DATABASE])
    return "\n".join(str(message) for message in messages if message.is_serious()) or None


def _address_problem(address: str | None) -> str | None:
    """Return why the development server cannot listen, or None."""
    if address is None:
        return None
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As the development server does: connections that were closed a minute ago are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            free_port = int(port) % 65_535 + 1
            return (
                f"The development server cannot listen at {address} ({error.strerror}): choose"
                f" another port, for example --web {free_port}."
            )
    return None


# Code reload ------------------------------------------------------------------------------------


class _Files:
    """The files whose change restarts the code: imported modules, and the Python files of the
    project's apps, so that a module which could not be imported is among them.
    """

    def __init__(self) -> None:
        self._reloader = autoreload.StatReloader()
        for place in _project_folders():
            self._reloader.watch_dir(place, "**/*.py")
        self._times = self._read()
        self._next_at = time.monotonic() + _LOOK_AT_FILES_EVERY

    def _read(self) -> dict[Path, float]:
        return dict(self._reloader.snapshot_files())

    def changed(self) -> Path | None:
        """Return a file that has changed, was added or was removed since the last call."""
        if time.monotonic() < self._next_at:
            return None
        before, self._times = self._times, self._read()
        self._next_at = time.monotonic() + _LOOK_AT_FILES_EVERY
        for path, changed_at in self._times.items():
            # A module that is imported late is not new.
            is_new = path not in before and changed_at > time.time() - 2 * _LOOK_AT_FILES_EVERY
            if is_new or before.get(path, changed_at) != changed_at:
                return path
        return next((path for path in before if path not in self._times), None)


def _project_folders() -> Iterator[Path]:
    """Yield the folders of the apps and of the settings that are not installed packages."""
    places = [Path(config.path) for config in apps.get_app_configs()]
    settings_module = sys.modules.get(os.environ.get("DJANGO_SETTINGS_MODULE", ""))
    if settings_module is not None and settings_module.__file__:
        place = Path(settings_module.__file__).resolve().parent
        # Settings beside manage.py lie in the folder of everything, a virtual environment included.
        if (place / "__init__.py").exists():
            places.append(place)
    for place in places:
        if not {"site-packages", "dist-packages"}.intersection(place.parts):
            yield place


def _run_and_reload(lines: Lines, requests: StopRequests, web: Sequence[Child]) -> int:
    """Run the second process, again after each change of the code, until a signal to stop."""
    while True:
        files = _Files()
        code = Child(
            "dev",
            autoreload.get_child_arguments(),
            environment={autoreload.DJANGO_AUTORELOAD_ENV: "true"},
            defers_interrupts=True,
        )
        try:
            while code.code is None and not requests.wait(_POLL):
                web = _alive(web, lines)
            if requests:
                # It waits for running tasks, and receives a second Ctrl-C itself.
                stop([code], _GRACE_OF_CODE)
                return OK
        finally:
            code.close()
        if code.code == RELOAD:
            continue
        lines.write("dev", "Waiting for a change of the code.", "wait")
        while (changed := files.changed()) is None:
            web = _alive(web, lines)
            if requests.wait(_POLL):
                return UNHEALTHY
        lines.write("dev", f"{changed.name} changed: starting.")


def _alive(web: Sequence[Child], lines: Lines) -> Sequence[Child]:
    """Return ``web``, or nothing after the development server ended by itself."""
    for child in web:
        if child.code is not None:
            lines.write(
                child.name,
                f"ended with exit code {child.code}. Press Ctrl-C and start again to run it.",
                "bad",
            )
            return ()
    return web


# Scheduler and worker ---------------------------------------------------------------------------


# What these processes print is on the lines of this command already.
_HIDDEN = re.compile(
    r"stop it with Ctrl-C|worker: (Warm|Cold) shutdown|Hitting Ctrl\+C again"
    r"| id=\S+ attempt=\d+ status=\w+ duration="
)
# The frames above the function of a task in each of its tracebacks.
_CALLERS_OF_TASKS = re.compile(
    r'  File ".*/(celery/app/trace|django_durable_tasks/celery/(gate|task))\.py", line \d+, in '
    r"\w+$"
)
# Celery warns of DEBUG and of the superuser, which is common in containers for development.
_WARNINGS = "ignore:Using settings.DEBUG,ignore:You're running the worker with superuser"


def _run_code(
    options: Options,
    lines: Lines,
    requests: StopRequests,
    *,
    web: Sequence[Child] = (),
    watches: bool = False,
) -> int:
    """Run scheduler and worker until a signal to stop, the end of one of them, or a change of the
    code. Return an exit code.
    """
    files = _Files() if watches else None
    printed = None
    while (problem := _problem()) is not None:
        if problem != printed:
            lines.write("dev", f"{problem} Waiting for that.", "bad")
        printed = problem
        connections.close_all()
        if requests.wait(_RETRY_EVERY):
            return OK
        if files is not None and files.changed() is not None:
            return RELOAD
    problem = _import_problem()
    if problem is not None:
        lines.write("dev", problem, "bad")
        return UNHEALTHY
    _sync(lines)
    processes = _Processes(options, lines)
    report = Report(lines, options["web"])
    try:
        while not requests.wait(_POLL):
            report.poll(processes.has_node)
            changed = files.changed() if files is not None else None
            if changed is not None:
                lines.write("dev", f"{changed.name} changed: scheduler and worker restart.")
                processes.stop(_GRACE_OF_RELOAD, requests)
                report.poll(processes.has_node)
                return RELOAD
            ended = next((process for process in processes.all if process.code is not None), None)
            if ended is not None and not requests:  # Ctrl-C reaches all processes
                lines.write(ended.name, f"ended with exit code {ended.code}", "bad")
                processes.stop(_GRACE_OF_RELOAD, requests)
                return UNHEALTHY
            web = _alive(web, lines)
        processes.stop(_GRACE_OF_STOP, requests)
        report.poll(processes.has_node)
        return OK
    finally:
        processes.close()
        connections.close_all()


def _sync(lines: Lines) -> None:
    """Write the declared schedules to the database, as `durable sync`."""
    try:
        steps = sync.apply()
    except (DurableTasksError, Error) as error:
        lines.write("dev", f"The declared schedules were not synced: {error}", "bad")
        return
    for step in steps:
        colour = "bad" if step.act in NOTHING_DONE else ""
        lines.write("dev", f"Recurring task {step.name}: {step.act} {step.reason}".strip(), colour)


class _Processes:
    """The scheduler and the worker."""

    def __init__(self, options: Options, lines: Lines) -> None:
        self._lines, self._pool = lines, options["pool"]
        self._in_hidden_frame = False
        name, loud = f"dev-{os.getpid()}", self._write
        worker = celery_worker(
            *("-n", f"{name}@%h", "--pool", self._pool, "-c", str(options["concurrency"])),
            *("--loglevel", "WARNING", "--without-gossip", "--without-mingle"),
            *("--", "worker_redirect_stdouts=false"),  # which would log each part of a print
            quiet=True,
        )
        self.scheduler = Child(
            "scheduler",
            # This process has run the system checks and printed their warnings.
            manage("run_scheduler", "--node-id", f"{name}-scheduler", "--skip-checks"),
            on_line=loud,
            defers_interrupts=True,
        )
        warnings = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), _WARNINGS]))
        self.worker = Child(
            "worker",
            worker,
            on_line=loud,
            environment={"PYTHONWARNINGS": warnings},
            defers_interrupts=True,
        )
        self.all = (self.scheduler, self.worker)

    def _write(self, name: str, line: str) -> None:
        if name == "worker":
            # The lines of a frame follow it, indented more than the next frame.
            is_of_frame = self._in_hidden_frame and line.startswith("    ")
            self._in_hidden_frame = is_of_frame or bool(_CALLERS_OF_TASKS.match(line))
            if self._in_hidden_frame:
                return
        if line.strip() and not _HIDDEN.search(line):
            self._lines.write(name, line)

    def has_node(self, node: Node) -> bool:
        """Return whether the node is one of these processes."""
        return node.host == platform.node() and node.pid in [child.pid for child in self.all]

    def stop(self, grace: float, requests: StopRequests) -> None:
        """Let running tasks finish for ``grace`` seconds, or until Ctrl-C is pressed once more.
        Then interrupt them; they run again as soon as a worker is there.
        """
        running = stop(self.all, _POLL, requests)
        if self.worker in running and (number := self._running()):
            self._lines.write(
                "dev",
                f"Waiting for {counted(number, 'running task')}, {grace:g} s at most."
                " Ctrl-C interrupts.",
                "wait",
            )
        running = stop(running, grace, requests)
        if self.worker in running:
            if self._pool == "prefork":
                self.worker.send(signal.SIGQUIT)  # it ends its children, too
                self.worker.wait(_GRACE_OF_OTHERS)
            self.worker.close()
            try:
                self._return_runs()
            except Error as error:
                # A scheduler marks the runs LOST when their node is declared dead.
                self._lines.write("dev", f"Running tasks were not returned: {error}", "bad")

    def _return_runs(self) -> None:
        """End the runs of the killed worker, without waiting for the timeout of its node. The
        crash is not counted: the task did not cause it.
        """
        node = self._node_of_worker()
        if node is None:
            return
        nodes.leave(node.pk)
        outcome = Outcome(kind=EndingKind.CRASHED, is_shared=True, error=_RETURNED)
        ended = attempts.end_runs(
            Task.objects.using(database()).running().filter(node=node.pk),
            lambda _task: outcome,
            worker=node.name,
        )
        if ended:
            self._lines.write(
                "dev", f"Running tasks were interrupted: {len(ended)}. They run again.", "wait"
            )

    def _node_of_worker(self) -> Node | None:
        workers = Node.objects.using(database()).filter(kind=NodeKind.WORKER)
        nodes = workers.filter(host=platform.node(), pid=self.worker.pid)
        return nodes.order_by("-started_at").first()

    def _running(self) -> int:
        """Return how many tasks the worker runs; 0 if the database does not answer."""
        try:
            node = self._node_of_worker()
            running = Task.objects.using(database()).running()
            return 0 if node is None else running.filter(node=node.pk).count()
        except Error:
            return 0

    def close(self) -> None:
        """Kill the processes that still run."""
        for child in self.all:
            child.close()

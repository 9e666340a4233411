"""``durable dev``: a scheduler, a worker and, with ``--web``, Django's development server, for
development.

Processes with code reload:

* This process starts the development server, which reloads itself, and a second process of this
  command, and starts the latter again when the code has changed.
* The second process has ``RUN_MAIN=true``, as with ``runserver``. It starts scheduler and worker,
  watches the files, and prints. It exits with RELOAD when a file has changed.

The second process prints the output of its processes, tasks that start and end, and why tasks
wait. Tasks are read from the database, not from the output of the worker, so that tasks that other
workers run are shown too.

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
import threading
import time
import uuid
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from django.apps import apps
from django.core import checks
from django.db import Error, connections
from django.db.migrations.executor import MigrationExecutor
from django.urls import NoReverseMatch, reverse
from django.utils import autoreload

from django_durable_tasks import conf, registry
from django_durable_tasks.celery import inspect, project_app
from django_durable_tasks.choices import LogStatus, Status
from django_durable_tasks.cluster import nodes
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
    cell,
    count,
    hidden,
    subcommand,
)
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import Node, NodeKind, Task, TaskExecutionLog
from django_durable_tasks.schedules import sync
from django_durable_tasks.schedules.sync import NOTHING_DONE
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.errors import is_unmigrated, reason_of
from django_durable_tasks.store.tables import database
from django_durable_tasks.tasks import attempts
from django_durable_tasks.tasks.explanations import Level
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
        lines.write("dev", "Scheduler and worker start. Ctrl-C stops them.")
        for message in checks.run_checks(databases=[conf.settings().DATABASE]):
            if str(message.id).startswith("durable_tasks.") and not message.is_silenced():
                lines.write("dev", f"{message.msg} {message.hint or ''}".strip(), "wait")
        if all(name.startswith(f"{_APP}.") for name in registry.names()):
            lines.write(
                "dev",
                "No task is defined yet: write one with @durable_task in APP/tasks.py.",
                "wait",
            )
        web: list[Child] = []
        if options["web"] is not None:
            lines.write("dev", f"The site is at http://{options['web']}/")
            reload = ["--noreload"] if options["no_reload"] else []
            server = manage("runserver", options["web"], *reload)
            web = [Child("web", server, on_line=lines.write, defers_interrupts=True)]
        try:
            if options["no_reload"]:
                return _run_code(options, lines, requests, web=web)
            return _run_and_reload(lines, requests, web)
        finally:
            # Also after a second Ctrl-C: if it were killed, the process that it started would stay.
            stop(web, _GRACE_OF_OTHERS)
            for child in web:
                child.close()


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
        places = [Path(config.path) for config in apps.get_app_configs()]
        settings_module = sys.modules.get(os.environ.get("DJANGO_SETTINGS_MODULE", ""))
        if settings_module is not None and settings_module.__file__:
            place = Path(settings_module.__file__).resolve().parent
            # Settings beside manage.py lie in the folder of everything, a virtual environment
            # included.
            if (place / "__init__.py").exists():
                places.append(place)
        for place in places:
            if not {"site-packages", "dist-packages"}.intersection(place.parts):
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
    # Write the declared schedules to the database, as `durable sync`.
    try:
        for step in sync.apply():
            colour = "bad" if step.act in NOTHING_DONE else ""
            text = f"Recurring task {step.name}: {step.act} {step.reason}".strip()
            lines.write("dev", text, colour)
    except (DurableTasksError, Error) as error:
        lines.write("dev", f"The declared schedules were not synced: {error}", "bad")
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


# Lines ------------------------------------------------------------------------------------------


_COLOURS = {
    "scheduler": "35",
    "worker": "36",
    "web": "34",
    "dev": "1",
    "good": "32",
    "bad": "31",
    "wait": "33",
    "faint": "2",
}
"""The colours of ANSI terminals by what a line or a part of it is about."""
_NAME_WIDTH = 9


class Lines:
    """Writes lines with the time and the name of the process; thread-safe. Colours are left out if
    the output is not a terminal, or if ``NO_COLOR`` is set (https://no-color.org).
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lock = stream, threading.Lock()
        self._coloured = stream.isatty() and not os.environ.get("NO_COLOR")

    def coloured(self, text: str, colour: str) -> str:
        """Return the text in this colour."""
        return f"\033[{_COLOURS[colour]}m{text}\033[0m" if self._coloured else text

    def write(self, name: str, text: str, colour: str = "") -> None:
        """Write each line of the text after the time and the name."""
        now = self.coloured(time.strftime("%H:%M:%S"), "faint")
        head = self.coloured(name.ljust(_NAME_WIDTH), name if name in _COLOURS else "dev")
        with self._lock:
            for line in text.splitlines():
                coloured_line = self.coloured(line, colour) if colour else line
                self._stream.write(f"{now} {head} {coloured_line}\n")
            self._stream.flush()


# Tasks ------------------------------------------------------------------------------------------


# Entries of the log that are read again, because a transaction may commit an entry with a smaller
# number after one with a larger number.
_READ_AGAIN = 50
# At most this many endings, starts and waiting tasks are read at a time.
_PER_READ = 200
# At most this many waiting tasks are explained at a time; an explanation takes some statements.
_EXPLAINED = 3
# A task that has waited for less than this since it was created or changed needs no explanation.
_WAITS_SINCE = timedelta(seconds=2)
# Seconds between two reads of the waiting tasks.
_READ_WAITING_EVERY = 2.0
_OUTCOMES = {
    LogStatus.SUCCESS: ("succeeded", "good"),
    LogStatus.RETRY: ("failed", "bad"),
    LogStatus.FAILED: ("failed", "bad"),
    LogStatus.LOST: ("was interrupted", "wait"),
    LogStatus.CANCELLED: ("was cancelled", "wait"),
    LogStatus.FENCED: ("ended too late, its result is ignored", "wait"),
    LogStatus.DUPLICATE: ("was not started twice", "faint"),
}
_NUMBERS = re.compile(r"\d+")


class Report:
    """Prints what has happened since the last call of ``poll``, which never raises an error of the
    database. ``address`` is that of the development server, for links.
    """

    def __init__(self, lines: Lines, address: str | None) -> None:
        self._lines, self._address = lines, address
        self._last_entry: int | None = None
        self._entries: set[int] = set()
        self._started: set[tuple[uuid.UUID, int]] = set()
        self._explained: dict[uuid.UUID, str] = {}
        self._read_waiting_at = 0.0
        self._ready: set[uuid.UUID] = set()
        self._has_worker = False
        self._failing = False

    def poll(self, nodes: Callable[[Node], bool]) -> None:
        """Print what is new. ``nodes`` selects the nodes whose start is printed."""
        try:
            self._nodes(nodes)
            self._starts()
            self._endings()
            # While the worker starts, each task would be said to wait for one.
            if self._has_worker and time.monotonic() >= self._read_waiting_at:
                self._waiting()
                self._read_waiting_at = time.monotonic() + _READ_WAITING_EVERY
            self._failing = False
        except Error as error:
            if not self._failing:
                text = reason_of(error) if is_unmigrated(error) else f"The database: {error}"
                self._lines.write("dev", text, "bad")
            self._failing = True

    def _nodes(self, selected: Callable[[Node], bool]) -> None:
        for node in Node.objects.using(database()).alive().exclude(pk__in=self._ready):
            self._ready.add(node.pk)
            if selected(node):
                self._has_worker |= node.kind == NodeKind.WORKER
                name = NodeKind(node.kind).lower()
                queues = f" for {', '.join(node.queues)}" if node.kind == NodeKind.WORKER else ""
                slots = f", {node.concurrency} at a time" if node.concurrency else ""
                self._lines.write(name, f"is ready{queues}{slots}", "good")

    def _starts(self) -> None:
        running = Task.objects.using(database()).running().order_by("-started_at")
        rows = list(running[:_PER_READ])
        for row in reversed(rows):
            if (row.pk, row.attempts) not in self._started:
                self._lines.write("worker", f"{_title(row)} started{_attempt(row.attempts)}")
        self._started = {(row.pk, row.attempts) for row in rows}

    def _endings(self) -> None:
        log = TaskExecutionLog.objects.using(database()).order_by("id")
        if self._last_entry is None:
            self._last_entry = log.values_list("id", flat=True).last() or 0
            self._entries = set(
                log.filter(id__gt=self._last_entry - _READ_AGAIN).values_list("id", flat=True)
            )
        rows = log.filter(id__gt=self._last_entry - _READ_AGAIN).select_related("task")
        for entry in rows[: _PER_READ + _READ_AGAIN]:
            if entry.pk not in self._entries:
                self._ended(entry)
            self._entries.add(entry.pk)
            self._last_entry = max(self._last_entry, entry.pk)
        self._entries = {pk for pk in self._entries if pk > self._last_entry - _READ_AGAIN}

    def _ended(self, entry: TaskExecutionLog) -> None:
        verb, colour = _OUTCOMES[LogStatus(entry.status)]
        task = entry.task
        took = "" if entry.duration is None else f" after {_duration(entry.duration)}"
        text = f"{_title(task)} {verb}{took}{_attempt(entry.attempt_number)}"
        if entry.error_message and entry.status != LogStatus.SUCCESS:
            text = f"{text}: {cell(hidden(entry.error_message))}"
        if entry.status in (LogStatus.RETRY, LogStatus.LOST) and task.due_at is not None:
            wait = (task.due_at - database_now()).total_seconds()
            text += f" Next attempt {f'in {_duration(wait)}' if wait > 0 else 'now'}."
        self._lines.write("worker", text, colour)
        if entry.status == LogStatus.FAILED:
            link = self._link(task)
            if link is not None:
                self._lines.write("worker", f"  {link}", "bad")
            self._lines.write(
                "worker", f"  manage.py durable replay {task.pk} runs it again.", "faint"
            )

    def _link(self, task: Task) -> str | None:
        """Return the page of the task in the admin, or None if the project has no admin."""
        if not apps.is_installed("django.contrib.admin"):
            return None
        try:
            path = reverse(f"admin:{Task._meta.app_label}_task_change", args=[task.pk])
        except NoReverseMatch:
            return None
        except Exception as error:  # noqa: BLE001 - the import of the URLs runs code of the project
            return f"The URLs cannot be imported: {type(error).__name__}: {error}"
        return path if self._address is None else f"http://{self._address}{path}"

    def _waiting(self) -> None:
        """Explain tasks that wait, each once, and again if the reason changes."""
        before = database_now() - _WAITS_SINCE
        statuses = (Status.BLOCKED, Status.PENDING, Status.QUEUED)
        waiting = Task.objects.using(database()).filter(status__in=statuses, updated_at__lt=before)
        rows = list(waiting.order_by("-id")[:_PER_READ])
        kept = {row.pk for row in rows}
        self._explained = {pk: text for pk, text in self._explained.items() if pk in kept}
        explained = 0
        for row in rows:
            state = f"{row.status} {row.epoch}"
            is_known = self._explained.get(row.pk, "").startswith(state)
            is_late = row.due_at is not None and row.due_at < before
            if explained >= _EXPLAINED or (is_known and not is_late):
                continue
            explained += 1
            sentence = inspect.sentences(row)[0]
            # The same reason is printed once for all tasks that still wait for it.
            reason = f" {_NUMBERS.sub('', sentence.text)}"
            text = f"{state}{reason}"
            is_repeated = any(known.endswith(reason) for known in self._explained.values())
            if self._explained.get(row.pk) != text and not is_repeated:
                colour = "bad" if sentence.level == Level.TROUBLE else "wait"
                self._lines.write("worker", f"{_title(row)} waits: {sentence.text}", colour)
            self._explained[row.pk] = text


def _title(task: Any) -> str:
    return f"{task.name} {task.pk}"


def _attempt(number: int) -> str:
    return f", attempt {number}" if number > 1 else ""


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"

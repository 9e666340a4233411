"""A project as a new user has it after ``startproject``: no Celery application, one app with tasks.
Its database is one of the run's server, or SQLite. Test files import the fixtures that they use.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

from tests.processes.cluster import STARTING, STOPPING, Program
from tests.runs import ROOT
from tests.waiting import until

NAME = f"{os.environ['TEST_RUN']}_new"
MIGRATED = f"{os.environ['TEST_RUN']}_migrated"
_MANAGE = """
import os
import sys

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
from django.core.management import execute_from_command_line

execute_from_command_line(sys.argv)
"""
_SETTINGS = """
from pathlib import Path

from tests.backends import broker_settings, database_settings
from tests.settings import *

BASE_DIR = Path(__file__).resolve().parent.parent
DEBUG = True
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "django_durable_tasks",
    "accounts",
]
DATABASES = {{"default": database_settings(VENDOR, {database!r}, BASE_DIR)}}
BROKER = "filesystem" if BROKER == "memory" else BROKER
CELERY_BROKER_URL, CELERY_BROKER_TRANSPORT_OPTIONS = broker_settings(BROKER, BASE_DIR)
if BROKER == "database":
    INSTALLED_APPS.append("django_durable_tasks.contrib.database_transport")
CELERY_TASK_DEFAULT_QUEUE = CELERY_CONTROL_EXCHANGE = {queue!r}
LOGGING = {{}}
"""
_URLS = """
from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
"""
TASKS = """
import time

from django_durable_tasks import durable_task


@durable_task
def add(left: int, right: int) -> int:
    print("adding", left, right)
    return left + right


@durable_task(max_attempts=1)
def fail(address: str) -> None:
    raise ValueError(f"no address: {address}")


@durable_task
def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "first version"


@durable_task(queue="mail")
def mail() -> None:
    pass
"""


class Newcomer:
    """The project in a folder; ``dev`` starts ``durable dev``."""

    def __init__(self, folder: Path, name: str = NAME) -> None:
        self.folder, self.programs = folder, list[Program]()
        self.database = f"test_durable_{name}"
        self.write("manage.py", _MANAGE)
        self.write("shop/__init__.py", "")
        self.write("shop/settings.py", _SETTINGS.format(database=self.database, queue=name))
        self.write("shop/urls.py", _URLS)
        self.write("accounts/__init__.py", "")
        self.write("accounts/tasks.py", TASKS)

    def write(self, name: str, text: str) -> None:
        """Write a file of the project."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def settings(self, text: str) -> None:
        """Add lines to the settings."""
        path = self.folder / "shop/settings.py"
        path.write_text(f"{path.read_text()}\n{text}\n")

    @property
    def _environment(self) -> dict[str, str]:
        return {
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "PYTHONPATH": str(ROOT),
            "DURABLE_TASKS_HEALTH_DIR": str(self.folder / "health"),
        }

    def manage(self, *arguments: str) -> tuple[int, str]:
        """Run a management command; return its exit code and output."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=self.folder,
            env={**os.environ, **self._environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STARTING,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def migrate(self) -> None:
        """Apply the migrations."""
        code, output = self.manage("migrate", "--verbosity", "0")
        assert code == 0, output

    def shell(self, code: str) -> str:
        """Run Python code in the project's shell; return its output."""
        exit_code, output = self.manage("shell", "-c", code)
        assert exit_code == 0, output
        return output

    def schedule(self, call: str) -> str:
        """Schedule a task by code such as ``add.schedule(1, 2)``; return its id."""
        output = self.shell(
            "from datetime import timedelta; from django.utils import timezone;"
            f" from accounts.tasks import *; print('id', ({call}).pk)"
        )
        found = re.search(r"^id (\S+)$", output, re.MULTILINE)
        assert found is not None, output
        return found[1]

    def dev(self, *options: str, **environment: str) -> Program:
        """Start ``durable dev``."""
        arguments = ["manage.py", "durable", "dev", *options]
        program = Program(
            f"dev{len(self.programs)}",
            arguments,
            {**self._environment, **environment},
            self.folder,
            cwd=self.folder,
        )
        self.programs.append(program)
        return program

    def ready(self, program: Program) -> Program:
        """Wait until its scheduler and worker are ready."""
        for name in ("scheduler", "worker"):
            printed(program, f"{name} +is ready")
        return program


def printed(
    program: Program, pattern: str, *, times: int = 1, within: float = STARTING
) -> re.Match[str]:
    """Wait until the program has printed what matches; return the last match."""

    def matches() -> list[re.Match[str]]:
        found = list(re.finditer(pattern, program.output()))
        assert len(found) >= times or program.alive(), program.output()
        return found if len(found) >= times else []

    try:
        return until(matches, within=within)[-1]
    except AssertionError as error:
        raise AssertionError(f"{pattern!r} is missing in:\n{program.output()}") from error


def group_is_gone(program: Program) -> bool:
    """Return whether no process of the program's group is left."""
    with suppress(ProcessLookupError):
        os.killpg(program.process.pid, 0)
        return _only_zombies(program.process.pid)
    return True


def _only_zombies(group: int) -> bool:
    return _number_alive(group) == 0


def processes_of_group(program: Program) -> int:
    """Return how many processes of the program's group run."""
    return _number_alive(program.process.pid)


def _number_alive(group: int) -> int:
    listed = subprocess.run(
        ["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True, check=True
    ).stdout
    states = [line.split()[1] for line in listed.splitlines() if line.split()[0] == str(group)]
    return sum(not state.startswith("Z") for state in states)


@pytest.fixture(scope="module")
def migrated(
    tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker
) -> Iterator[Newcomer | None]:
    """Provide the project of which the tests of a file get copies, because migrations take longer
    than most of these tests. MariaDB cannot copy a database, so there it is None.
    """
    if connection.vendor == "mysql":
        yield None
        return
    with newcomer_in(tmp_path_factory.mktemp("migrated"), django_db_blocker, MIGRATED) as project:
        project.migrate()
        yield project


@pytest.fixture
def project(
    tmp_path: Path, migrated: Newcomer | None, django_db_blocker: DjangoDbBlocker
) -> Iterator[Newcomer]:
    """Provide a migrated project."""
    with newcomer_in(tmp_path, django_db_blocker, copy_of=migrated) as project:
        if migrated is None:
            project.migrate()
        yield project


@contextmanager
def newcomer_in(
    folder: Path, blocker: DjangoDbBlocker, name: str = NAME, copy_of: Newcomer | None = None
) -> Iterator[Newcomer]:
    """Provide the project with an empty database, or with a copy of a migrated one, and end its
    processes in any case.
    """
    project = Newcomer(folder, name)
    _drop(project, blocker)
    if connection.vendor == "postgresql":
        if copy_of is not None:  # a pooler keeps sessions in it, with which it cannot be copied
            _on_the_server(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                f" WHERE datname = '{copy_of.database}'",
                blocker,
            )
        template = f" TEMPLATE {copy_of.database}" if copy_of else ""
        _on_the_server(f"CREATE DATABASE {project.database}{template}", blocker)
    elif connection.vendor == "sqlite":
        for file in copy_of.folder.glob("*.sqlite3*") if copy_of else ():
            shutil.copyfile(file, folder / file.name.replace(MIGRATED, name))
    else:
        _on_the_server(f"CREATE DATABASE {project.database}", blocker)
    try:
        yield project
    finally:
        for program in project.programs:
            sys.stdout.write(f"--- {program.name}:\n{program.output()[-5000:]}\n")
            program.kill()
            until(lambda program=program: group_is_gone(program), within=STOPPING)  # type: ignore[misc]
        _drop(project, blocker)


def _drop(project: Newcomer, blocker: DjangoDbBlocker) -> None:
    if connection.vendor != "sqlite":
        # A pooler keeps the sessions of the ended processes.
        force = " WITH (FORCE)" if connection.vendor == "postgresql" else ""
        _on_the_server(f"DROP DATABASE IF EXISTS {project.database}{force}", blocker)


def _on_the_server(statement: str, blocker: DjangoDbBlocker) -> None:
    with blocker.unblock(), connection._nodb_cursor() as cursor:
        cursor.execute(statement)

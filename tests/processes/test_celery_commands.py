"""Commands of ``celery`` in a project as a new user has it, with and without ``celery.py``."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module

import click

from tests.processes.cluster import STARTING
from tests.processes.newcomer import Newcomer, migrated, project
from tests.runs import ROOT

__all__ = ["migrated", "project"]

CELERY = """
import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""
# As the script `celery`, which does not have the working folder in its path.
SCRIPT = """
import sys
sys.path = [place for place in sys.path if place not in ("", {folder!r})]
import django_durable_tasks.celery.commands
from celery.__main__ import main
main()
"""


def celery(project: Newcomer, *arguments: str, settings: str = "") -> tuple[int, str]:
    """Run ``celery``; return its exit code and output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": settings}
    if not settings:
        del environment["DJANGO_SETTINGS_MODULE"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(folder=str(project.folder)), *arguments],
        cwd=project.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=STARTING,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_entry_point_names_the_command() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, name = declared["celery.commands"]["durable"].partition(":")
    assert isinstance(getattr(import_module(module), name), click.Command)


def test_commands_of_celery_load_django(project: Newcomer) -> None:
    project.write("shop/celery.py", CELERY)
    project.write("shop/__init__.py", "from .celery import app\n")
    code, output = celery(project, "-A", "shop", "call", "accounts.tasks.add", "--args", "[1, 2]")
    assert code == 0, output
    task = output.split()[-1]
    assert task in project.manage("durable", "list", "tasks")[1]
    _code, output = celery(project, "-A", "shop", "inspect", "ping", "--timeout", "0.1")
    assert "No nodes replied" in output
    code, output = celery(project, "-A", "shop", "durable", "list", "tasks", "--limit", "1")
    assert code == 0, output
    assert task in output


def test_a_task_module_that_cannot_be_imported_is_named(project: Newcomer) -> None:
    project.write("shop/celery.py", CELERY)
    project.write("shop/__init__.py", "from .celery import app\n")
    project.write("accounts/tasks.py", "import nowhere\n")
    code, output = celery(project, "-A", "shop", "call", "accounts.tasks.add")
    assert code == 1
    assert "cannot be imported (ModuleNotFoundError: No module named 'nowhere')" in output
    assert "Traceback" not in output


def test_without_a_celery_application_the_package_is_the_application(project: Newcomer) -> None:
    app = ("-A", "django_durable_tasks")
    code, output = celery(project, *app, "call", "accounts.tasks.mail", settings="shop.settings")
    assert code == 0, output
    assert output.split()[-1] in project.manage("durable", "list", "tasks")[1]
    code, output = celery(project, *app, "call", "accounts.tasks.mail")
    assert code != 0
    assert "DJANGO_SETTINGS_MODULE is not set" in output


def test_without_the_app_the_import_names_it(project: Newcomer) -> None:
    project.settings("INSTALLED_APPS = [app for app in INSTALLED_APPS if 'durable' not in app]")
    code, output = project.manage("shell", "-c", "import accounts.tasks")
    assert code == 1
    assert "'durable_task' needs the app 'django_durable_tasks': add it to INSTALLED_APPS" in output

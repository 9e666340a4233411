"""A project with its tasks in another database than ``default``, with and without the router of the
package.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.apps import apps
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

from tests.processes.cluster import Cluster, cluster_in
from tests.runs import ROOT

SETTINGS = "tests.two_databases_settings"
ROUTER = "django_durable_tasks.routers.DurableTasksRouter"
BOTH = ("--database", "default", "--database", "tasks")
PATIENCE = 240
LABELS = [
    app.label
    for app in apps.get_app_configs()
    if app.name.startswith("django_durable_tasks") and app.models
]


def _run(*arguments: str, router: str = ROUTER) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": SETTINGS, "ROUTER": router},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def _django(*arguments: str) -> str:
    done = _run("django", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def two_databases(django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Create the two databases of the settings, and drop them afterwards."""
    names = [f"test_durable_{os.environ['TEST_RUN']}_{name}" for name in ("site", "tasks")]

    def each(statement: str) -> None:
        with django_db_blocker.unblock(), connection._nodb_cursor() as cursor:
            for name in names:
                cursor.execute(f"{statement} {connection.ops.quote_name(name)}")

    if connection.vendor == "sqlite":
        yield
        return
    each("DROP DATABASE IF EXISTS")
    each("CREATE DATABASE")
    yield
    each("DROP DATABASE IF EXISTS")


@pytest.fixture
def site_and_tasks(two_databases: None, tmp_path: Path) -> Iterator[Cluster]:
    """Return the programs of the project, after `migrate` of both databases."""
    _django("check", *BOTH)
    _django("migrate", "--verbosity", "0")
    for label in LABELS:
        _django("migrate", "--verbosity", "0", label, "--database", "tasks")
    with cluster_in(tmp_path, DJANGO_SETTINGS_MODULE=SETTINGS, ROUTER=ROUTER) as cluster:
        yield cluster


@pytest.mark.timeout(600)
def test_models_admin_and_commands_work_with_tasks_in_a_second_database(
    site_and_tasks: Cluster,
) -> None:
    programs = [site_and_tasks.scheduler(), site_and_tasks.worker(pool="solo")]
    story = _run(
        "django", "shell", "-c", "from tests.processes import two_databases; two_databases.run()"
    )
    assert story.returncode == 0, (
        story.stdout + story.stderr + "".join(program.output()[-3000:] for program in programs)
    )


def test_a_project_without_a_router_gets_instructions() -> None:
    checked = _run("django", "check", router="")
    assert checked.returncode == 1
    assert "durable_tasks.E016" in checked.stderr
    assert ROUTER in checked.stderr

"""Scheduler, worker and commands on a database without migrations name the remedy, and continue
after `migrate`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

from tests.processes.cluster import Cluster, cluster_in
from tests.runs import ROOT
from tests.waiting import until

NAME = f"{os.environ['TEST_RUN']}_bare"
REMEDY = "run `manage.py migrate`"


def _django(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "django", *arguments],
        cwd=ROOT,
        env={**os.environ, "TEST_RUN": NAME},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def cluster(django_db_blocker: DjangoDbBlocker, tmp_path: Path) -> Iterator[Cluster]:
    """Provide a cluster that uses an empty database."""
    database = connection.ops.quote_name(f"test_durable_{NAME}")

    def on_the_server(statement: str) -> None:
        if connection.vendor != "sqlite":
            with django_db_blocker.unblock(), connection._nodb_cursor() as cursor:
                cursor.execute(f"{statement} {database}")

    on_the_server("DROP DATABASE IF EXISTS")
    on_the_server("CREATE DATABASE")
    with cluster_in(tmp_path, TEST_RUN=NAME) as cluster:
        yield cluster
    on_the_server("DROP DATABASE IF EXISTS")


def test_a_missing_table_is_reported_with_its_remedy_until_migrate_has_run(
    cluster: Cluster,
) -> None:
    assert REMEDY in (once := _django("run_scheduler", "--once"))
    assert "Traceback" not in once
    assert REMEDY in _django("durable", "status")
    scheduler, worker = cluster.scheduler(), cluster.worker(pool="solo")
    for program in (scheduler, worker):
        until(lambda program=program: REMEDY in program.output(), within=60, message=program.name)  # type: ignore[misc]
        assert "Traceback" not in program.output(), program.output()
        assert "is away" not in program.output()
        assert "the database is unavailable" not in program.output()
    _django("migrate", "--verbosity", "0")
    until(
        lambda: "The database connection is restored; dispatching continues." in scheduler.output(),
        within=60,
    )
    assert scheduler.alive()
    assert worker.alive()

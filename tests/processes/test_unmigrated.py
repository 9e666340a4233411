"""Scheduler, worker and commands on a database without our tables name the remedy, and go on once
it has run.
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

from tests.processes.fleet import Fleet, fleet_in
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
def fleet(django_db_blocker: DjangoDbBlocker, tmp_path: Path) -> Iterator[Fleet]:
    """Give programs that use an empty database."""
    database = connection.ops.quote_name(f"test_durable_{NAME}")

    def on_the_server(statement: str) -> None:
        if connection.vendor != "sqlite":
            with django_db_blocker.unblock(), connection._nodb_cursor() as cursor:
                cursor.execute(f"{statement} {database}")

    on_the_server("DROP DATABASE IF EXISTS")
    on_the_server("CREATE DATABASE")
    with fleet_in(tmp_path, TEST_RUN=NAME) as fleet:
        yield fleet
    on_the_server("DROP DATABASE IF EXISTS")


def test_a_missing_table_is_reported_with_its_remedy_until_migrate_has_run(fleet: Fleet) -> None:
    assert REMEDY in (once := _django("run_scheduler", "--once"))
    assert "Traceback" not in once
    assert REMEDY in _django("durable", "status")
    scheduler, worker = fleet.scheduler(), fleet.worker(pool="solo")
    for program in (scheduler, worker):
        until(lambda program=program: REMEDY in program.said(), within=60, message=program.name)  # type: ignore[misc]
        assert "Traceback" not in program.said(), program.said()
        assert "is away" not in program.said()
        assert "the database is unavailable" not in program.said()
    _django("migrate", "--verbosity", "0")
    until(
        lambda: "The database connection is restored; dispatching continues." in scheduler.said(),
        within=60,
    )
    assert scheduler.alive()
    assert worker.alive()

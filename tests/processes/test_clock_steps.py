"""Real processes on a database whose clock is an hour ahead for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.db import connection

from django_durable_tasks.models import RecurringTask, Task
from django_durable_tasks.store.clock import database_now
from tests.database.commands.durable_command import durable
from tests.processes.cluster import Cluster
from tests.processes.fires import declared
from tests.processes.rows import row
from tests.project import tasks
from tests.waiting import until

pytestmark = [pytest.mark.timeout(400), pytest.mark.long, pytest.mark.postgresql]
HOUR = timedelta(hours=1)
_FUNCTION = """
    CREATE FUNCTION wrong_clock.{0}() RETURNS timestamptz VOLATILE LANGUAGE sql
    AS 'SELECT pg_catalog.{0}() + seconds * interval ''1 s'' FROM wrong_clock.step'
"""

SetClock = Callable[[float], None]


def _execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def set_clock(rows: None) -> Iterator[SetClock]:
    """Return a function that sets by how many seconds the clock is wrong, for all processes that
    connect from now on. Their functions are found before those of PostgreSQL.
    """
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    _execute(
        "CREATE SCHEMA wrong_clock",
        "CREATE TABLE wrong_clock.step (seconds float NOT NULL)",
        "INSERT INTO wrong_clock.step VALUES (0)",
        *(_FUNCTION.format(one) for one in ("clock_timestamp", "statement_timestamp", "now")),
        f"ALTER DATABASE {name} SET search_path = wrong_clock, pg_catalog, public",
    )
    yield lambda seconds: _execute(f"UPDATE wrong_clock.step SET seconds = {seconds}")
    _execute(f"ALTER DATABASE {name} RESET search_path", "DROP SCHEMA wrong_clock CASCADE")


def _ran_between(schedule: RecurringTask, after: datetime, until_: datetime) -> bool:
    """Return whether a fire time between these instants ran."""
    return bool(
        Task.objects.filter(
            recurring_task=schedule,
            status="SUCCESS",
            fire_time__gt=after,
            fire_time__lt=until_,
        ).exists()
    )


@pytest.mark.parametrize("survives", [True, False], ids=["leader survives", "leader is killed"])
def test_schedules_and_retries_go_on_after_the_clock_was_an_hour_ahead(
    set_clock: SetClock, cluster: Cluster, tmp_path: Path, survives: bool
) -> None:
    scheduler, _ = cluster.scheduler(), cluster.worker(slots=2).ready()
    scheduler.ready()
    notebook, began = tmp_path / "notes", database_now()
    schedules = [
        declared("every 2 s", notebook, interval=2, overlap="ALLOW"),
        declared("each second", notebook, cron="* * * * * *", seconds="FIRST", overlap="ALLOW"),
        declared("each minute", notebook, cron="* * * * *", overlap="ALLOW"),
    ]
    until(
        lambda: all(_ran_between(one, began, began + HOUR / 2) for one in schedules[:2]),
        within=60,
        message="the schedules run",
    )
    set_clock(3_600)
    until(
        lambda: all(_ran_between(one, began + HOUR, began + 2 * HOUR) for one in schedules[:2]),
        within=60,
        message="the schedules run an hour ahead",
    )
    retry = tasks.failing.delay()
    until(lambda: row(retry).failures == 1, within=60, message="an attempt failed an hour ahead")
    if not survives:
        scheduler.kill()
    set_clock(0)
    back = database_now()
    if not survives:
        cluster.scheduler().ready()
    until(
        lambda: all(_ran_between(one, back, back + HOUR / 2) for one in schedules),
        within=100,
        message="the schedules go on",
    )
    until(lambda: row(retry).failures == 2, within=100, message="the retry runs after a minute")
    problems = " ".join(durable("status", "--format", "json").data["problems"])
    assert "The database's clock was set back by 3," in problems
    runs = list(
        Task.objects.filter(recurring_task__isnull=False).values_list("recurring_task", "fire_time")
    )
    assert len(runs) == len(set(runs))

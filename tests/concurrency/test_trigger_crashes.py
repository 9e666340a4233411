"""The leader dies at each statement of the trigger, before and after it; whoever goes on births each fire once."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection

from django_durable_tasks.lifecycle import connections, recurrence
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from tests.concurrency.racing import no_errors, one_lost_reply, race
from tests.database.recurring.schedules import START, a_schedule, at, born, fire, told
from tests.project import tasks
from tests.runs import ROOT
from tests.waiting import until

NOW = at(185)
MANY = 60  # more statements than the trigger has
ALL: dict[str, Any] = {"catch_up_mode": "RUN_ALL_MISSED", "misfire_grace": 5}
SCHEDULES: dict[str, dict[str, Any]] = {
    "one now": {},
    "all missed": {**ALL, "overlap": "ALLOW"},
    "all missed, one after the other": {**ALL, "overlap": "QUEUE_ALL"},
    "left out": {**ALL, "overlap": "ALLOW", "max_catchup_runs": 2},
    "skipped": {"catch_up_mode": "SKIP_MISSED", "misfire_grace": 1},
    "the last one counts": {"overlap": "CANCEL_RUNNING"},
    "ends": {**ALL, "overlap": "ALLOW", "max_runs": 2},
    "unique": {"task": tasks.unique, "args": ["a"], "overlap": "ALLOW", "misfire_grace": 600},
    "spread": {"interval": 30, "jitter": "50%", "overlap": "ALLOW"},
    "a pause ends": {"overlap": "ALLOW"},
}
Stand = tuple[Any, ...]
_numbers = itertools.count()


def _rows() -> list[RecurringTask]:
    """Declare the schedules anew; nobody has looked at them for three minutes."""
    number = next(_numbers)
    Task.objects.update(open_unique_key=None)
    rows = [a_schedule(f"{name} {number}", **given) for name, given in SCHEDULES.items()]
    rows[-1].pause("deploy")
    RecurringTask.objects.filter(pk=rows[-1].pk).update(paused_until=at(90), next_run_at=at(90))
    return rows


def _stand(row: RecurringTask) -> Stand:
    row.refresh_from_db()
    runs = Task.objects.filter(recurring_task=row).order_by("fire_time")
    return (
        row.status, row.status_reason, row.next_run_at, row.watermark_at, row.runs_count, row.last_run_at,
        [(*line, re.sub(r"task \S+", "task", reason)) for *line, reason in told(row)],
        [(run.fire_time, run.run_at - START if "spread" not in row.name else None, run.status) for run in runs],
    )  # fmt: skip


def _all_accounted_for(rows: list[RecurringTask]) -> list[Stand]:
    """Let another leader go on, and return how the schedules stand then."""
    mine = RecurringTask.objects.filter(pk__in=[row.pk for row in rows])

    def nothing_is_due() -> bool:
        fire(NOW)
        return not mine.due(NOW).exists()

    # The server may still hold the rows of the one who died: they are left to it until it notices.
    until(nothing_is_due, within=20)
    for row in rows:
        lines = OccurrenceRecord.objects.single().filter(recurring_task=row, task__isnull=False)
        assert born(row) == list(lines.order_by("fire_time").values_list("fire_time", flat=True))
        assert set(lines.values_list("task_id", flat=True)) == set(
            Task.objects.filter(recurring_task=row).values_list("pk", flat=True)
        )
    return [_stand(row) for row in rows]


def _untouched(rows: list[RecurringTask]) -> bool:
    return not OccurrenceRecord.objects.filter(recurring_task__in=rows).exists() and all(
        row.next_run_at == RecurringTask.objects.get(pk=row.pk).next_run_at for row in rows[:-1]
    )


@pytest.fixture
def undisturbed() -> list[Stand]:
    """Give how the schedules stand when nobody dies."""
    return _all_accounted_for(_rows())


@pytest.fixture
def leader() -> Iterator[Callable[[int, str], str]]:
    """Give what asks a leader to die at a point, and returns how it ended."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.concurrency.dying_leader"], cwd=ROOT, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        ask, answers = program.stdin, program.stdout

        def dies(place: int, when: str) -> str:
            ask.write(f"{place} {when} {NOW.isoformat()}\n")
            ask.flush()
            return answers.readline().strip()

        yield dies
        ask.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_leader_killed_at_any_statement_leaves_nothing_or_everything(
    when: str, leader: Callable[[int, str], str], undisturbed: list[Stand]
) -> None:
    left: list[bool] = []
    for place in range(MANY):
        rows = _rows()
        answer = leader(place, when)
        left.append(_untouched(rows))
        assert _all_accounted_for(rows) == undisturbed, (place, when)
        if answer != "killed":
            assert answer == "lived"
            break
    *deaths, lived = left
    assert not lived
    # Everything comes with the COMMIT, which is the last point: killed before it, nothing; killed after it, all.
    assert len(deaths) > 6
    assert all(deaths[:-1])
    assert deaths[-1] == (when == "before")


def _drops_this_connection() -> Callable[[], None]:
    """Return what lets the server drop this thread's connection, as an operator or a fail-over does."""
    postgresql = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()" if postgresql else "SELECT CONNECTION_ID()")
        (number,) = cursor.fetchone()

    def drop() -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT pg_terminate_backend({number}, 5000)" if postgresql else f"KILL {number}")

    def from_elsewhere() -> None:
        no_errors(race([drop]))

    return from_elsewhere


def _fire_and_be_dropped(place: int) -> bool:
    """Fire on a connection that is dropped before its so-manieth thing; False when there were fewer."""
    told = itertools.count()
    with connections.own():
        wrapper: Any = connection
        commit, drop = wrapper._commit, _drops_this_connection()

        def at_its_point(tell: Callable[..., Any], *words: Any) -> Any:
            if next(told) == place:
                drop()
            return tell(*words)

        wrapper._commit = lambda: at_its_point(commit)
        with wrapper.execute_wrapper(at_its_point):
            try:
                recurrence.fire_due(NOW, 100, term=7)
            finally:
                del wrapper._commit
    return next(told) > place


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_connection_dropped_before_any_statement_costs_nothing_and_blames_no_row(undisturbed: list[Stand]) -> None:
    for place in range(MANY):
        rows = _rows()
        try:
            assert not _fire_and_be_dropped(place)
            break
        except (OperationalError, InterfaceError):
            assert _untouched(rows), place
        finally:
            assert _all_accounted_for(rows) == undisturbed, place
    assert 6 < place < MANY - 1


def test_a_commit_whose_reply_was_lost_stands_and_nothing_fires_twice(undisturbed: list[Stand]) -> None:
    rows = _rows()
    with one_lost_reply() as lost, pytest.raises(OperationalError):
        fire(NOW)
    assert lost
    assert not _untouched(rows)
    assert _all_accounted_for(rows) == undisturbed

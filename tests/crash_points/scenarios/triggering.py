"""The leader fires recurring tasks that were due for hours, with each misfire and each overlap
policy.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from django_durable_tasks.models import RecurringTask, Task
from django_durable_tasks.schedules import trigger
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import dedicated_connection
from tests.crash_points import bodies
from tests.crash_points.scenarios.scenario import Scenario
from tests.database.recurring.schedules import begin, ledger_of
from tests.factories import QUEUE

HOUR = timedelta(hours=1)
ALL: dict[str, Any] = {"catch_up_mode": "RUN_ALL_MISSED", "misfire_grace": 5}
SCHEDULES: dict[str, dict[str, Any]] = {
    "one now": {},
    "all missed": {**ALL, "overlap": "ALLOW"},
    "all missed, one after the other": {**ALL, "overlap": "QUEUE_ALL"},
    "left out": {**ALL, "overlap": "ALLOW", "max_catchup_runs": 2},
    "skipped": {"catch_up_mode": "SKIP_MISSED", "misfire_grace": 1},
    "the last one counts": {"overlap": "CANCEL_RUNNING"},
    "ends": {**ALL, "overlap": "ALLOW", "max_runs": 2},
    "unique": {"task": bodies.single, "args": ["a"], "overlap": "ALLOW", "misfire_grace": 36_000},
    "spread": {"jitter": "10%", "overlap": "ALLOW"},
    "a pause ends": {"overlap": "ALLOW"},
}


def _due() -> datetime:
    """Declare the schedules: their third fire was half an hour ago, and the next is half an hour
    ahead.
    """
    start = database_now() - 2 * HOUR - HOUR / 2
    for name, given in SCHEDULES.items():
        row = RecurringTask.objects.upsert(
            name=name,
            **{"task": bodies.well, "queue": QUEUE, "interval": 3600, "start_time": start, **given},
        )
        begin(row, start)
    RecurringTask.objects.get(name="a pause ends").pause("deploy")
    RecurringTask.objects.unguarded().filter(name="a pause ends").update(
        paused_until=start + 1.5 * HOUR, next_run_at=start + 1.5 * HOUR
    )
    return start


def _fire(_: Any) -> None:
    with dedicated_connection():
        trigger.fire_due(database_now(), 100, term=7)


def _stand() -> list[Any]:
    return [_stand_of(row) for row in RecurringTask.objects.order_by("name")]


def _stand_of(row: RecurringTask) -> Any:
    def since(at: datetime | None) -> str:
        return "never" if at is None else str(at - row.start_time)

    runs = Task.objects.filter(recurring_task=row).order_by("fire_time")
    lines = [
        (outcome, since(first), since(last), count, re.sub(r"task \S+", "task", reason))
        for outcome, first, last, count, reason in ledger_of(row)
    ]
    return (
        row.name,
        row.status,
        row.status_reason,
        since(row.next_run_at),
        row.runs_count,
        lines,
        [(since(run.fire_time), run.status, run.attempts) for run in runs],
    )


SCENARIOS = (Scenario(name="fire", scene=_due, operation=_fire, stand=_stand),)

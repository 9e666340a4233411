"""The time for which a job runs: its fire time on its schedule's wall clock, independent of the
start.
"""

from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo


def fire_time(run: Any) -> datetime:
    """Return the wall time of this run's fire time; of a manual run, the time of the request."""
    task = run.durable.task
    found: datetime = task.fire_time or task.created_at
    return found.astimezone(ZoneInfo(task.time_zone or "UTC"))


def fire_day(run: Any) -> date:
    """Return the date of this run's fire time."""
    return fire_time(run).date()


def month_before(day: date) -> date:
    """Return the last day of the month before."""
    return day.replace(day=1) - timedelta(days=1)

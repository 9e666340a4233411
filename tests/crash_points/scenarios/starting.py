"""A message arrives: the gate starts its task, or refuses it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django_durable_tasks.models import QueueControl, Task
from django_durable_tasks.store.clock import database_now
from tests.crash_points.scenarios.creating import WELL
from tests.crash_points.scenarios.scenario import Scenario
from tests.crash_points.successors import deliver
from tests.factories import a_paused_queue, a_task

SELDOM = "tests.crash_points.bodies.seldom"


def messages(row: Task) -> None:
    """Deliver the message of a task."""
    deliver(row.name, f"{row.pk}.{row.epoch}.{row.publish_count}")


def _of_a_paused_queue() -> Task:
    a_paused_queue()
    return a_task("QUEUED", name=WELL)


def _resume(_: Any) -> None:
    QueueControl.objects.all().delete()


def _too_late() -> Task:
    return a_task("QUEUED", name=WELL, expires_at=database_now() - timedelta(seconds=1))


def _seldom() -> Task:
    a_task("SUCCESS", name=SELDOM, args=["a"], unique_key="a")
    return a_task("QUEUED", name=SELDOM, args=["a"], unique_key="a")


SCENARIOS = (
    Scenario(name="start", scene=lambda: a_task("QUEUED", name=WELL), operation=messages),
    Scenario(name="of a paused queue", scene=_of_a_paused_queue, operation=messages, again=_resume),
    Scenario(name="too late", scene=_too_late, operation=messages),
    Scenario(name="a duplicate", scene=_seldom, operation=messages),
)

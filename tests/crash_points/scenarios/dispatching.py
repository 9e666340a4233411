"""Due tasks are claimed and published, republished if they have not started, and returned to
PENDING by a failing broker.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from django.conf import settings

from django_durable_tasks.store.clock import database_now
from tests.crash_points.scenarios.creating import WELL
from tests.crash_points.scenarios.scenario import Scenario
from tests.factories import QUEUE, a_task, many_tasks
from tests.messages import dispatch
from tests.republishing import Leader

NODE = uuid.UUID(int=1)


def _three_due() -> None:
    many_tasks(2, name=WELL)
    a_task(name=WELL, priority=9, args=[9])
    a_task(name=WELL, due=3600, args=[3600])
    now = database_now()
    a_task(name=WELL, args=[0], expires_at=now)


def without_broker() -> None:
    """Replace the folder of the broker by a file."""
    folder = Path(settings.CELERY_BROKER_TRANSPORT_OPTIONS["data_folder"])
    folder.rename(folder.with_suffix(".away"))
    folder.write_text("no folder")


def _three_due_and_no_broker() -> None:
    many_tasks(3, name=WELL)
    without_broker()


def the_broker_is_back(_: Any) -> None:
    """Restore it."""
    folder = Path(settings.CELERY_BROKER_TRANSPORT_OPTIONS["data_folder"])
    if folder.is_file():
        folder.unlink()
        folder.with_suffix(".away").rename(folder)


def _dispatch(_: Any) -> None:
    dispatch(QUEUE, database_now(), 10, NODE)


def _republish(_: Any) -> None:
    Leader().compare()


SCENARIOS = (
    Scenario(name="claim and publish", scene=_three_due, operation=_dispatch),
    Scenario(
        name="republish",
        scene=lambda: many_tasks(3, "QUEUED", name=WELL, due=-1),
        operation=_republish,
    ),
    Scenario(
        name="return to pending",
        scene=_three_due_and_no_broker,
        operation=_dispatch,
        again=the_broker_is_back,
    ),
)

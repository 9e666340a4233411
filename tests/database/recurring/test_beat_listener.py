"""``listener.listen()`` records what beat sends, under the names of its entries, and never stops
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import current_app, signals
from celery.beat import ScheduleEntry, Scheduler
from django.db import DatabaseError

from django_durable_tasks.contrib.beat import listener
from django_durable_tasks.contrib.beat.models import ShadowFire
from django_durable_tasks.store.clock import database_now

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    """Return a Celery scheduler as beat has it after ``listen()``."""
    listener.listen()
    scheduler = Scheduler(current_app._get_current_object(), lazy=True)

    class Service:
        pass

    service = Service()
    service.scheduler = scheduler  # type: ignore[attr-defined]
    signals.beat_init.send(sender=service)
    yield scheduler
    signals.beat_init.disconnect(dispatch_uid=listener._UID)
    signals.before_task_publish.disconnect(dispatch_uid=listener._UID)


def _entry(scheduler: Scheduler, name: str, task: str) -> ScheduleEntry:
    return ScheduleEntry(name=name, task=task, schedule=timedelta(seconds=60), app=scheduler.app)


def test_each_message_of_beat_is_recorded_under_the_name_of_its_entry(scheduler: Scheduler) -> None:
    result = scheduler.apply_async(_entry(scheduler, "plain", "shop.tasks.plain"))
    fire = ShadowFire.objects.get()
    assert (fire.name, fire.task, fire.celery_id) == ("plain", "shop.tasks.plain", result.id)
    assert abs(fire.recorded_at - database_now()) < timedelta(minutes=1)


def test_other_messages_of_the_process_are_not_recorded(scheduler: Scheduler) -> None:
    current_app.send_task("shop.tasks.plain")
    assert not ShadowFire.objects.exists()


def test_a_durable_task_is_recorded_when_beat_has_created_it(scheduler: Scheduler) -> None:
    scheduler.apply_async(_entry(scheduler, "durable", "tests.project.tasks.noop"))
    assert ShadowFire.objects.get().name == "durable"


def test_an_unavailable_database_does_not_stop_beat(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise DatabaseError("away")

    monkeypatch.setattr(type(ShadowFire.objects.all()), "bulk_create", away)
    assert scheduler.apply_async(_entry(scheduler, "plain", "shop.tasks.plain")).id
    assert "A fire time of beat was not recorded: plain" in caplog.text

"""``durable shadow`` compares the recorded fires of beat with the fires of this scheduler, and
changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import current_app, signals
from celery.beat import ScheduleEntry, Scheduler
from django.db import DatabaseError

from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.contrib.beat import commands, compare, listener
from django_durable_tasks.contrib.beat.models import ShadowFire
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.scheduler.jobs import OPTIONAL_JOBS
from django_durable_tasks.store.clock import database_now
from tests.database.commands.durable_command import Answer, durable
from tests.database.recurring.schedules import START, a_schedule, at

pytestmark = pytest.mark.django_db
RANGE = ("--from", START.isoformat(), "--to", at(300).isoformat())


def _heard(name: str, *seconds: float) -> None:
    rows = [ShadowFire(name=name, task="shop.tasks.plain", recorded_at=at(one)) for one in seconds]
    ShadowFire.objects.bulk_create(rows)


def _of_beat(name: str = "nightly", *, reason: str = "IN_SHADOW", **given: Any) -> RecurringTask:
    row = a_schedule(name, source="beat", **given)
    row.pause(reason)
    return row


def _shadow(*more: str) -> Answer:
    return durable("shadow", *RANGE, *more)


def _told(*more: str) -> dict[str, Any]:
    answer = _shadow(*more, "--format", "json")
    return {one["name"]: one for one in answer.data["schedules"]}


# The report ---------------------------------------------------------------------------------------


def test_a_paused_row_that_beat_fires_equally_does_not_differ() -> None:
    _of_beat()
    _heard("nightly", 0.1, 60.2, 120.3, 180.1, 240.1, 300.1)
    answer = _shadow()
    assert (answer.code, answer.out) == (0, "1 schedules compared, 0 differ\n")
    [found] = _told().values()
    assert (found["matched"], found["only_here"], found["only_beat"]) == (6, [], [])
    assert (found["lag_median"], found["lag_most"]) == (0.1, 0.3)


def test_fires_of_one_side_only_are_reported_with_their_instants() -> None:
    _of_beat()
    _heard("nightly", 0.1, 60.2, 95, 180.1, 240.1, 300.1)
    answer = _shadow()
    assert answer.code == 1
    assert (
        "nightly: here alone: 2026-03-02 09:02:00Z; beat alone: 2026-03-02 09:01:35Z" in answer.out
    )


def test_a_fire_at_the_boundary_belongs_to_the_period_before() -> None:
    _of_beat()
    _heard("nightly", 60.2, 120.5, 180.5)
    answer = durable("shadow", "--from", at(60.1).isoformat(), "--to", at(120.2).isoformat())
    assert answer.code == 0, answer


def test_fires_of_beat_without_an_imported_schedule_are_reported() -> None:
    _heard("stray", 30)
    found = _told()["stray"]
    assert (found["only_beat"], "import it" in found["remark"]) == (["2026-03-02T09:00:30Z"], True)


def test_a_row_of_another_source_is_compared_once_beat_fired_it() -> None:
    a_schedule("by hand")
    assert _told() == {}
    _heard("by hand", 0, 60)
    assert _told()["by hand"]["matched"] == 2


def test_only_the_named_schedules_are_compared() -> None:
    _of_beat("one")
    _of_beat("two")
    assert list(_told("--name", "two")) == ["two"]


def test_a_dense_schedule_is_compared_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "MOST", 3)
    _of_beat()
    assert "more than 3 fires" in _told()["nightly"]["remark"]


def test_without_recorded_fires_there_is_nothing_to_compare() -> None:
    answer = durable("shadow")
    assert (answer.code, "listener.listen()" in answer.err) == (2, True)
    _heard("stray", 0)
    assert durable("shadow", "--to", at(60).isoformat()).code == 1


def test_watch_mode_reports_each_difference_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = iter([60, 120, 180])

    def wait(_: float) -> None:
        passed = next(rounds, None)
        if passed is None:
            raise KeyboardInterrupt
        monkeypatch.setattr(commands, "database_now", lambda: at(passed + 31))

    monkeypatch.setattr(commands, "_wait", wait)
    _of_beat()
    _heard("nightly", 60.1, 180.1)
    answer = durable("shadow", "--watch", "--to", at(10).isoformat())
    assert answer.code == 1
    assert answer.out == "nightly: here alone: 2026-03-02 09:02:00Z\n"


@pytest.mark.django_db(transaction=True)
def test_recorded_fires_are_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "RETENTION", timedelta(hours=1))
    monkeypatch.setattr(compare, "PRUNED", 2)
    _heard("old", 0, 60, 120)
    ShadowFire.objects.create(name="new", task="shop.tasks.plain")
    jobs = {job.name: job for job in (make() for make in OPTIONAL_JOBS.values())}
    prune, monitor = jobs["prune_shadow_fires"].run, HeartbeatMonitor()
    assert [prune(database_now(), monitor) for _ in range(3)] == [2, 1, 0]
    assert ShadowFire.objects.get().name == "new"


# The listener -------------------------------------------------------------------------------------
#
# ``listener.listen()`` records what beat sends, under the names of its entries, and never stops
# it.


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


@pytest.mark.django_db(transaction=True)
def test_each_message_of_beat_is_recorded_under_the_name_of_its_entry(scheduler: Scheduler) -> None:
    result = scheduler.apply_async(_entry(scheduler, "plain", "shop.tasks.plain"))
    fire = ShadowFire.objects.get()
    assert (fire.name, fire.task, fire.celery_id) == ("plain", "shop.tasks.plain", result.id)
    assert abs(fire.recorded_at - database_now()) < timedelta(minutes=1)


@pytest.mark.django_db(transaction=True)
def test_other_messages_of_the_process_are_not_recorded(scheduler: Scheduler) -> None:
    current_app.send_task("shop.tasks.plain")
    assert not ShadowFire.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_durable_task_is_recorded_when_beat_has_created_it(scheduler: Scheduler) -> None:
    scheduler.apply_async(_entry(scheduler, "durable", "tests.project.tasks.noop"))
    assert ShadowFire.objects.get().name == "durable"


@pytest.mark.django_db(transaction=True)
def test_an_unavailable_database_does_not_stop_beat(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise DatabaseError("away")

    monkeypatch.setattr(type(ShadowFire.objects.all()), "bulk_create", away)
    assert scheduler.apply_async(_entry(scheduler, "plain", "shop.tasks.plain")).id
    assert "A fire time of beat was not recorded: plain" in caplog.text

"""Two deploys sync at once, or a deploy and an operator act at once: each schedule exists once, and
the operator's change is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from django_durable_tasks import registry
from django_durable_tasks.celery import inspect
from django_durable_tasks.contrib.beat import periodic_tasks
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.registry import Declaration
from django_durable_tasks.schedules import sync
from django_durable_tasks.schedules.options import CODE
from tests.concurrency.racing import ROUNDS, no_errors, race
from tests.factories import NOOP

RACERS = 4
NAMES = [f"schedule-{number}" for number in range(6)]


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin without declarations."""
    inspect.load_tasks()
    monkeypatch.setattr(registry, "_declarations", {})
    return iter([None])


def _declare(interval: int) -> None:
    registry._declarations.clear()
    for name in NAMES:
        registry.declare(Declaration(name, NOOP, {"interval": interval}, CODE), _declare)


def _acts(answers: list[list[sync.SyncStep]]) -> Counter[str]:
    return Counter(str(step.act) for steps in answers for step in steps)


def test_concurrent_deploys_create_change_and_keep_each_schedule_once() -> None:
    for number in range(ROUNDS // 2):
        _declare(60 + number)
        assert _acts(no_errors(race([sync.apply] * RACERS)))["CREATE"] == len(NAMES)
        _declare(600 + number)
        assert _acts(no_errors(race([sync.apply] * RACERS))) == {"CHANGE": len(NAMES)}
        assert set(RecurringTask.objects.values_list("interval_seconds", "revision")) == {
            (600.0 + number, 1)
        }
        registry._declarations.clear()
        assert _acts(no_errors(race([sync.apply] * RACERS))) == {"PAUSE": len(NAMES)}
        assert set(RecurringTask.objects.values_list("status", "status_reason")) == {
            ("PAUSED", "UNDECLARED")
        }
        assert RecurringTask.objects.count() == len(NAMES)
        RecurringTask.objects.unguarded().all().delete()


def test_a_pause_by_an_operator_during_a_deploy_is_kept() -> None:
    _declare(60)
    sync.apply()
    for number in range(ROUNDS):
        _declare(600 + number)
        row = RecurringTask.objects.get(name=NAMES[number % len(NAMES)])
        no_errors(race([sync.apply, lambda row=row: row.pause("deploy", by="anna")]))  # type: ignore[misc]
        row.refresh_from_db()
        assert (row.status, row.status_reason, row.interval_seconds) == (
            "PAUSED",
            "deploy",
            600.0 + number,
        )
        row.resume()


def test_concurrent_imports_leave_one_row() -> None:
    for number in range(ROUNDS):
        name = f"of-beat-{number}"
        act = lambda name=name: periodic_tasks.take_over(name, NOOP, {"interval": 60.0}).pk  # noqa: E731
        assert len(set(no_errors(race([act] * RACERS)))) == 1
        assert RecurringTask.objects.filter(name=name).count() == 1

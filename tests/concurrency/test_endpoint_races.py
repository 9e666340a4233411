"""Several workers start callbacks of one endpoint, or record its failures, at the same time."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.callbacks import endpoints
from django_durable_tasks.contrib.callbacks.models import Endpoint
from django_durable_tasks.models import Task
from django_durable_tasks.store.clock import database_now
from tests.concurrency.racing import ROUNDS, no_errors, race
from tests.factories import a_task

KEY = "https://hooks.example.com"
WORKERS = 4


def _queued() -> Task:
    return a_task(Status.QUEUED, name="django_durable_tasks.http_callback", limit_key=KEY)


def _open(**times: Any) -> None:
    rows = Endpoint.objects.unguarded()
    rows.filter(key=KEY).delete()
    rows.bulk_create([Endpoint(key=KEY, failures=5, openings=1, **times)])


def _postponed(tasks: list[Task]) -> list[bool]:
    return no_errors(race([partial(endpoints.postpone, task.pk, task.epoch) for task in tasks]))


def test_of_several_workers_one_probes_and_the_others_spend_no_attempt() -> None:
    for _ in range(ROUNDS):
        _open(open_until=database_now() - timedelta(seconds=1))
        tasks = [_queued() for _ in range(WORKERS)]
        postponed = _postponed(tasks)
        assert sorted(postponed) == [False] + [True] * (WORKERS - 1)
        for task, waits in zip(tasks, postponed, strict=True):
            task.refresh_from_db()
            assert (task.status == Status.PENDING) is waits
            assert (task.attempts, task.failures) == (0, 0)


def test_no_worker_starts_a_task_during_the_pause() -> None:
    _open(open_until=database_now() + timedelta(minutes=5))
    tasks = [_queued() for _ in range(WORKERS)]
    assert _postponed(tasks) == [True] * WORKERS
    for task in tasks:
        task.refresh_from_db()
        assert (task.status, task.attempts, task.failures) == (Status.PENDING, 0, 0)


def test_failures_that_are_recorded_at_the_same_time_are_all_counted(settings: Any) -> None:
    number = WORKERS
    settings.DURABLE_TASKS = {"HTTP_BREAKER_FAILURES": number}
    pauses = no_errors(race([partial(endpoints.failed, KEY, 1, "no answer")] * number))
    row = Endpoint.objects.get(key=KEY)
    assert (row.failures, row.openings) == (number, 1)
    assert sorted(pause > 0 for pause in pauses) == [False] * (number - 1) + [True]

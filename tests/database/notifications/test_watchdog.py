"""The watchdog: one probe a minute, which a worker runs, and its request to the monitor."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt
from django_durable_tasks.contrib.notifications.task import ProbeWorkers
from django_durable_tasks.models import Task
from django_durable_tasks.registry import WATCHDOG_TASK
from django_durable_tasks.store.clock import database_now
from tests.database.notifications.sending import SETTINGS, a_setting, result, run, types
from tests.http_servers import Listener, answer, answering, listening

pytestmark = pytest.mark.django_db(transaction=True)
PATH = "/ping/5f3c1b52-0000-4000-8000-0123456789ab"


@pytest.fixture
def monitor(settings: Any) -> Iterator[Listener]:
    """A monitor that answers 200."""
    with listening(answering(answer(body=b"OK"))) as server:
        settings.DURABLE_TASKS = {**SETTINGS, "WATCHDOG_URL": server.url(PATH)}
        yield server


def _probes() -> list[Task]:
    return list(Task.objects.filter(name=WATCHDOG_TASK).order_by("pk"))


def test_two_leaders_create_one_probe_a_minute(monitor: Listener) -> None:
    now = database_now().replace(second=10)
    jobs = [ProbeWorkers(), ProbeWorkers()]
    for seconds in (0, 5, 30):
        for job in jobs:
            job(now + timedelta(seconds=seconds), None)  # type: ignore[arg-type]
    assert len(_probes()) == 1
    jobs[1](now + timedelta(seconds=60), None)  # type: ignore[arg-type]
    assert len(_probes()) == 2
    assert all(one.expires_at is not None for one in _probes())


def test_a_probe_sends_a_request_without_revealing_the_url(monitor: Listener) -> None:
    a_setting(on_success=True)
    ProbeWorkers()(database_now(), None)  # type: ignore[arg-type]
    (task,) = _probes()
    assert result(run(task))["sent"] is True
    assert monitor.requests[0].startswith(f"GET {PATH} ".encode())
    assert "5f3c1b52" not in str([*DeliveryAttempt.objects.values(), *Task.objects.values()])
    assert types() == []


def test_nothing_happens_without_a_url() -> None:
    assert ProbeWorkers()(database_now(), None) == 0  # type: ignore[arg-type]
    assert _probes() == []

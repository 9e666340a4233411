"""Celery's configuration is read without connecting, an unavailable broker is named without its
password, and many threads may need the task modules at once.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import current_app

from django_durable_tasks import registry
from django_durable_tasks.celery import inspect
from django_durable_tasks.celery.inspect import _Tasks, load_tasks
from tests.celery_settings import celery_configured


@pytest.mark.parametrize(
    "url", ["redis://:hunter2@127.0.0.1:1/0", "amqp://ann:hunter2@127.0.0.1:1//"]
)
def test_an_unavailable_broker_is_named_without_its_password(url: str) -> None:
    with celery_configured(broker_url=url):
        problem = inspect.broker_problem()
    assert problem is not None
    assert "127.0.0.1:1" in problem
    assert "hunter2" not in problem


def test_a_broker_that_answers_is_no_problem() -> None:
    assert inspect.broker_problem() is None


@pytest.mark.parametrize(
    ("url", "transport", "visibility"),
    [
        ("redis://localhost/0", "redis", 3600.0),
        ("rediss://localhost/0", "rediss", 3600.0),
        ("sentinel://localhost", "sentinel", 3600.0),
        ("amqp://localhost", "amqp", None),
        ("durable-filesystem://", "durable-filesystem", None),
    ],
)
def test_a_transport_is_detected_by_its_name(
    url: str, transport: str, visibility: float | None
) -> None:
    with celery_configured(broker_url=url, broker_transport_options={}):
        config = inspect.read()
    assert (config.transport, config.visibility_timeout, config.broker_is_set) == (
        transport,
        visibility,
        True,
    )


def test_the_tasks_of_the_project_are_read_without_running_the_checks_again() -> None:
    before = os.environ.get("CELERY_SKIP_CHECKS")
    assert inspect.load_tasks() is None
    assert "tests.project.tasks.add" in registry.names()
    assert os.environ.get("CELERY_SKIP_CHECKS") == before


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be one that has not imported the task modules."""
    monkeypatch.setattr(_Tasks, "loaded_by", None)
    monkeypatch.setattr(inspect, "is_configured", lambda: True)


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("number", [2, 8, 32])
def test_every_thread_returns_after_the_import(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    started, imported = threading.Barrier(number, timeout=30), threading.Event()
    imports: list[int] = []
    waiting = threading.Semaphore(0)

    def importing() -> None:
        imports.append(1)
        assert load_tasks() is None  # As a check that runs during the import.
        for _ in range(number - 1):
            # The others are about to call load_tasks, or have returned from it too early.
            assert waiting.acquire(timeout=30)
        imported.set()

    app = current_app._get_current_object()

    def use() -> bool:
        app.set_current()  # Another test may have made another app the one of this thread only.
        started.wait()
        waiting.release()
        assert load_tasks() is None
        return imported.is_set()

    monkeypatch.setattr(current_app.loader, "import_default_modules", importing)
    with ThreadPoolExecutor(number) as pool:
        futures = [pool.submit(use) for _ in range(number)]
        assert all(future.result(timeout=60) for future in futures)
    assert imports == [1]


@pytest.mark.usefixtures("unloaded")
def test_each_call_reports_the_error_of_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise RuntimeError("no module")

    monkeypatch.setattr(current_app.loader, "import_default_modules", failing)
    assert [load_tasks(), load_tasks()] == ["RuntimeError: no module"] * 2

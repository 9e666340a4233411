"""Many threads that need the task modules at once, as those of a web process that has just started."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import current_app

from django_durable_tasks.celery import inspect
from django_durable_tasks.celery.inspect import _Tasks, load_tasks


@pytest.fixture(autouse=True)
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be one that has not imported the task modules."""
    monkeypatch.setattr(_Tasks, "loaded_by", None)
    monkeypatch.setattr(inspect, "is_configured", lambda: True)


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


def test_each_call_reports_the_error_of_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise RuntimeError("no module")

    monkeypatch.setattr(current_app.loader, "import_default_modules", failing)
    assert [load_tasks(), load_tasks()] == ["RuntimeError: no module"] * 2

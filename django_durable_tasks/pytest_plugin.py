"""The plugin of pytest: fixtures, the mark ``durable_tasks`` and a guard of the broker.

pytest loads it if the package is installed. It imports nothing of Django until a test runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from django_durable_tasks.texts import counted

ALLOW, REFUSE = "allow", "refuse"
_MARK = "durable_tasks(broker=False): broker=True lets the test send messages of durable tasks."
_SHOWN = 5


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the guard."""
    parser.addini(
        "durable_tasks_broker",
        help=f"'{REFUSE}' (default): a test fails if it would send a message of a durable task to"
        f" a broker; '{ALLOW}': messages are sent",
        default=REFUSE,
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and check the option."""
    config.addinivalue_line("markers", _MARK)
    chosen = config.getini("durable_tasks_broker")
    if chosen not in (ALLOW, REFUSE):
        raise pytest.UsageError(f"durable_tasks_broker = {chosen!r}: give {REFUSE!r} or {ALLOW!r}.")


@pytest.fixture
def durable_tasks() -> ModuleType:
    """Return ``django_durable_tasks.testing``."""
    return import_module("django_durable_tasks.testing")


@pytest.fixture
def durable_drain(durable_tasks: Any) -> Any:
    """Return ``django_durable_tasks.testing.drain``."""
    return durable_tasks.drain


@pytest.fixture(autouse=True)
def _durable_tasks_guard(request: pytest.FixtureRequest) -> Iterator[None]:
    """Send nothing to a broker, and fail a test that would have."""
    publisher: Any = sys.modules.get("django_durable_tasks.celery.publisher")
    mark = request.node.get_closest_marker("durable_tasks")
    is_allowed = mark is not None and mark.kwargs.get("broker", False)
    if publisher is None or is_allowed or request.config.getini("durable_tasks_broker") == ALLOW:
        yield
        return
    url, before, kept = "", publisher._publish_once, list[str]()

    def refuse(messages: Sequence[Any]) -> Any:
        nonlocal url
        url = str(publisher.current_app.connection_for_write().as_uri())
        if url.startswith("memory://"):
            return before(messages)
        kept.extend(message.name for message in messages)
        return []

    publisher._publish_once = refuse
    try:
        yield
    finally:
        publisher._publish_once = before
    if kept:
        names = ", ".join(kept[:_SHOWN]) + (", ..." if len(kept) > _SHOWN else "")
        number = counted(len(kept), "message")
        pytest.fail(
            f"This test would have sent {number} to {url}: {names}. Run the tasks by"
            " django_durable_tasks.testing.drain(), set CELERY_TASK_ALWAYS_EAGER, or mark the test"
            " with @pytest.mark.durable_tasks(broker=True).",
            pytrace=False,
        )

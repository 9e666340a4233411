"""Log lines are JSON objects that contain the running task."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from django_durable_tasks.celery import live_runs
from django_durable_tasks.celery.live_runs import LiveRun, process_runs
from django_durable_tasks.json_logs import TASK_FIELDS, JsonFormatter, TaskContextFilter
from django_durable_tasks.task_values import Run

NOW = datetime(2026, 3, 7, tzinfo=UTC)


@pytest.fixture
def running() -> Iterator[Run]:
    """Run a task in this thread."""
    run = Run(
        task_id=uuid.uuid4(),
        name="shop.remind",
        queue="mail",
        tenant_id=7,
        epoch=2,
        run_id=uuid.uuid4(),
        attempt=3,
        failures=0,
        crashes=0,
        max_attempts=5,
        args=["secret"],
        kwargs={},
        options={},
        idempotency_key="k",
        node=uuid.uuid4(),
        started_at=NOW,
        run_at=NOW,
        celery_id="c",
    )
    live = LiveRun(run, lease=60, timeout=None, worker="w", eager=False)
    with process_runs.running(live):
        yield run
    process_runs.forget("c")


def _record(message: str = "sent %s", *args: Any, **extra: Any) -> logging.LogRecord:
    logger = logging.getLogger("shop")
    return logger.makeRecord("shop", logging.INFO, "f", 1, message, args, None, extra=extra)


def _line(record: logging.LogRecord) -> dict[str, Any]:
    text = JsonFormatter().format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_line_in_a_task_contains_the_task(running: Run) -> None:
    line = _line(_record("sent %s", "mail"))
    assert set(TASK_FIELDS) <= set(line)
    assert (line["message"], line["level"], line["logger"]) == ("sent mail", "INFO", "shop")
    assert (line["task_id"], line["task_name"]) == (str(running.task_id), "shop.remind")
    assert (line["attempt"], line["queue"], line["tenant"]) == (3, "mail", 7)
    assert line["duration"] >= 0
    assert "secret" not in json.dumps(line)


def test_a_line_outside_of_a_task_has_no_task_fields() -> None:
    assert set(_line(_record("x"))) == {"time", "level", "logger", "message"}


def test_extra_values_are_added_and_replace_fields(running: Run) -> None:
    line = _line(_record("x", task_id="other", customer=4, at=NOW, odd={1, 2}))
    assert (line["task_id"], line["customer"], line["at"]) == ("other", 4, str(NOW))


def test_a_value_that_has_no_text_does_not_prevent_the_line() -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError

    assert _line(_record("x", odd=Broken()))["odd"] == "<Broken: ValueError>"


def test_an_exception_is_one_field() -> None:
    try:
        raise ValueError("line 1\nline 2")
    except ValueError as error:
        record = _record("x")
        record.exc_info = (ValueError, error, error.__traceback__)
    assert "line 2" in _line(record)["exception"]


def test_the_filter_keeps_the_fields_for_another_thread(running: Run) -> None:
    record = _record("x", queue="given")
    assert TaskContextFilter().filter(record)
    live_runs._current.set(None)
    line = _line(record)
    assert (line["task_id"], line["queue"]) == (str(running.task_id), "given")

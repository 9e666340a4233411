"""Durable tasks with the bodies of the plain ones in tests/broker/plain_canvas_tasks.py."""

from __future__ import annotations

from typing import Any

from django_durable_tasks import durable_task
from tests.broker.plain_canvas_tasks import record_run, record_run_in_map


@durable_task(bind=True, max_attempts=1)
def step(
    self: Any, /, *received: Any, label: str, book: str, fail: bool = False, **named: Any
) -> str:
    """Record the arguments and return them as an expression."""
    task_id, _, _ = self.request.id.partition(".")
    return record_run(task_id, received, named, label, book, fail)


@durable_task(max_attempts=1)
def mapped(*received: Any) -> str:
    """As ``step`` for arguments that can only be positional."""
    return record_run_in_map(received)

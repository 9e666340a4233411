"""Log lines as JSON objects, with the task that was running when they were written."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any

_LIVE_RUNS = "django_durable_tasks.celery.live_runs"
TASK_FIELDS = ("task_id", "task_name", "attempt", "queue", "node", "tenant", "duration")
"""The names under which the project logs these values, in ``extra`` too."""
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def task_fields() -> dict[str, Any]:
    """Return the fields of the task that this thread runs; empty outside of a task.

    ``duration`` is the time in seconds since the task started.
    """
    # Django imports this module for LOGGING before it loads the models, which live_runs needs. No
    # task runs before that module is imported.
    runs = getattr(sys.modules.get(_LIVE_RUNS), "process_runs", None)
    live = None if runs is None else runs.current()
    if live is None:
        return {}
    run = live.run
    return {
        "task_id": str(run.task_id),
        "task_name": run.name,
        "attempt": run.attempt,
        "queue": run.queue,
        "node": str(run.node),
        "tenant": run.tenant_id,
        "duration": round(time.monotonic() - live.began, 6),
    }


class TaskContextFilter(logging.Filter):
    """Adds the fields of the running task to a record.

    For a handler that formats records in another thread, such as ``QueueHandler``.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields that the record does not have; return True."""
        for name, value in task_fields().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, the task, and what ``extra`` has.

    A value that JSON cannot express is written as its text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        extra = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **task_fields(),
            **extra,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=_text_of, ensure_ascii=False)


def _text_of(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a log line must not fail because of a value
        return f"<{type(value).__name__}: {type(error).__name__}>"

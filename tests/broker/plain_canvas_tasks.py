"""Plain Celery tasks equivalent to the durable ones in tests/project/canvas.py: one canvas can be
run with both.

They belong to a separate application with Redis as broker and result backend and without Django.
Every run records its arguments and its result.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from pathlib import Path
from typing import Any

from celery import Celery

from tests.backends import broker_settings

NOTEBOOK = "TEST_CANVAS_NOTEBOOK"
QUEUE = f"canvases-{os.environ.get('TEST_RUN', 'alone')}"
REDIS = broker_settings("redis", Path(tempfile.gettempdir()))[0]

plain_app = Celery("plain_canvas_tasks", broker=REDIS, backend=REDIS, set_as_current=False)
# Acknowledged at its end, a message is visible as long as its task may send others. This shows when
# a canvas is over.
plain_app.conf.update(
    task_default_queue=QUEUE,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    result_expires=600,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"global_keyprefix": f"{QUEUE}:"},
)


class Refused(Exception):
    """The exception of a failing task."""


def record_run(
    task_id: str,
    received: tuple[Any, ...],
    named: dict[str, Any],
    label: str,
    book: str,
    fail: bool,
) -> str:
    """Record a run, and return an expression that describes the whole history of its arguments."""
    shown = ", ".join(
        [
            *map(_described, received),
            *(f"{key}={_described(value)}" for key, value in sorted(named.items())),
        ]
    )
    answer = f"{label}({shown})"
    line = {
        "book": book,
        "label": label,
        "received": received,
        "answer": answer,
        "failed": fail,
        "task": task_id,
    }
    file = os.open(os.environ[NOTEBOOK], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(file, f"{json.dumps(line)}\n".encode())
    os.close(file)
    if fail:
        raise Refused(answer)
    return answer


def record_run_in_map(received: tuple[Any, ...]) -> str:
    """As ``record_run`` for tasks without keyword arguments: the first value names the canvas."""
    book, *values = received if len(received) > 1 else received[0]
    return record_run("", tuple(values), {}, "mapped", book, fail="fail" in values)


def recorded(notebook: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the runs of each canvas, sorted: their expression, whether they failed, and the tasks
    of their ids.

    "?" is a task that never ran: Celery passes on the id of a chord's body all the same.
    """
    lines = (
        [json.loads(line) for line in notebook.read_text().splitlines()]
        if notebook.exists()
        else []
    )
    labels = {line["task"]: line["label"] for line in lines}
    found: dict[str, list[tuple[Any, ...]]] = {}
    for line in lines:
        ids = tuple(labels.get(value, "?") for value in line["received"] if is_an_id(value))
        found.setdefault(line["book"], []).append((line["answer"], line["failed"], ids))
    return {book: sorted(runs) for book, runs in found.items()}


def _described(value: Any) -> str:
    """Describe an argument. The id of a task becomes a word, since ids differ from run to run."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_described, value))}]"
    return "<id>" if is_an_id(value) else str(value)


def is_an_id(value: Any) -> bool:
    """Return whether this is the id of a task."""
    try:
        return isinstance(value, str) and len(value) == 36 and bool(uuid.UUID(value))
    except ValueError:
        return False


@plain_app.task(bind=True, name="plain_canvas.step")
def step(
    self: Any, /, *received: Any, label: str, book: str, fail: bool = False, **named: Any
) -> str:
    """Record the arguments and return them as an expression."""
    return record_run(self.request.id, received, named, label, book, fail)


@plain_app.task(name="plain_canvas.mapped")
def mapped(*received: Any) -> str:
    """As ``step`` for arguments that can only be positional."""
    return record_run_in_map(received)

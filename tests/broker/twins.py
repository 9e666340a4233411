"""Plain Celery tasks, twins of the durable ones in tests/project/canvas.py: one canvas can be run
by both.

They belong to an application of their own, with Redis as its broker and result backend, and know
nothing of Django. Every run writes what it received and what became of it.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from pathlib import Path
from typing import Any

from celery import Celery

from tests.vendors import broker_settings

NOTEBOOK = "TEST_CANVAS_NOTEBOOK"
QUEUE = f"twins-{os.environ.get('TEST_RUN', 'alone')}"
REDIS = broker_settings("redis", Path(tempfile.gettempdir()))[0]

twins = Celery("twins", broker=REDIS, backend=REDIS, set_as_current=False)
# Acknowledged at its end, a message is seen as long as its task may send others: that tells when a
# canvas is over.
twins.conf.update(
    task_default_queue=QUEUE,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    result_expires=600,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"global_keyprefix": f"{QUEUE}:"},
)


class Refused(Exception):
    """What a failing twin raises."""


def ran(
    task_id: str,
    received: tuple[Any, ...],
    named: dict[str, Any],
    label: str,
    book: str,
    fail: bool,
) -> str:
    """Record a run, and return an expression that tells the whole history of its arguments."""
    shown = ", ".join(
        [*map(_told, received), *(f"{key}={_told(value)}" for key, value in sorted(named.items()))]
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


def ran_in_a_map(received: tuple[Any, ...]) -> str:
    """Do as ``ran`` where nothing can be named: the first value is the page of the notebook."""
    book, *values = received if len(received) > 1 else received[0]
    return ran("", tuple(values), {}, "mapped", book, fail="fail" in values)


def noted(notebook: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return what ran for each page, sorted: its expression, whether it failed, and which tasks its
    ids are of.

    "?" is a task that never ran: of a chord's body Celery hands on the id all the same.
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


def _told(value: Any) -> str:
    """Show an argument; the id of a task as a word, since ids differ from run to run."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_told, value))}]"
    return "<id>" if is_an_id(value) else str(value)


def is_an_id(value: Any) -> bool:
    """Whether this is the id of a task."""
    try:
        return isinstance(value, str) and len(value) == 36 and bool(uuid.UUID(value))
    except ValueError:
        return False


@twins.task(bind=True, name="twins.step")
def step(
    self: Any, /, *received: Any, label: str, book: str, fail: bool = False, **named: Any
) -> str:
    """Record the arguments and return them as an expression."""
    return ran(self.request.id, received, named, label, book, fail)


@twins.task(name="twins.mapped")
def mapped(*received: Any) -> str:
    """Do as ``step`` for arguments that can only be positional."""
    return ran_in_a_map(received)

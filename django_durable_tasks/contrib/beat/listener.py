"""Hears what Celery's beat sends, so that it can be compared with what would have fired here:
``durable shadow``.

One line in the settings of the process that runs beat, whatever scheduler it has::

    from django_durable_tasks.contrib.beat import listener; listener.listen()

It may stand in settings that web processes and workers share: they run no beat, and nothing happens
in them. Nothing of Django is imported here, because settings are read before the applications are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from celery import signals
from django.utils.module_loading import import_string

_UID = "django_durable_tasks.shadow"
_HEAR = "django_durable_tasks.contrib.beat.shadow_fires.hear"


@dataclass(slots=True)
class _Entry:
    """The entry of beat's schedule that is being sent."""

    name: str
    task: str
    heard: bool = False


_sending: ContextVar[_Entry | None] = ContextVar("sending", default=None)


def listen() -> None:
    """Write down each message of beat, once beat runs in this process."""
    signals.beat_init.connect(_begin, weak=False, dispatch_uid=_UID)


def _begin(sender: Any, **_: Any) -> None:
    """Learn which entry each message belongs to: only the scheduler knows, a message has no room
    for its name.
    """
    scheduler = sender.scheduler
    apply_async = scheduler.apply_async

    @functools.wraps(apply_async)
    def sending(entry: Any, *args: Any, **kwargs: Any) -> Any:
        with _sent(_Entry(str(entry.name), str(entry.task))):
            return apply_async(entry, *args, **kwargs)

    scheduler.apply_async = sending
    signals.before_task_publish.connect(_hear, weak=False, dispatch_uid=_UID)


@contextmanager
def _sent(entry: _Entry) -> Iterator[None]:
    token = _sending.set(entry)
    try:
        yield
        if (
            not entry.heard
        ):  # a durable task: beat wrote its row, and the message comes later or from elsewhere
            import_string(_HEAR)(entry.name, entry.task, "")
    finally:
        _sending.reset(token)


def _hear(headers: Mapping[str, Any] | None = None, **_: Any) -> None:
    entry = _sending.get()
    if entry is not None and not entry.heard:
        entry.heard = True
        import_string(_HEAR)(entry.name, entry.task, str((headers or {}).get("id", "")))

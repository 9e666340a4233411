"""Records the messages that Celery beat sends, to compare them with the fire times of this package:
``durable shadow``.

Add one line to the settings of the process that runs beat, with any scheduler class::

    from django_durable_tasks.contrib.beat import listener; listener.listen()

The line may be in settings that web and worker processes share: they do not run beat, and nothing
happens in them. No model is imported here, because settings are read before the applications.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from celery import signals
from django.utils.module_loading import import_string

_UID = "django_durable_tasks.shadow"
_RECORD = "django_durable_tasks.contrib.beat.compare.record_fire"


@dataclass(slots=True)
class _Entry:
    """The entry of beat's schedule that is being sent."""

    name: str
    task: str
    recorded: bool = False


_sending: ContextVar[_Entry | None] = ContextVar("sending", default=None)


def listen() -> None:
    """Record each message of beat, once beat runs in this process."""
    signals.beat_init.connect(_begin, weak=False, dispatch_uid=_UID)


def _begin(sender: Any, **_: Any) -> None:
    """Record to which entry each message belongs: a message does not contain the name, only the
    scheduler has it.
    """
    # If the app is not in INSTALLED_APPS, Celery logs the error once here, and beat runs on. Later
    # it would be an error of each entry.
    import_string(_RECORD)
    scheduler = sender.scheduler
    apply_async = scheduler.apply_async

    @functools.wraps(apply_async)
    def sending(entry: Any, *args: Any, **kwargs: Any) -> Any:
        sent = _Entry(str(entry.name), str(entry.task))
        token = _sending.set(sent)
        try:
            result = apply_async(entry, *args, **kwargs)
            if not sent.recorded:  # beat created the row of this durable task
                import_string(_RECORD)(sent.name, sent.task, "")
            return result
        finally:
            _sending.reset(token)

    scheduler.apply_async = sending
    signals.before_task_publish.connect(_on_publish, weak=False, dispatch_uid=_UID)


def _on_publish(headers: Mapping[str, Any] | None = None, **_: Any) -> None:
    entry = _sending.get()
    if entry is not None and not entry.recorded:
        entry.recorded = True
        import_string(_RECORD)(entry.name, entry.task, str((headers or {}).get("id", "")))

"""Watches an operation: which rows its moves touch, and where each of them stood before."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from django_durable_tasks import conf
from django_durable_tasks.models import Task

_MANY = 5_000


@dataclass(slots=True)
class Watch:
    """What was touched so far: the status of each row before the first move that named it, and whom
    to look at next.
    """

    preview: bool
    before: dict[uuid.UUID, str] = field(default_factory=dict)
    latest: set[uuid.UUID] = field(default_factory=set)


_watch: ContextVar[Watch | None] = ContextVar("durable_tasks_watch", default=None)


@contextmanager
def watching(*, preview: bool) -> Iterator[Watch]:
    """Watch every move of this thread until the block ends; in a preview no receiver
    hears of them.
    """
    watch = Watch(preview=preview)
    token = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(token)


def touch(ids: Sequence[uuid.UUID]) -> None:
    """Note where these locked rows stand, if somebody watches; to be called before the move."""
    watch = _watch.get()
    if watch is None:
        return
    watch.latest.update(ids)
    new = [task_id for task_id in ids if task_id not in watch.before]
    for first in range(0, len(new), _MANY):
        rows = Task.objects.using(conf.settings().DATABASE).filter(
            pk__in=new[first : first + _MANY]
        )
        watch.before.update(rows.values_list("pk", "status"))


def in_preview() -> bool:
    """Return whether the moves of this thread are a preview, which nobody outside may hear of."""
    watch = _watch.get()
    return watch is not None and watch.preview

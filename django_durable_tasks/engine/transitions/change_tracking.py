"""Records which tasks an operation changes, and their status before it.

``engine/workflows/dry_run.py`` uses this for previews and reports, and ``engine/audit`` for its
entries. The transitions call ``touch``, and writers of other columns ``observe``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from django_durable_tasks import conf
from django_durable_tasks.models import Task

_MANY = 5_000


@dataclass(slots=True)
class TrackedChanges:
    """The tasks that were changed.

    ``before``: the status of each task before its first transition. ``latest``: the ids that were
    added since the reader last cleared it.
    """

    preview: bool
    before: dict[uuid.UUID, str] = field(default_factory=dict)
    latest: set[uuid.UUID] = field(default_factory=set)


_watch: ContextVar[TrackedChanges | None] = ContextVar("durable_tasks_watch", default=None)


@contextmanager
def watching(*, preview: bool) -> Iterator[TrackedChanges]:
    """Record every transition of this thread until the block ends.

    In a preview, and in a block inside one, ``tasks_transitioned`` is not sent.
    """
    watch = TrackedChanges(preview=preview or in_preview())
    token = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(token)


Observer = Callable[[Sequence[uuid.UUID]], None]
_observer: ContextVar[Observer | None] = ContextVar("durable_tasks_observer", default=None)


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Call ``observer`` with the ids of locked tasks before each write of the block."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def observe(ids: Sequence[uuid.UUID]) -> None:
    """Report locked tasks before a write of columns other than the status."""
    observer = _observer.get()
    if observer is not None and ids:
        observer(ids)


def touch(ids: Sequence[uuid.UUID]) -> None:
    """Record the current status of these locked rows if an operation is being recorded.

    Must be called before the transition.
    """
    observe(ids)
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
    """Return whether the transitions of this thread are a preview, which sends no signals."""
    watch = _watch.get()
    return watch is not None and watch.preview

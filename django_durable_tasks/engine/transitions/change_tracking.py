"""Records which tasks an operation changes, and their status before it.

``engine/workflows/dry_run.py`` uses this for previews and reports. The transitions call ``touch``.
"""

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
    """The tasks that were changed.

    ``before``: the status of each task before its first transition. ``latest``: the ids that were
    added since the reader last cleared it.
    """

    preview: bool
    before: dict[uuid.UUID, str] = field(default_factory=dict)
    latest: set[uuid.UUID] = field(default_factory=set)


_watch: ContextVar[Watch | None] = ContextVar("durable_tasks_watch", default=None)


@contextmanager
def watching(*, preview: bool) -> Iterator[Watch]:
    """Record every transition of this thread until the block ends.

    In a preview, and in a block inside one, ``tasks_transitioned`` is not sent.
    """
    watch = Watch(preview=preview or in_preview())
    token = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(token)


def touch(ids: Sequence[uuid.UUID]) -> None:
    """Record the current status of these locked rows if an operation is being recorded.

    Must be called before the transition.
    """
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

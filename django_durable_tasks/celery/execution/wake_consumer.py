"""Wakes the consumer of a worker with the pool ``threads`` when one of its threads has capacity.

The event loop reads the next message from Redis only if fewer messages than the prefetch count are
unacknowledged. Threads acknowledge messages without waking the event loop. Without this step it
would notice free threads with its next timer, after up to ten seconds.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from celery import bootsteps, signals
from celery.concurrency.thread import TaskPool


class WakeConsumer(bootsteps.StartStopStep):
    """A step of the consumer that wakes its event loop at each start and end of a task."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._reader, self._writer = -1, -1
        self._waking = False

    def include_if(self, parent: Any) -> bool:
        """Return whether the tasks run in threads of this process."""
        return isinstance(parent.pool, TaskPool) and parent.hub is not None

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        """Read the pipe in the event loop. Called again after a lost connection, which clears the
        readers of the loop.
        """
        if self._reader < 0:
            self._reader, self._writer = os.pipe()
            for end in (self._reader, self._writer):
                os.set_blocking(end, False)
            self._observe(parent.pool)
        hub.add_reader(self._reader, self._on_readable)

    def _observe(self, pool: Any) -> None:
        # Early acknowledgement happens before task_prerun. Late acknowledgement and the count of
        # reserved messages (worker_disable_prefetch) follow at the very end, after task_postrun.
        signals.task_prerun.connect(self.wake, weak=False, dispatch_uid=f"{__name__}.wake")
        apply = pool.on_apply

        def on_apply(*args: Any, **options: Any) -> Any:
            result = apply(*args, **options)
            result.f.add_done_callback(self.wake)
            return result

        pool.on_apply = on_apply

    def wake(self, *_: Any, **__: Any) -> None:
        """Wake the event loop; safe in every thread."""
        if not self._waking:
            self._waking = True
            # A full pipe wakes the loop too.
            with suppress(BlockingIOError):
                os.write(self._writer, b".")

    def _on_readable(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._reader, 4_096)
        # Reset after the read, which could otherwise take the byte of a wake whose flag remains
        # set. A thread that saw the flag has acknowledged before, and the loop looks afterwards.
        self._waking = False


def add_to(app: Any) -> None:
    """Add the step to the consumers of this application."""
    app.steps["consumer"].add(WakeConsumer)

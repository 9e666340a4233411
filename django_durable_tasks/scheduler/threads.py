"""Threads of a scheduler besides the dispatch thread: each repeats one function, and no exception
ends it.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

logger = logging.getLogger("django_durable_tasks.scheduler")
_PAUSE = 1.0


class Waiter:
    """A wait that can be ended early, also from a signal handler, where an Event could deadlock."""

    def __init__(self) -> None:
        self._calls = SimpleQueue[None]()

    def wake(self) -> None:
        """End the current wait, or the next one."""
        self._calls.put(None)

    def wait(self, seconds: float) -> None:
        """Wait until ``wake`` is called, at most ``seconds``."""
        with suppress(Empty):
            self._calls.get(timeout=seconds)
            while True:
                self._calls.get_nowait()


def log_failure(error: BaseException, text: str, *values: object) -> None:
    """Log an exception that is being handled; print it to stderr if a log handler raises too."""
    try:
        logger.error(text, *values, exc_info=error)
    except BaseException:  # noqa: BLE001 - a thread of the scheduler must not end because its error cannot be logged
        traceback.print_exc()


class PeriodicThread(threading.Thread):
    """Calls ``act`` repeatedly. It returns the seconds to wait; ``wake`` ends that wait early."""

    def __init__(self, name: str, act: Callable[[], float]) -> None:
        super().__init__(name=f"durable-{name}", daemon=True)
        self._act, self._waiter, self._stopping, self._failing = act, Waiter(), False, False

    def run(self) -> None:
        """Repeat until ``stop``."""
        while not self._stopping:
            self._waiter.wait(max(0.0, self._round()))

    def _round(self) -> float:
        try:
            seconds, self._failing = self._act(), False
        except BaseException as error:  # noqa: BLE001 - code of the project may call sys.exit(), which ends threads
            if not self._failing:
                log_failure(
                    error,
                    "A round of the thread %s failed; it is repeated every %g s.",
                    self.name,
                    _PAUSE,
                )
            seconds, self._failing = _PAUSE, True
        return seconds

    def wake(self) -> None:
        """Start the next round at once."""
        self._waiter.wake()

    def stop(self, patience: float = 2.0) -> None:
        """End after the current round; wait for it at most ``patience`` seconds."""
        self._stopping = True
        self.wake()
        if self.is_alive():
            self.join(patience)

"""Runs a function periodically on a daemon thread while its result is used.

``limits/backpressure.py`` uses it. A caller never waits for the thread. The thread starts
with the first ``ask`` and ends when ``ask`` was not called for ``KEPT_FOR`` seconds, or with
the process. After a fork the child must create new objects, because the parent's thread does
not exist there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("django_durable_tasks.limits")
KEPT_FOR = 60.0


class Refresher:
    """Calls ``refresh`` every ``every`` seconds while ``ask`` is called within ``KEPT_FOR`` s."""

    def __init__(self, name: str, refresh: Callable[[], None], every: float) -> None:
        self._name, self._refresh, self._every = name, refresh, every
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._last_use = float("-inf")

    @property
    def runs(self) -> bool:
        """Return whether the thread runs."""
        return self._thread is not None

    def ask(self) -> None:
        """Keep the thread running, or start it. Costs one assignment while the thread runs."""
        self._last_use = time.monotonic()
        if self._thread is None:
            self._start()

    def stop(self, patience: float) -> None:
        """Stop the thread and wait at most ``patience`` seconds for its end.

        The object cannot be used afterwards.
        """
        self._stopping.set()
        thread = self._thread
        if thread is not None:
            thread.join(patience)

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._stopping.is_set():
                return
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The interpreter is shutting down, or the system cannot create more threads.
                # Callers continue without the thread.
                logger.debug("Could not start a thread for %s.", self._name)
                return
            self._thread = thread

    def _run(self) -> None:
        try:
            while time.monotonic() - self._last_use < KEPT_FOR:
                self._refresh()
                if self._stopping.wait(self._every):
                    return
        except Exception:
            logger.exception("Thread %s failed; the next call restarts it.", self._name)
        finally:
            with self._lock:
                self._thread = None

"""The breaker: after the broker failed, nothing is published for a while, so that nobody waits for it.

One log line a change of state; while it is open, tasks are born PENDING and the scheduler claims nothing.
"""

from __future__ import annotations

import logging
import threading
import time

from django_durable_tasks import conf

logger = logging.getLogger("django_durable_tasks.broker")


class Breaker:
    """Open after one failed publish (which was already tried twice), half open after BROKER_BACKOFF seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open_until: float | None = None
        self._probing_until = 0.0
        self.outages = 0
        """How often it opened."""

    def forget_callers(self) -> None:
        """Begin with a free lock: after a fork nobody is left who could release the old one."""
        self._lock = threading.Lock()

    def allows(self) -> bool:
        """Return whether to publish now; while half open, one caller at a time is the probe."""
        with self._lock:
            if self._open_until is None:
                return True
            now = time.monotonic()
            if now < self._open_until or now < self._probing_until:
                return False
            self._probing_until = now + 2 * conf.settings().PUBLISH_TIMEOUT
            return True

    def may_probe(self) -> bool:
        """Return whether the pause is over and nobody probes."""
        until = self._open_until
        return until is not None and time.monotonic() >= max(until, self._probing_until)

    def closed(self) -> bool:
        """Return whether the broker took our last messages; never makes the caller a probe."""
        return self._open_until is None

    def succeeded(self) -> None:
        """The broker took a message."""
        if self._open_until is None:
            return
        with self._lock:
            was_open, self._open_until = self._open_until, None
        if was_open is not None:
            logger.warning("The connection to the broker is restored; publishing continues.")

    def failed(self, error: BaseException) -> None:
        """The broker did not take a message."""
        pause = conf.settings().BROKER_BACKOFF
        with self._lock:
            was_closed = self._open_until is None
            self._open_until, self._probing_until = time.monotonic() + pause, 0.0
            self.outages += was_closed
        if was_closed:
            kind = type(error).__name__
            logger.error("The broker does not respond (%s). Tasks stay PENDING and are published when it does.", kind)

"""Queues whose messages the broker rejects: each waits for itself, while all others are published to.

A lost connection concerns every queue and opens the breaker. A queue that cannot be declared, that is full, or that
does not exist concerns itself alone: nothing is claimed for it until its delay is over, and one task then probes it.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from django_durable_tasks import conf

logger = logging.getLogger("django_durable_tasks.broker")
_LONGEST = 60.0
"""Seconds: the delay starts at BROKER_BACKOFF and doubles up to this, so that a repaired queue is soon used again."""
_TEXT_MAX = 300


@dataclass(frozen=True, slots=True)
class _Rejected:
    reason: str
    delay: float
    until: float


class QueueBackoff:
    """The queues that the broker rejects for this process, with a delay for each; safe in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rejected: dict[str, _Rejected] = {}

    def forget_callers(self) -> None:
        """Begin with a free lock: after a fork no thread is left that could release the old one."""
        self._lock = threading.Lock()

    def allows(self, queue: str) -> bool:
        """Return whether to publish to this queue now."""
        return self.remaining(queue) <= 0.0

    def remaining(self, queue: str) -> float:
        """Return for how long (seconds) nothing is published to this queue; 0.0 if it is not rejected."""
        found = self._rejected.get(queue)
        return 0.0 if found is None else max(0.0, found.until - time.monotonic())

    def knows(self, queue: str) -> bool:
        """Return whether the broker rejected the last message of this queue, also after the delay is over."""
        return queue in self._rejected

    def waiting(self) -> list[str]:
        """Return the queues to which nothing is published now."""
        now = time.monotonic()
        return sorted(queue for queue, found in self._rejected.copy().items() if found.until > now)

    def reasons(self) -> dict[str, str]:
        """Return every rejected queue with what the broker says."""
        return {queue: found.reason for queue, found in sorted(self._rejected.copy().items())}

    def rejected(self, queue: str, error: BaseException) -> None:
        """Record that the broker rejected messages of this queue; a rejection during the delay changes nothing."""
        reason = _text_of(error)
        with self._lock:
            before = self._rejected.get(queue)
            if before is not None and before.until > time.monotonic():
                return
            delay = conf.settings().BROKER_BACKOFF if before is None else min(2 * before.delay, _LONGEST)
            self._rejected[queue] = _Rejected(reason, delay, time.monotonic() + delay)
        if before is None:
            logger.error(
                "The broker rejects messages for queue %r: %s. Its tasks are retried at least every"
                " %g s. Other queues are not affected.", queue, reason, _LONGEST, extra={"queue": queue},
            )  # fmt: skip

    def accepted(self, queue: str) -> None:
        """Record that the broker accepted a message of this queue."""
        if queue not in self._rejected:
            return
        with self._lock:
            before = self._rejected.pop(queue, None)
        if before is not None:
            logger.warning("The broker accepts messages for queue %r again.", queue, extra={"queue": queue})

    def forget(self) -> None:
        """Forget everything; for tests."""
        self._rejected = {}


def _text_of(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:_TEXT_MAX] if text else type(error).__name__

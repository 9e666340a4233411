"""The broker is unavailable, or rejects a queue: what happens to tasks until it accepts messages.

1. A publish fails (``publisher.publish``). It is tried again on a new connection, because an idle
   connection may have been closed by the broker. Both attempts have time limits.
2. If both fail, the ``BrokerBreaker`` of this process opens for BROKER_BACKOFF seconds. One error
   is logged. While it is open:

   * New tasks are inserted as PENDING and not published after COMMIT (``is_open_for``). The caller
     does not wait for the broker.
   * Schedulers claim no tasks (``capacity``), so tasks stay PENDING and their messages cannot be
     lost.
3. Tasks whose messages were not accepted return to PENDING (``return_to_pending``). If that fails
   too, because the process dies or the database is unavailable, they stay QUEUED and are
   republished after REPUBLISH_AFTER.
4. After BROKER_BACKOFF a single message is sent as a probe. If it fails, the breaker opens for
   another BROKER_BACKOFF. If it is accepted, the breaker closes and one warning is logged.
5. The broker may have lost its messages, for example a Redis without persistence. The leader then
   compares all QUEUED tasks with the messages at once (``scheduler/republishing.py``).

A broker that responds but rejects one queue (it cannot be declared, is full or does not exist) does
not open the breaker. ``QueueBackoff`` then stops claims for this queue only, for BROKER_BACKOFF
seconds and twice as long after each further rejection, up to a minute. One task probes the queue
after each delay.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django_durable_tasks import conf
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.process_state import CircuitBreaker
from django_durable_tasks.tasks import claim

logger = logging.getLogger("django_durable_tasks.broker")
_LONGEST_DELAY = 60.0
"""Seconds. Short enough that a repaired queue is used again soon."""
_REASON_MAX = 300


@dataclass(frozen=True, slots=True)
class NotAccepted:
    """A message that the broker did not accept, and the seconds until the task is due again."""

    message: TaskMessage
    delay: float


class BrokerBreaker(CircuitBreaker):
    """The circuit breaker of publishing. It stays open for BROKER_BACKOFF and logs its changes."""

    def __init__(self) -> None:
        super().__init__(
            lambda: conf.settings().BROKER_BACKOFF, lambda: 2 * conf.settings().PUBLISH_TIMEOUT
        )

    def succeeded(self) -> bool:
        """Record that the broker accepted a message."""
        closed = super().succeeded()
        if closed:
            logger.warning("The connection to the broker is restored; publishing continues.")
        return closed

    def failed_with(self, error: BaseException) -> None:
        """Record that the broker could not be reached."""
        if self.failed():
            logger.error(
                "The broker does not respond (%s). Tasks stay PENDING and are published when it"
                " does.",
                type(error).__name__,
            )


@dataclass(frozen=True, slots=True)
class _Rejected:
    reason: str
    delay: float
    until: float


class QueueBackoff:
    """The queues that the broker rejects for this process, with a delay for each; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rejected: dict[str, _Rejected] = {}

    def replace_lock(self) -> None:
        """Replace the lock after a fork: a thread that holds it does not exist in the child."""
        self._lock = threading.Lock()

    def remaining(self, queue: str) -> float:
        """Return the seconds until this queue is tried again; 0.0 if it may be tried now."""
        rejected = self._rejected.get(queue)
        return 0.0 if rejected is None else max(0.0, rejected.until - time.monotonic())

    def is_rejected(self, queue: str) -> bool:
        """Return whether the broker rejected the last message of this queue, whatever the delay."""
        return queue in self._rejected

    def has_rejected(self) -> bool:
        """Return whether the broker rejected the last message of any queue."""
        return bool(self._rejected)

    def delays(self) -> dict[str, float]:
        """Return the queues whose delay is not over, with the seconds that remain."""
        if not self._rejected:
            return {}
        now = time.monotonic()
        return {
            queue: rejected.until - now
            for queue, rejected in self._rejected.copy().items()
            if rejected.until > now
        }

    def reasons(self) -> dict[str, str]:
        """Return every rejected queue with the broker's error."""
        return {queue: rejected.reason for queue, rejected in sorted(self._rejected.copy().items())}

    def rejected(self, queue: str, error: BaseException) -> None:
        """Record that the broker rejected messages of this queue; a rejection during the delay
        changes nothing.
        """
        text, kind = " ".join(str(error).split()), type(error).__name__
        reason = f"{kind}: {text}"[:_REASON_MAX] if text else kind
        with self._lock:
            before = self._rejected.get(queue)
            if before is not None and before.until > time.monotonic():
                return
            delay = conf.settings().BROKER_BACKOFF
            if before is not None:
                delay = min(2 * before.delay, _LONGEST_DELAY)
            self._rejected[queue] = _Rejected(reason, delay, time.monotonic() + delay)
        if before is None:
            logger.error(
                "The broker rejects messages for queue %r: %s. Its tasks are retried at least every"
                " %g s. Other queues are not affected.",
                queue,
                reason,
                _LONGEST_DELAY,
                extra={"queue": queue},
            )

    def accepted(self, queue: str) -> None:
        """Record that the broker accepted a message of this queue."""
        if queue not in self._rejected:
            return
        with self._lock:
            before = self._rejected.pop(queue, None)
        if before is not None:
            logger.warning(
                "The broker accepts messages for queue %r again.", queue, extra={"queue": queue}
            )

    def forget(self) -> None:
        """Forget everything; for tests."""
        self._rejected = {}


breaker = BrokerBreaker()
backoff = QueueBackoff()
os.register_at_fork(after_in_child=backoff.replace_lock)


def capacity() -> int:
    """Return how many tasks may be published at once: BATCH_SIZE; 0 in an outage, 1 as a probe."""
    if breaker.closed():
        return conf.settings().BATCH_SIZE
    return int(breaker.may_probe())


def capacity_of(queue: str) -> int:
    """Return how many tasks of this queue may be published at once; 0 while it is backed off."""
    if not backoff.is_rejected(queue):
        return capacity()
    return 0 if backoff.remaining(queue) else min(capacity(), 1)


def is_open_for(queue: str | None = None) -> bool:
    """Return whether to publish a new task of this queue after COMMIT, instead of inserting it as
    PENDING.
    """
    if queue is not None and backoff.remaining(queue):
        return False
    return breaker.closed() or breaker.may_probe()


def return_to_pending(refused: Iterable[NotAccepted]) -> None:
    """Return claimed tasks to PENDING whose first message was not accepted."""
    for delay, messages in _by_delay(refused).items():
        claim.return_to_pending(messages, delay)


def undo_publish(refused: Sequence[NotAccepted]) -> None:
    """Undo what was written before the publish of these messages failed.

    If it was the first message of its epoch, the task returns to PENDING. Otherwise an earlier copy
    may still be in the broker, so the task stays QUEUED and is republished after the delay.
    """
    return_to_pending(refusal for refusal in refused if refusal.message.number <= 1)
    repeated = _by_delay(refusal for refusal in refused if refusal.message.number > 1)
    for delay, messages in repeated.items():
        claim.not_published(messages, delay)


def _by_delay(refused: Iterable[NotAccepted]) -> dict[float, list[TaskMessage]]:
    by_delay: dict[float, list[TaskMessage]] = defaultdict(list)
    for refusal in refused:
        by_delay[refusal.delay].append(refusal.message)
    return by_delay

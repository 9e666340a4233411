"""After a commit, notifies the schedulers of tasks that are due soon.

This is an optimization: polls find every task that was not announced. Without Redis and
PostgreSQL it does nothing. A process sends at most one notification per ``INTERVAL`` seconds.
A scheduler that receives one polls a second time after that interval.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from django.db import Error, connections

from django_durable_tasks import conf
from django_durable_tasks.choices import Status
from django_durable_tasks.host_clock import host_now
from django_durable_tasks.scheduler import redis_client
from django_durable_tasks.scheduler.due_index import from_ms, instant_ms
from django_durable_tasks.scheduler.redis_client import scope
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.store.commit_hooks import CommitHook, hook_of_transaction, in_atomic_block
from django_durable_tasks.store.dialects import POSTGRESQL, verb
from django_durable_tasks.store.statements import sql
from django_durable_tasks.task_values import NewTask

# The notification that wakes schedulers, and its channel. The format is the same in PostgreSQL and
# Redis.


CHANNEL = "durable_tasks_wake"
"""The channel in PostgreSQL. Channels are local to a database there; the notification contains the
region.
"""


def wake_channel(scope: str) -> str:
    """Return the channel in Redis, where all databases share the channels."""
    return f"{scope}:wake"


class NotificationKind(StrEnum):
    """The subject of a notification."""

    ROWS = "rows"
    LEADER_WORK = "leader_work"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification of due tasks, of work for the leader, or of a listener's self-test.

    ``at`` is the first due time (UTC). ``word`` is the token of the self-test.
    """

    kind: NotificationKind
    at: datetime
    word: str = ""

    def spelled(self) -> str:
        """Return the notification as text."""
        return f"{conf.settings().REGION}|{self.kind}|{instant_ms(self.at)}|{self.word}"


def read(text: str) -> Notification | None:
    """Parse a notification; None if it is of another region or cannot be parsed."""
    region, _, rest = text.partition("|")
    kind, _, rest = rest.partition("|")
    stamp, _, word = rest.partition("|")
    if (
        region != conf.settings().REGION
        or kind not in set(NotificationKind)
        or not stamp.isdecimal()
        or len(stamp) > 14
    ):
        return None
    return Notification(NotificationKind(kind), from_ms(int(stamp)), word)


logger = logging.getLogger("django_durable_tasks.notifier")
INTERVAL = 0.05
"""Seconds between two notifications of a process."""
_SKEW = timedelta(seconds=600)
"""How far the clock of a host may be behind the database's, which decides after the commit."""


def lookahead() -> float:
    """Return how soon (seconds) a new task must be due to cause a notification. Polls find later
    ones in time.
    """
    settings = conf.settings()
    return max(settings.LOOKAHEAD, 2 * settings.POLL)


class Limiter:
    """Limits calls to one per ``seconds``. Several threads may pass at the same instant, which is
    harmless.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._next = seconds, 0.0

    def allows(self) -> bool:
        """Return whether this call may proceed; never waits."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


class _Batch(CommitHook):
    """When tasks and work for the leader of a transaction, savepoint or single statement are due;
    None: now.
    """

    def __init__(self, owner: OnCommitNotifier) -> None:
        super().__init__()
        self.owner = owner
        self.rows: list[datetime | None] = []
        self.leader_work: list[datetime | None] = []

    def act(self) -> None:
        self.owner.announce(self)


class OnCommitNotifier:
    """The implementation of ``ports.due``."""

    def __init__(self) -> None:
        self._rows, self._leader_work = Limiter(INTERVAL), Limiter(INTERVAL)

    def created(self, rows: Sequence[NewTask]) -> None:
        """Record the first of new tasks that a scheduler has to publish soon."""
        if not _has_listeners():
            return
        # One that is due now is as early as any other.
        earliest: datetime | None = None
        for task in rows:
            if task.status != Status.PENDING or task.starts_batch:
                continue
            at = task.due_at or task.run_at
            if at is None:
                self._record(None)
                return
            earliest = at if earliest is None else min(earliest, at)
        if earliest is not None:
            self._record(earliest)

    def rescheduled(self, at: Any) -> None:
        """Record that tasks have another due time, a datetime or an expression."""
        if _has_listeners():
            self._record(at if isinstance(at, datetime) else None)

    def leader_work(self, at: datetime | None = None) -> None:
        """Record work for the leader: ending events to process, or a fire time ``at``."""
        if _has_listeners():
            self._record(at, for_leader=True)

    def _record(self, at: datetime | None, *, for_leader: bool = False) -> None:
        # Approximate: the database's clock decides after the commit.
        if at is not None and at > host_now() + timedelta(seconds=lookahead()) + _SKEW:
            return
        if in_atomic_block():
            batch = hook_of_transaction(_Batch, lambda: _Batch(self))
        elif connections[conf.settings().DATABASE].get_autocommit():
            batch = _Batch(self)
        else:
            return  # no hook runs after a commit that the caller executes
        (batch.leader_work if for_leader else batch.rows).append(at)
        if batch.savepoints is None:
            batch()

    def announce(self, batch: _Batch) -> None:
        """Announce the changes of a committed batch; never raises if a server is unavailable."""
        try:
            now = estimated_now()
            soon = now + timedelta(seconds=lookahead())
            for kind, instants, limiter in (
                (NotificationKind.ROWS, batch.rows, self._rows),
                (NotificationKind.LEADER_WORK, batch.leader_work, self._leader_work),
            ):
                first = min((at or now for at in instants), default=None)
                if first is not None and first <= soon and limiter.allows():
                    send(Notification(kind, first))
        except Error:
            logger.debug("A notification was not sent; polling finds the tasks.", exc_info=True)


def _has_listeners() -> bool:
    return redis_client.url() is not None or database_notifies()


@verb
def database_notifies() -> bool:
    """Return whether the database has notifications."""
    return False


@database_notifies.on(POSTGRESQL)
def _postgresql_notifies() -> bool:
    return True


def send(notification: Notification) -> bool:
    """Send a notification to all listeners, through Redis if it responds, otherwise through
    PostgreSQL. Returns whether it was sent.
    """
    return send_by_redis(notification) or send_by_postgresql(notification)


def send_by_redis(notification: Notification) -> bool:
    """Publish a notification in Redis. Returns False if Redis is not configured or unavailable, or
    if the channel has no subscriber.
    """
    shared = redis_client.connection()
    channel, payload = wake_channel(scope()), notification.spelled()
    return shared is not None and shared.call(
        lambda client: client.publish(channel, payload) > 0, False
    )


def send_by_postgresql(notification: Notification) -> bool:
    """Notify through this thread's connection, outside of transactions. Returns False on a database
    without NOTIFY. Raises Error.
    """
    if not database_notifies():
        return False
    with connections[conf.settings().DATABASE].cursor() as cursor:
        cursor.execute(sql("notify"), {"channel": CHANNEL, "payload": notification.spelled()})
    return True

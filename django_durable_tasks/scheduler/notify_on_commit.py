"""After a commit, adds tasks that are due soon to the index in Redis and notifies the
schedulers.

This is an optimization: polls find every task that was not announced. Without Redis and
PostgreSQL it does nothing. A process sends at most one notification per ``INTERVAL`` seconds.
A scheduler that receives one polls a second time after that interval.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from django.db import Error, connections

from django_durable_tasks import conf
from django_durable_tasks.choices import Status
from django_durable_tasks.host_clock import host_now
from django_durable_tasks.models import Task
from django_durable_tasks.scheduler import redis_index
from django_durable_tasks.scheduler.due_index import DueEntry
from django_durable_tasks.scheduler.redis_index import (
    HORIZON,
    RedisDueIndex,
    from_ms,
    instant_ms,
    scope,
)
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.store.commit_hooks import CommitHook, hook_of_transaction, in_atomic_block
from django_durable_tasks.store.statements import statement
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

    ``at`` is the first due time (UTC). ``word`` is the queue of that task, or the token of the
    self-test.
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
_SKEW = timedelta(seconds=600)
_PAGE = 500
_MOST = 20_000
"""The number of new tasks of a transaction that are announced; polls find the others."""
_MARGIN = timedelta(seconds=2)
"""New tasks are added a little beyond the horizon, so that a clock difference between this process
and the leader leaves no gap.
"""


def lookahead() -> float:
    """Return how soon (seconds) a new task must be due to cause a notification. Polls find later
    ones in time.
    """
    settings = conf.settings()
    return max(settings.LOOKAHEAD, 2 * settings.POLL)


_Created = tuple[datetime | None, str, uuid.UUID, int, int]


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
    """The changes of a transaction or savepoint, or of one statement outside of transactions."""

    def __init__(self, owner: OnCommitNotifier) -> None:
        super().__init__()
        self.owner = owner
        self.created: list[_Created] = []
        self.moved: list[uuid.UUID] = []
        self.moved_to: list[datetime] = []
        self.leader_work: list[datetime | None] = []

    def act(self) -> None:
        self.owner.announce(self)


class OnCommitNotifier:
    """The implementation of ``ports.due``."""

    def __init__(self) -> None:
        self._rows, self._leader_work = Limiter(INTERVAL), Limiter(INTERVAL)
        self._index: RedisDueIndex | None = None
        self._index_connection: redis_index.RedisConnection | None = None

    def created(self, rows: Sequence[NewTask]) -> None:
        """Record new tasks; those that are PENDING and due within the horizon are announced after
        the commit, except those for which a batch message is published at the commit.
        """
        if not any(map(_needs_scheduler, rows)) or not _has_listeners():
            return
        # Approximate: the database's clock decides after the commit.
        found = _soon(rows, host_now() + _horizon() + _SKEW)
        if found and (batch := self._batch()) is not None:
            alone = [task for task in found if not task.in_batch]
            room = max(0, _MOST - len(batch.created))
            batch.created += [_created(task) for task in alone[:room]]
            # Tasks of batches wake a scheduler, but are not in the index: they have no messages.
            due = [_due_at(task) or host_now() for task in found if task.in_batch]
            batch.moved_to += [min(due)] if due else []
            _act_unless_registered(batch)

    def rescheduled(self, ids: Sequence[uuid.UUID], at: Any = None) -> None:
        """Record that tasks have another due time. Without ``at`` (retries, tasks returned to
        PENDING) no scheduler is notified.
        """
        listened = _has_listeners() if at is not None else redis_index.url() is not None
        if not ids or not listened or (batch := self._batch()) is None:
            return
        batch.moved += ids
        if at is not None:
            batch.moved_to.append(at if isinstance(at, datetime) else host_now())
        _act_unless_registered(batch)

    def removed(self, ids: Sequence[uuid.UUID]) -> None:
        """Record that tasks are no longer PENDING. A task that is PENDING again at the commit keeps
        its entry.
        """
        self.rescheduled(ids)

    def leader_work(self, at: datetime | None = None) -> None:
        """Record work for the leader: ending events to process, or a fire time ``at``."""
        if not _has_listeners() or (
            at is not None and at > host_now() + timedelta(seconds=lookahead()) + _SKEW
        ):
            return
        if (batch := self._batch()) is not None:
            batch.leader_work.append(at)
            _act_unless_registered(batch)

    def announce(self, batch: _Batch) -> None:
        """Announce the changes of a committed batch; never raises if a server is unavailable."""
        try:
            now = estimated_now()
            rows = [
                DueEntry(at or now, queue, task_id, priority, shard)
                for at, queue, task_id, priority, shard in batch.created
            ]
            index = self._shared_index()
            if index is not None:
                _update(index, rows, batch, now, now + _horizon() + _MARGIN)
            soon = now + timedelta(seconds=lookahead())
            first = min(
                [(row.at, row.queue) for row in rows] + [(at, "") for at in batch.moved_to],
                default=None,
            )
            if first is not None and first[0] <= soon and self._rows.allows():
                send(Notification(NotificationKind.ROWS, *first))
            if (
                any(at is None or at <= soon for at in batch.leader_work)
                and self._leader_work.allows()
            ):
                send(Notification(NotificationKind.LEADER_WORK, now))
        except Error:
            logger.debug("A notification was not sent; polling finds the tasks.", exc_info=True)

    def _shared_index(self) -> RedisDueIndex | None:
        shared = redis_index.connection()
        if shared is None:
            return None
        if self._index is None or self._index_connection is not shared:
            self._index, self._index_connection = RedisDueIndex(shared), shared
        return self._index

    def _batch(self) -> _Batch | None:
        """Return the batch of this transaction, or a new one outside of transactions. Returns None
        if autocommit is off, because then no hook runs after the commit.
        """
        if in_atomic_block():
            return hook_of_transaction(_Batch, lambda: _Batch(self))
        return _Batch(self) if connections[conf.settings().DATABASE].get_autocommit() else None


def _act_unless_registered(batch: _Batch) -> None:
    if batch.savepoints is None:
        batch()


def _horizon() -> timedelta:
    return HORIZON if redis_index.url() is not None else timedelta(seconds=lookahead())


def _has_listeners() -> bool:
    return redis_index.url() is not None or _notifies()


def _notifies() -> bool:
    return bool(connections[conf.settings().DATABASE].vendor == "postgresql")


def _soon(rows: Sequence[NewTask], latest: datetime) -> list[NewTask]:
    """Return the tasks that schedulers have to publish and that are due until ``latest``.

    Without the index in Redis, only the earliest is needed. One that is due now is as early.
    """
    found: list[NewTask] = []
    for task in rows:
        at = _due_at(task)
        if not _needs_scheduler(task) or (at is not None and at > latest):
            continue
        found.append(task)
        if at is None and redis_index.url() is None:
            return found[-1:]
    return found


def _needs_scheduler(task: NewTask) -> bool:
    return task.status == Status.PENDING and not task.starts_batch


def _due_at(task: NewTask) -> datetime | None:
    return task.due_at or task.run_at


def _created(task: NewTask) -> _Created:
    return _due_at(task), task.queue, task.id, task.priority, task.shard_key


def _update(
    index: RedisDueIndex, rows: Sequence[DueEntry], batch: _Batch, now: datetime, horizon: datetime
) -> None:
    # A moved task that is due already is left to the poll. Otherwise a task that a limit refuses
    # would be added again without end.
    moved = [row for row in _read(batch.moved) if now < row.at <= horizon]
    index.add([*(row for row in rows if row.at <= horizon), *moved])
    within = {row.task_id for row in moved}
    index.discard([task_id for task_id in batch.moved if task_id not in within])


def _read(ids: Sequence[uuid.UUID]) -> list[DueEntry]:
    """Read the due times of moved tasks; tasks that are no longer PENDING are omitted."""
    columns = ("due_at", "queue", "pk", "priority", "shard_key")
    waiting = Task.objects.using(conf.settings().DATABASE).published_alone().order_by()
    return [
        DueEntry(*row)
        for page in _pages(ids)
        for row in waiting.filter(pk__in=page).values_list(*columns)
    ]


def _pages(ids: Sequence[uuid.UUID]) -> Iterator[Sequence[uuid.UUID]]:
    for first in range(0, len(ids), _PAGE):
        yield ids[first : first + _PAGE]


def send(notification: Notification) -> bool:
    """Send a notification to all listeners, through Redis if it responds, otherwise through
    PostgreSQL. Returns whether it was sent.
    """
    return send_by_redis(notification) or send_by_postgresql(notification)


def send_by_redis(notification: Notification) -> bool:
    """Publish a notification in Redis. Returns False if Redis is not configured or unavailable, or
    if the channel has no subscriber.
    """
    shared = redis_index.connection()
    channel, payload = wake_channel(scope()), notification.spelled()
    return shared is not None and shared.call(
        lambda client: client.publish(channel, payload) > 0, False
    )


def send_by_postgresql(notification: Notification) -> bool:
    """Notify through this thread's connection, outside of transactions. Returns False on a database
    without NOTIFY. Raises Error.
    """
    sql = statement("notify")
    if sql is None:
        return False
    with connections[conf.settings().DATABASE].cursor() as cursor:
        cursor.execute(sql, {"channel": CHANNEL, "payload": notification.spelled()})
    return True

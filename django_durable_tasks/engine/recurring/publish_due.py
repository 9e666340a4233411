"""Publishes the occurrences of a tick when its transaction commits, without a claim, as the fast
path does for calls.

A claim costs the database about as much as the insert. The scheduler that fires the schedules
gives the windows of the queues, within which it may publish.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

from django_durable_tasks import conf, ports
from django_durable_tasks.engine.db.publish_on_commit import publish_after_commit
from django_durable_tasks.engine.limits import config
from django_durable_tasks.engine.tasks.insert import message_of
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.new_task import NewTask


class Windows(Protocol):
    """How many tasks may be published without a claim."""

    def capacity_at_commit(self, queue: str) -> int:
        """Return how many new tasks of this queue may be published."""

    def record_sent(self, queue: str, number: int) -> None:
        """Record that this number of tasks will be published."""


def queued_if_due(
    tasks: Sequence[NewTask], now: datetime, windows: Windows | None
) -> Sequence[NewTask]:
    """Return the tasks, as QUEUED those that will be published at the commit of this transaction.

    These are due and have no overlap key (which is checked after a claim), run in no batch, and no
    limit applies to them.
    """
    settings = conf.settings()
    if windows is None or not settings.FAST_PATH or ports.eager():
        return tasks
    limits = config.limits_in_force()
    if limits.tenants:
        return tasks  # a claim divides the window of a queue between tenants
    due_at, left, sent = now + timedelta(seconds=settings.REPUBLISH_AFTER), _Left(windows), []
    found = list[NewTask]()
    for task in tasks:
        if (
            _is_due(task, now)
            and not limits.binds(task.name, task.queue, task.tenant_id)
            and left.take(task.queue)
        ):
            task = task._replace(status=Status.QUEUED, epoch=1, publish_count=1, due_at=due_at)
            sent.append(task)
        found.append(task)
    sent.sort(key=lambda task: -task.priority)
    for queue, number in Counter([task.queue for task in sent]).items():
        windows.record_sent(queue, number)
    if sent:
        publish_after_commit([message_of(task) for task in sent])
    return found


def _is_due(task: NewTask, now: datetime) -> bool:
    if task.overlap_key is not None or task.in_batch:
        return False
    if task.due_at is None or task.due_at > now:
        return False
    return task.expires_at is None or task.expires_at > now


class _Left:
    """The capacity that is left in each queue."""

    def __init__(self, windows: Windows) -> None:
        self._windows, self._left = windows, dict[str, int]()

    def take(self, queue: str) -> bool:
        left = self._left.get(queue)
        if left is None:
            left = self._windows.capacity_at_commit(queue) if ports.broker_open(queue) else 0
        self._left[queue] = left - 1
        return left > 0

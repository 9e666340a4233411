"""The fast path: a task that is due now is published when the transaction that creates it commits,
without a claim by a scheduler.

A task that runs in batches stays PENDING. For it a batch message is published if none is
outstanding.
"""

from __future__ import annotations

from datetime import datetime

from django.db import connections

from django_durable_tasks import conf, ports
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.clock_estimate import has_passed
from django_durable_tasks.engine.db.publish_on_commit import FAST_PATH_MAX, messages_so_far
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.new_task import NewTask


def queued_if_possible(task: NewTask) -> NewTask:
    """Return the task as QUEUED if it may be published at commit, and with ``starts_batch`` if a
    batch message may be; unchanged otherwise.
    """
    if task.in_batch:
        return task._replace(starts_batch=True) if may_start_batch(task) else task
    if not may_publish_at_once(task, task.run_at):
        return task
    wait = conf.settings().REPUBLISH_AFTER
    return task._replace(status=Status.QUEUED, epoch=1, publish_count=1, wait=wait)


def may_publish_at_once(task: NewTask, run_at: datetime | None) -> bool:
    """Return whether this task may be inserted as QUEUED and published at commit.

    It must not run in a batch, and it must be due: ``run_at`` is None or has certainly passed by
    the database's clock.
    """
    if task.in_batch or not _is_due(run_at):
        return False
    if connections[tables.database()].run_on_commit and messages_so_far() >= FAST_PATH_MAX:
        return False
    return ports.broker_open(task.queue) and ports.fast_path.is_open(
        task.name, task.queue, task.tenant_id
    )


def may_start_batch(task: NewTask) -> bool:
    """Return whether a batch message for this PENDING task may be published at commit."""
    return (
        task.in_batch
        and _is_due(task.run_at)
        and ports.broker_open(task.queue)
        and ports.fast_path.may_start_batch(task.name, task.queue, task.tenant_id)
    )


def _is_due(run_at: datetime | None) -> bool:
    """Return whether the fast path is enabled, the COMMIT is noticed, and the task is due: without
    ``run_at``, or if it has certainly passed by the database's clock.
    """
    connection = connections[tables.database()]
    if not conf.settings().FAST_PATH:
        return False
    if not connection.in_atomic_block and not connection.get_autocommit():
        return False
    return run_at is None or has_passed(run_at)

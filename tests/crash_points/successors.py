"""The processes that continue after one died: a worker, a leading scheduler, and advancing time,
until nothing is left to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from celery import current_app
from celery.exceptions import Ignore
from celery.exceptions import Retry as CeleryRetry
from django.conf import settings
from django.contrib.auth.models import Group
from django.db import DatabaseError, connection
from django.db.models import F
from django.db.utils import InterfaceError

from django_durable_tasks.celery.live_runs import process_runs
from django_durable_tasks.celery.prepared_messages import BATCH_HEADER, HEADER, RUN_HEADER, TakenRun
from django_durable_tasks.celery.publisher import CARRIER
from django_durable_tasks.models import (
    BatchMessage,
    DeadLetter,
    EndingEvent,
    Limit,
    OccurrenceRecord,
    QueueControl,
    RecurringTask,
    SchedulerLease,
    Task,
    TaskDependency,
    TaskExecutionLog,
    WorkflowRun,
)
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.task_values import Run
from tests.crash_points.bodies import ExpectedFailure
from tests.crash_points.promises import exceeded_limits
from tests.factories import QUEUE
from tests.republishing import Leader
from tests.waiting import until

ROUNDS = 40
LOOKS = 4
OPEN = ("BLOCKED", "PENDING", "QUEUED", "RUNNING")
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
AN_HOUR = timedelta(hours=1)
_TABLES: tuple[Any, ...] = (
    BatchMessage,
    Limit,
    EndingEvent,
    TaskDependency,
    TaskExecutionLog,
    DeadLetter,
    OccurrenceRecord,
    Task,
    RecurringTask,
    WorkflowRun,
    QueueControl,
    Group,
)


def begin_anew() -> None:
    """Delete rows and messages of an earlier point, and the leader.

    The server may still hold the locks of the dead process. This waits until the server has
    released them.
    """
    until(_emptied, within=30, message="the tables are empty")
    # Not the folders: this process knows that it has created them, and its children rely on it.
    for message in Path(settings.CELERY_BROKER_TRANSPORT_OPTIONS["data_folder"]).glob("queues/*/*"):
        message.unlink()


def _emptied() -> bool:
    try:
        with connection.cursor() as cursor:
            for model in _TABLES:
                cursor.execute(f"DELETE FROM {model._meta.db_table}")
        SchedulerLease.objects.update(expires_at=LONG_AGO)
    except DatabaseError:
        return False
    return True


def go_on(again: Callable[[], None]) -> None:
    """Do the remaining work in rounds, after the caller has repeated what was not confirmed
    (``again``).

    Raises AssertionError if something is left after many rounds, in which every deadline occurred
    more than once.
    """
    _keep_limits()
    until(lambda: _answered(again), within=20, message="the caller is answered")
    messages = Leader()
    for _ in range(ROUNDS):
        for step in (_work, _lead, messages.compare, _work):
            step()
            _keep_limits()
        if _settled():
            return
        _advance_time()
    open_rows = list(
        Task.objects.filter(status__in=OPEN).values_list(
            "name", "queue", "status", "attempts", "reason"
        )
    )
    raise AssertionError(
        f"left undone: {open_rows}, {EndingEvent.objects.count()} unresolved endings"
    )


def _keep_limits() -> None:
    exceeded = exceeded_limits()
    assert not exceeded, exceeded


def _answered(again: Callable[[], None]) -> bool:
    try:
        again()
    except (DatabaseError, InterfaceError):
        return False  # the server still holds the locks of the dead process
    return True


def _lead() -> None:
    scheduler = Scheduler("successor")
    for _ in range(
        LOOKS
    ):  # it does not lead yet, so its rounds only check: leases expire after several checks in a row
        scheduler.maintenance._read_at = 0.0
        scheduler.maintenance.round()
    scheduler.leader.step()
    scheduler.triggering.round()
    scheduler.releasing.round()
    scheduler.round()
    scheduler.maintenance.round()
    scheduler.leader.resign()


def _settled() -> bool:
    left = (
        Task.objects.filter(status__in=OPEN),
        EndingEvent.objects.all(),
        WorkflowRun.objects.filter(status="RUNNING"),
    )
    return not any(rows.exists() for rows in left)


def _advance_time() -> None:
    """Let every deadline expire. No dead process returns, so no other time has to pass."""
    Task.objects.unguarded().filter(due_at__lt=NEVER).update(due_at=F("due_at") - AN_HOUR)
    Task.objects.unguarded().filter(lease_until__isnull=False).update(
        lease_until=F("lease_until") - AN_HOUR
    )
    BatchMessage.objects.update(due_at=F("due_at") - AN_HOUR)


def _work() -> None:
    """Take every message from the broker and run it, as a worker with one process does."""
    app = current_app._get_current_object()
    with app.connection_for_read() as carrier, carrier.channel() as channel:
        for queue in (QUEUE, settings.CELERY_TASK_DEFAULT_QUEUE):
            app.amqp.queues[queue](channel).declare()
            while (message := channel.basic_get(queue, no_ack=True)) is not None:
                if HEADER in message.headers:
                    deliver(message.headers["task"], message.headers[HEADER])
                else:
                    number = message.payload[1]["number"]
                    deliver_batch(message.headers[BATCH_HEADER], message.headers["id"], number)


def deliver(name: str, message: str, run: Run | None = None) -> None:
    """Deliver a message to its task: gate, body, ending. An exception of the body has been recorded
    by then. ``run`` was started when the task was taken.
    """
    task: Any = current_app.tasks[name]
    headers: dict[str, Any] = {HEADER: message}
    if run is not None:
        run = run._replace(celery_id=message)
        headers[RUN_HEADER] = TakenRun(run, time.monotonic())
    task.push_request(
        id=message,
        called_directly=False,
        is_eager=False,
        args=[],
        kwargs={},
        headers=headers,
        **headers,
    )
    try:
        task()
    except (Ignore, CeleryRetry, ExpectedFailure):
        return
    finally:
        task.pop_request()
        process_runs.forget(message)


def deliver_batch(name: str, message: str = "batch.000000000000", number: int = 1) -> None:
    """Deliver a batch message of this task name, as a worker does."""
    task: Any = current_app.tasks[CARRIER]
    task.push_request(id=message, called_directly=False, is_eager=False, headers={})
    try:
        task(queue=QUEUE, name=name, number=number)
    finally:
        task.pop_request()

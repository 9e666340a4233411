"""Queries of process tests, and deletion of all rows before a test."""

import os
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from celery import current_app
from django.conf import settings
from django.db import IntegrityError, OperationalError

from django_durable_tasks.celery import publisher
from django_durable_tasks.contrib.notifications.models import NotificationEvent, NotificationSetting
from django_durable_tasks.models import (
    BatchMessage,
    DeadLetter,
    EndingEvent,
    Node,
    OccurrenceRecord,
    RecurringTask,
    Task,
    TaskExecutionLog,
    TaskRequest,
    WorkflowRun,
)
from tests.process_state import new_process_state
from tests.waiting import until

PATIENCE = float(os.environ.get("TEST_PATIENCE", "40"))
ENDED = ("SUCCESS", "FAILED", "CANCELLED", "SKIPPED", "EXPIRED")


def clear_rows() -> None:
    """Delete the rows and messages of an earlier test. The seed rows of the migrations stay."""
    until(_emptied, within=20, message="the tables are empty")
    purge(settings.CELERY_TASK_DEFAULT_QUEUE)


def forget_processes() -> None:
    """Delete the nodes of ended processes, and this process's queue snapshot."""
    Node.objects.all().delete()
    new_process_state()
    publisher.close_idle()
    publisher.backoff.forget()


def _emptied() -> bool:
    """Delete all rows. A worker that writes at the same time makes it start again."""
    for model in (
        RecurringTask,
        OccurrenceRecord,
        TaskExecutionLog,
        DeadLetter,
        Task,
        NotificationEvent,
        NotificationSetting,
        WorkflowRun,
        EndingEvent,
        TaskRequest,
        BatchMessage,
    ):
        try:
            model._base_manager.all().delete()
        except (IntegrityError, OperationalError):
            return False
    return not Task.objects.exists()


def purge(queue: str) -> int:
    """Remove all messages of a queue and return how many there were."""
    with current_app.connection_for_write() as connection:
        bound = current_app.amqp.queues[queue](connection.default_channel)
        bound.declare()
        return int(bound.purge() or 0)


def waiting_messages(queue: str) -> int:
    """Return how many messages wait in a queue."""
    with current_app.connection_for_write() as connection:
        bound = current_app.amqp.queues[queue](connection.default_channel)
        return int(bound.queue_declare(passive=False).message_count)


def row(task: Any) -> Task:
    """Return the row of a task or a result, read again."""
    found: Task = Task.objects.get(pk=_key(task))
    return found


def _key(task: Any) -> Any:
    return getattr(task, "pk", None) or getattr(task, "id", task)


def ended(task: Any, *, within: float = PATIENCE) -> Task:
    """Wait until the task has ended, and return it."""
    until(lambda: row(task).status in ENDED, within=within, message=f"{row(task).name} ends")
    return row(task)


def in_status(task: Any, status: str, *, within: float = PATIENCE) -> Task:
    """Wait until the task has this status, and return it."""
    until(
        lambda: row(task).status == status, within=within, message=f"{row(task).name} is {status}"
    )
    return row(task)


def logged(task: Any) -> list[str]:
    """Return the endings of the attempts, the first first."""
    found = TaskExecutionLog.objects.filter(task_id=_key(task)).order_by("id")
    return [str(status) for status in found.values_list("status", flat=True)]


def logs() -> Counter[str]:
    """Count all log entries by status."""
    return Counter(TaskExecutionLog.objects.values_list("status", flat=True))


def statuses() -> Counter[str]:
    """Count all tasks by status."""
    return Counter(Task.objects.order_by().values_list("status", flat=True))


def accepted_twice() -> list[tuple[uuid.UUID, int]]:
    """Return the attempts with more than one accepted ending, and tasks with two successes (as
    attempt 0).
    """
    rows = TaskExecutionLog.objects.exclude(status__in=("FENCED", "DUPLICATE"))
    endings = Counter(rows.values_list("task_id", "attempt_number"))
    successes = Counter(rows.filter(status="SUCCESS").values_list("task_id", flat=True))
    return [pair for pair, number in endings.items() if number > 1] + [
        (task_id, 0) for task_id, number in successes.items() if number > 1
    ]


def release(folder: Path) -> None:
    """End the runs of `bodies.hold` that wait for this folder, including one that is RUNNING and
    has not created it yet.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "released").touch()


def all_ended(number: int, within: float = 60) -> None:
    """Wait until this many tasks have ended."""

    def done() -> bool:
        return bool(Task.objects.filter(completed_at__isnull=False).count() >= number)

    until(done, within=within, message=f"{number} tasks have ended")


def lines(file: Path) -> list[str]:
    """Return the lines of a notebook."""
    return file.read_text().splitlines() if file.exists() else []

"""``DurableResult``: Celery's AsyncResult whose id is the Task's and which reads the row, not a result backend."""

from __future__ import annotations

import time
import uuid
from typing import Any

from celery import states
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult

from django_durable_tasks import conf
from django_durable_tasks.exceptions import BodyFailed
from django_durable_tasks.lifecycle import cancellation
from django_durable_tasks.models import Task
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.rules.states import TERMINAL, Status

_CELERY_STATES = {
    Status.BLOCKED: states.PENDING,
    Status.PENDING: states.PENDING,
    Status.QUEUED: states.PENDING,
    Status.RUNNING: states.STARTED,
    Status.SUCCESS: states.SUCCESS,
    Status.FAILED: states.FAILURE,
    Status.CANCELLED: states.REVOKED,
    Status.SKIPPED: states.REVOKED,
    Status.EXPIRED: states.REVOKED,
}
_FIRST_LOOK, _LONGEST_LOOK = 0.02, 1.0


class DurableResult(AsyncResult):
    """The result of one durable task; every question reads the row."""

    def __init__(self, task_id: uuid.UUID | str, **options: Any) -> None:
        super().__init__(str(task_id), **options)

    def _rows(self) -> TaskQuerySet:
        rows: TaskQuerySet = Task.objects.using(conf.settings().DATABASE).filter(pk=self.id)
        return rows

    @property
    def task(self) -> Task:
        """The row; raises Task.DoesNotExist after it was pruned."""
        return self._rows().get()

    @property
    def state(self) -> str:
        """Celery's name for where the row stands; a waiting retry is RETRY."""
        row = self._rows().only("status", "failures").first()
        if row is None:
            return str(states.PENDING)
        if row.status == Status.PENDING and row.failures:
            return str(states.RETRY)
        return str(_CELERY_STATES[Status(row.status)])

    status = state

    @property
    def result(self) -> Any:
        """The value the body returned, or the error that ended it."""
        row = self._rows().first()
        return None if row is None else self._value(row)

    info = result

    @staticmethod
    def _value(row: Task) -> Any:
        if row.status == Status.FAILED:
            return BodyFailed(row.last_error)
        if row.status in TERMINAL and row.status != Status.SUCCESS:
            return TaskRevokedError(f"{row.status}: {row.reason}")
        return row.result

    @property
    def traceback(self) -> str | None:
        """The traceback of the last attempt that failed."""
        row = self._rows().first()
        last = None if row is None else row.executions.exclude(traceback="").order_by("-id").first()
        return last.traceback if last else None

    def get(
        self, timeout: float | None = None, propagate: bool = True, interval: float = _LONGEST_LOOK, **_: Any
    ) -> Any:
        """Wait for the end and return the result; raises Celery's TimeoutError after ``timeout`` seconds."""
        deadline, pause = None if timeout is None else time.monotonic() + timeout, _FIRST_LOOK
        while True:
            row = self._rows().first()
            if row is not None and row.status in TERMINAL:
                value = self._value(row)
                if propagate and isinstance(value, BaseException):
                    raise value
                return value
            if deadline is not None and time.monotonic() + pause > deadline:
                raise CeleryTimeoutError(f"Task {self.id} has not ended after {timeout:g} s.")
            time.sleep(pause)
            pause = min(2 * pause, interval)

    wait = get

    def ready(self) -> bool:
        """Whether the row has ended."""
        return self._rows().filter(status__in=TERMINAL).exists()

    def revoke(self, *_: Any, **__: Any) -> None:
        """Cancel the task: a waiting one at once, a running one by asking."""
        cancellation.cancel(self._rows(), by="revoke")

    def forget(self) -> None:
        """Do nothing: retention deletes finished rows."""

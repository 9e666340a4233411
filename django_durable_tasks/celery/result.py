"""``DurableResult``: an AsyncResult that reads the task's row, with the stored exception."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from celery import states
from celery.backends.base import DisabledBackend
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult, assert_will_not_block

from django_durable_tasks import conf
from django_durable_tasks.choices import TERMINAL, Status
from django_durable_tasks.exceptions import (
    BodyFailed,
    InvalidOption,
    ResultTooLarge,
    UnserializableResult,
    WouldWaitForever,
)
from django_durable_tasks.masking import ERROR_MAX_BYTES, masked
from django_durable_tasks.models import Task, TaskExecutionLog
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.store.commit_hooks import is_uncommitted
from django_durable_tasks.tasks import operator_actions
from django_durable_tasks.tasks.arguments import JSON_MAX_DEPTH, encode_result

# Converts the exception of a task to JSON and back, so that ``get()`` can raise it in another
# process.


def described(error: BaseException) -> dict[str, Any] | None:
    """Return the class and the arguments of an exception, with secrets masked; None if they cannot
    be encoded as JSON, or an attribute of the exception raises.
    """
    kind, names = type(error), conf.settings().SECRET_NAMES
    try:
        description = {
            "module": kind.__module__,
            "name": kind.__qualname__,
            "args": list(error.args),
        }
        # This also bounds what is masked: the arguments may contain themselves.
        if not _fits(description):
            return None
        description["args"] = masked(description["args"], names)
        return description if _fits(description) else None
    except Exception:  # noqa: BLE001 - code of the exception's class and of its arguments
        return None


def _fits(description: Mapping[str, Any]) -> bool:
    try:
        encode_result("", description, max_bytes=ERROR_MAX_BYTES, max_depth=JSON_MAX_DEPTH)
    except (UnserializableResult, ResultTooLarge):
        return False
    return True


def rebuilt(description: Mapping[str, Any] | None) -> Exception | None:
    """Return the exception that ``described`` encoded; None if its class is not loaded here or has
    another signature.

    Nothing is imported. A caller that catches the class has imported it.
    """
    if description is None:
        return None
    kind: Any = sys.modules.get(description["module"])
    for part in description["name"].split("."):
        kind = getattr(kind, part, None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return None
    args = tuple(description["args"])
    try:
        error = kind(*args)
    except Exception:  # noqa: BLE001 - a class of the project's, whose signature is not known
        return None
    return error if error.args == args else None


# ``DurableResult``: an AsyncResult that reads the task's row instead of a result backend.


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
_OF_BACKENDS = {"EXCEPTION_STATES", "PROPAGATE_STATES"}
"""Options of Celery's ``get`` by which it reads a result backend; the states of a row are fixed."""
STATE, META = "state", "meta"
"""What ``self.update_state()`` keeps in the progress of a row."""


class DurableResult(AsyncResult):
    """The result of one durable task; every question reads the row."""

    created_here = False
    """Whether the call that this process made created the task or found it."""
    supports_native_join = False

    def __init__(self, task_id: uuid.UUID | str, *args: Any, **options: Any) -> None:
        super().__init__(str(task_id), *args, **options)

    def _rows(self) -> TaskQuerySet:
        rows: TaskQuerySet = Task.objects.using(conf.settings().DATABASE).filter(pk=self.id)
        return rows

    @property
    def task(self) -> Task:
        """The task; raises Task.DoesNotExist after it was pruned."""
        return self._rows().get()

    @property
    def state(self) -> str:
        """Celery's name for the status of the task. A task that waits for a retry is RETRY."""
        row = self._rows().only("status", "failures", "progress").first()
        return str(states.PENDING) if row is None else _state(row)

    status = state

    @property
    def result(self) -> Any:
        """The value that the function returned, or the error that ended the task."""
        row = self._rows().first()
        return None if row is None else self._value(row)

    info = result

    def _value(self, row: Task) -> Any:
        if row.status == Status.FAILED:
            last = self._executions().only("error_message", "exception").first()
            found = (
                last.exception
                if last is not None and last.error_message == row.last_error
                else None
            )
            return rebuilt(found) or BodyFailed(row.last_error)
        if row.status in TERMINAL and row.status != Status.SUCCESS:
            return TaskRevokedError(f"{row.status}: {row.reason}")
        if row.status == Status.RUNNING and isinstance(row.progress, dict):
            return row.progress.get(META)
        return row.result

    @property
    def traceback(self) -> str | None:
        """The traceback of the last attempt that failed."""
        last = self._executions().exclude(traceback="").first()
        return last.traceback if last else None

    def _executions(self) -> Any:
        return (
            TaskExecutionLog.objects.using(conf.settings().DATABASE)
            .filter(task_id=self.id)
            .order_by("-id")
        )

    def _get_task_meta(self) -> dict[str, Any]:
        """Return what Celery's other properties read: those of ``result_extended`` too."""
        row = self._rows().first()
        if row is None:
            return {"status": states.PENDING, "result": None}
        last = self._executions().first()
        return {
            "task_id": self.id,
            "status": _state(row),
            "result": self._value(row),
            "traceback": self.traceback,
            "children": [],
            "date_done": row.completed_at,
            "name": row.name,
            "args": row.args,
            "kwargs": row.kwargs,
            "worker": last.worker if last else None,
            "retries": row.failures,
            "queue": row.queue,
        }

    def exists(self) -> bool:
        """Whether the task has a row."""
        return self._rows().exists()

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float = _LONGEST_LOOK,
        no_ack: bool = True,
        follow_parents: bool = True,
        callback: Callable[[str, Any], Any] | None = None,
        on_message: Any = None,
        on_interval: Callable[[], Any] | None = None,
        disable_sync_subtasks: bool = True,
        **options: Any,
    ) -> Any:
        """Wait until the task has ended and return its result. Raises Celery's TimeoutError after
        ``timeout`` seconds.

        ``callback`` is called with the id and the result, ``on_interval`` without arguments
        whenever the task is read and has not ended. Raises InvalidOption for ``on_message``,
        WouldWaitForever at once if nothing can run the task while the caller waits, and Celery's
        RuntimeError inside a task.
        """
        if on_message is not None:
            raise InvalidOption(
                "on_message=... receives the messages of a result backend, and a durable task's"
                " result is in its row: use callback=... for the result, or on_interval=... for"
                " each look at the row."
            )
        unknown = sorted(options.keys() - _OF_BACKENDS)
        if unknown:
            raise TypeError(f"get() has no option {', '.join(unknown)}.")
        if disable_sync_subtasks:
            assert_will_not_block()
        deadline, pause = None if timeout is None else time.monotonic() + timeout, _FIRST_LOOK
        while True:
            row = self._rows().first()
            if row is not None and row.status in TERMINAL:
                value = self._value(row)
                if propagate and isinstance(value, BaseException):
                    raise value
                if callback is not None:
                    callback(self.id, value)
                return value
            parent = self.parent if row is None else None
            if parent is not None and not isinstance(parent.backend, DisabledBackend):
                # If an earlier step of a Celery chain failed, this task will not be created.
                self._maybe_reraise_parent_error()
            self._check_that_it_can_end(row)
            if on_interval is not None:
                on_interval()
            if deadline is not None and time.monotonic() + pause > deadline:
                raise CeleryTimeoutError(f"Task {self.id} has not ended after {timeout:g} s.")
            time.sleep(pause)
            pause = min(2 * pause, interval)

    wait = get

    def _check_that_it_can_end(self, row: Task | None) -> None:
        if row is None:
            if self.created_here:
                raise WouldWaitForever(
                    f"Task {self.id} is gone: its transaction was rolled back, or it was pruned."
                )
        elif is_uncommitted(row.pk):
            raise WouldWaitForever(
                f"Task {self.id} was created in a transaction that is still open, so no worker can"
                " see it: call get() after the transaction. In a test use"
                " captureOnCommitCallbacks(execute=True) with CELERY_TASK_ALWAYS_EAGER, or a"
                " transactional test."
            )
        elif row.status != Status.RUNNING and self.app.conf.task_always_eager:
            raise WouldWaitForever(
                f"Task {self.id} is {row.status} and CELERY_TASK_ALWAYS_EAGER is set: it ran, or"
                " will run, in no worker, and nothing here runs it at"
                f" {row.run_at:%Y-%m-%d %H:%M:%S %Z} or for its next attempt. Last error:"
                f" {row.last_error or 'none'}."
            )

    def ready(self) -> bool:
        """Whether the task has ended."""
        return self._rows().filter(status__in=TERMINAL).exists()

    def revoke(
        self,
        connection: Any = None,
        terminate: bool = False,
        signal: str | None = None,
        wait: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Cancel the task. A waiting task is cancelled at once, a running one is requested to stop;
        ``terminate=True`` ends its process.

        Without ``terminate`` no worker replies, so ``wait=True`` has no effect.
        """
        if terminate:
            super().revoke(connection, terminate=True, signal=signal, wait=wait, timeout=timeout)
        else:
            operator_actions.cancel(self._rows(), by="revoke")

    def forget(self) -> None:
        """Do nothing: retention deletes finished rows."""


def _state(row: Task) -> str:
    if row.status == Status.PENDING and row.failures:
        return str(states.RETRY)
    if row.status == Status.RUNNING and isinstance(row.progress, dict) and row.progress.get(STATE):
        return str(row.progress[STATE])
    return str(_CELERY_STATES[Status(row.status)])

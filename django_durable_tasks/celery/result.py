"""``DurableResult``: an AsyncResult that reads the task's row, with the stored exception."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from asgiref.sync import sync_to_async
from celery import states
from celery.app.control import Control
from celery.backends.base import DisabledBackend
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult, assert_will_not_block
from celery.worker import state as worker_state
from celery.worker.control import Panel, control_command, inspect_command
from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error, connections, transaction
from kombu.utils.functional import maybe_list

from django_durable_tasks import conf
from django_durable_tasks.celery.prepared_messages import parse
from django_durable_tasks.choices import TERMINAL, Status
from django_durable_tasks.conf import settings
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
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.store.tables import is_uncommitted
from django_durable_tasks.tasks import operator_actions
from django_durable_tasks.tasks.arguments import JSON_MAX_DEPTH, encode_result
from django_durable_tasks.texts import counted

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
    for name in description["name"].split("."):
        kind = getattr(kind, name, None)
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


if TYPE_CHECKING:
    # With a default, which Python 3.11 does not have at run time: a plain ``DurableResult`` is one
    # of anything.
    from typing_extensions import TypeVar as TypeVarWithDefault

    R_co = TypeVarWithDefault("R_co", covariant=True, default=Any)
else:
    R_co = TypeVar("R_co", covariant=True)


class DurableResult(AsyncResult, Generic[R_co]):
    """The result of one durable task; every question reads the row.

    For type checkers ``get()`` returns what the function does. It was JSON in between.
    """

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
            failure = (
                last.exception
                if last is not None and last.error_message == row.last_error
                else None
            )
            return rebuilt(failure) or BodyFailed(row.last_error)
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

    @overload
    def get(
        self,
        timeout: float | None = None,
        propagate: Literal[True] = True,
        interval: float = _LONGEST_LOOK,
        no_ack: bool = True,
        follow_parents: bool = True,
        callback: Callable[[str, Any], Any] | None = None,
        on_message: Any = None,
        on_interval: Callable[[], Any] | None = None,
        disable_sync_subtasks: bool = True,
        **options: Any,
    ) -> R_co: ...
    @overload
    def get(self, timeout: float | None = None, propagate: bool = True, **options: Any) -> Any: ...
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
        pauses = self._pauses(timeout, interval)
        while (ended := self._look(propagate)) is None:
            if on_interval is not None:
                on_interval()
            time.sleep(next(pauses))
        if callback is not None:
            callback(self.id, ended[0])
        return ended[0]

    wait = get

    @overload
    async def aget(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - as ``get`` has it
        propagate: Literal[True] = True,
        interval: float = _LONGEST_LOOK,
    ) -> R_co: ...
    @overload
    async def aget(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - as ``get`` has it
        propagate: bool = True,
        interval: float = _LONGEST_LOOK,
    ) -> Any: ...
    async def aget(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - as ``get`` has it
        propagate: bool = True,
        interval: float = _LONGEST_LOOK,
    ) -> Any:
        """Wait as ``get`` does without blocking the event loop. Other coroutines run meanwhile."""
        pauses, look = self._pauses(timeout, interval), sync_to_async(self._look)
        while (ended := await look(propagate)) is None:  # noqa: ASYNC110 - a row wakes no waiter
            await asyncio.sleep(next(pauses))
        return ended[0]

    def _look(self, propagate: bool) -> tuple[Any] | None:
        """Return the result of the task if it has ended. Raises its exception if ``propagate``, and
        an error if it cannot end while the caller waits.
        """
        row = self._rows().first()
        if row is not None and row.status in TERMINAL:
            value = self._value(row)
            if propagate and isinstance(value, BaseException):
                raise value
            return (value,)
        parent = self.parent if row is None else None
        if parent is not None and not isinstance(parent.backend, DisabledBackend):
            # If an earlier step of a Celery chain failed, this task will not be created.
            self._maybe_reraise_parent_error()
        self._check_that_it_can_end(row)
        return None

    def _pauses(self, timeout: float | None, interval: float) -> Iterator[float]:
        """Yield the pauses between two looks, in seconds; raises Celery's TimeoutError."""
        deadline, pause = None if timeout is None else time.monotonic() + timeout, _FIRST_LOOK
        while deadline is None or time.monotonic() + pause <= deadline:
            yield pause
            pause = min(2 * pause, interval)
        raise CeleryTimeoutError(f"Task {self.id} has not ended after {timeout:g} s.")

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


# Makes Celery's operations on an id, and the remote control of workers, use the task's row.


# Projects store the id that ``.delay()`` returned and pass it to ``celery.result.AsyncResult`` and
# ``app.control``. Both use only the result backend and messages. Celery has no hook there, so the
# methods are wrapped once. Ids generated by this package are UUIDs of version 7, Celery's are of
# version 4. An id of version 4 belongs to a durable task only after ``apply_async(task_id=...)``.
# For such an id ``state`` and similar properties read the row only if the result backend does not
# know the id. ``get()`` and ``revoke()`` query the database first.


logger = logging.getLogger("django_durable_tasks.calls")

_WRAPPED = "_django_durable_tasks"
_UNAVAILABLE = (Error, SynchronousOnlyOperation, AssertionError, RuntimeError)
"""Errors of the query. The last two are raised where SimpleTestCase or pytest-django forbids the
database.
"""


def known(ids: Iterable[object]) -> set[str]:
    """Return the ids for which a durable task exists.

    If none of them was generated by this package, an unavailable database is not an error, and the
    caller's transaction remains usable. Plain tasks do not need it.
    """
    candidates = {str(value): parsed for value in ids if (parsed := _parsed(value)) is not None}
    if not candidates:
        return set()
    has_durable = any(parsed.version == 7 for parsed in candidates.values())
    alias = settings().DATABASE
    # A savepoint, because PostgreSQL aborts a transaction after a failed statement.
    is_savepoint_needed = not has_durable and connections[alias].in_atomic_block
    try:
        with transaction.atomic(using=alias) if is_savepoint_needed else nullcontext():
            rows = set(_rows(candidates.values()).values_list("pk", flat=True))
    except _UNAVAILABLE:
        if has_durable:
            raise
        logger.debug(
            "Treated %s as those of plain tasks because the database did not respond.",
            counted(len(candidates), "id"),
            exc_info=True,
        )
        return set()
    return {text for text, parsed in candidates.items() if parsed in rows}


def _parsed(value: object) -> uuid.UUID | None:
    if isinstance(value, uuid.UUID):
        return value
    try:
        return uuid.UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _rows(ids: Iterable[uuid.UUID]) -> TaskQuerySet:
    rows: TaskQuerySet = Task.objects.using(settings().DATABASE).filter(pk__in=list(ids))
    return rows


def _is_ours(result: Any) -> bool:
    parsed = _parsed(result.id)
    return parsed is not None and parsed.version == 7


def _durable(result: Any) -> DurableResult | None:
    """Return the result of the row that has this id, or None."""
    return DurableResult(result.id, app=result.app) if known([result.id]) else None


def _task_meta(original: Callable[..., Any], self: Any) -> Any:
    if self._cache is not None:
        return original(self)
    first = _is_ours(self) or isinstance(self.backend, DisabledBackend)
    durable = _durable(self) if first else None
    if durable is None:
        meta = original(self)
        if first or meta["status"] != states.PENDING:
            return meta
        durable = _durable(self)
        if durable is None:
            return meta
    return durable._get_task_meta()


def _get(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    durable = None if self.ignored or self._cache is not None else _durable(self)
    return original(self, *args, **kwargs) if durable is None else durable.get(*args, **kwargs)


def _native_join(original: property, self: Any) -> bool:
    return False if _is_ours(self) else bool(original.fget(self))  # type: ignore[misc]


def _revoke(
    original: Callable[..., Any], self: Any, task_id: Any, *args: Any, **kwargs: Any
) -> Any:
    """Cancel durable tasks in the caller's transaction. Processes are terminated after it has
    committed.

    Raises WouldWaitForever if the caller is inside a transaction and requests replies of the
    workers.
    """
    ids = [str(value) for value in maybe_list(task_id) or []]
    durable = known(ids)
    if not durable:
        return original(self, task_id, *args, **kwargs)
    if kwargs.get("reply") and connections[settings().DATABASE].in_atomic_block:
        # A worker cancels the rows too before it replies, so it would wait for the locks of this
        # transaction.
        raise WouldWaitForever(
            f"Revoking {', '.join(sorted(durable))} with wait=True or reply=True inside a"
            " transaction: workers reply only after it has committed. Leave wait and reply out, or"
            " revoke after the transaction."
        )
    operator_actions.cancel(_rows(map(uuid.UUID, durable)), by="revoke")
    celery_ids = [value for value in ids if value not in durable]
    terminate = kwargs.get("terminate", args[1] if len(args) > 1 else False)
    if kwargs.get("reply"):
        return original(self, ids, *args, **kwargs)
    if terminate:
        send = partial(original, self, sorted(durable), *args, **kwargs)
        transaction.on_commit(send, using=settings().DATABASE)
    return original(self, celery_ids, *args, **kwargs) if celery_ids else None


def _wrap(owner: type, name: str, by: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    if getattr(original, _WRAPPED, False):
        return
    method = wraps(original)(lambda self, *args, **kwargs: by(original, self, *args, **kwargs))
    setattr(method, _WRAPPED, True)
    setattr(owner, name, method)


# Makes the remote control commands ``revoke``, ``terminate`` and ``query_task`` of a worker accept
# the id of a durable task.
#
# ``celery control``, ``celery inspect`` and Flower send the id that the user entered. Each message
# has its own id, so the worker translates the id of the task to those of its messages.


_runs_logger = logging.getLogger("django_durable_tasks.runs")


def _messages(ids: Collection[str]) -> dict[str, str]:
    """Return the ids of the messages that this worker has received for these tasks, with the ids of
    the tasks.
    """
    by_task_id = {parsed: value for value in ids if (parsed := _parsed(value)) is not None}
    envelopes = (parse(request_id) for request_id in list(worker_state.requests))
    return {
        envelope.celery_id: by_task_id[envelope.task_id]
        for envelope in envelopes
        if envelope and envelope.task_id in by_task_id
    }


def _cancel(ids: Collection[str]) -> set[str]:
    """Cancel the durable tasks among these ids; return them. Every worker does so. Repetition has
    no effect.
    """
    try:
        with dedicated_connection():
            durable = known(ids)
            if durable:
                operator_actions.cancel(_rows(map(uuid.UUID, durable)), by="revoke")
            return durable
    except Error as error:
        _runs_logger.error(
            "The tasks %s were not cancelled: %s", ", ".join(sorted(ids)), type(error).__name__
        )
        return set()


def connect_remote_control() -> None:
    """Make Celery's clients and workers accept the ids of durable tasks; called once per
    process.
    """
    _wrap(AsyncResult, "_get_task_meta", _task_meta)
    _wrap(AsyncResult, "get", _get)
    AsyncResult.wait = AsyncResult.get
    _wrap(Control, "revoke", _revoke)
    native = AsyncResult.supports_native_join
    AsyncResult.supports_native_join = property(partial(_native_join, native))
    if getattr(Panel.data["revoke"], "of_durable_tasks", False):
        return
    celerys_revoke, celerys_query = Panel.data["revoke"], Panel.data["query_task"]

    @control_command(variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
    def revoke(
        state: Any, task_id: Any, terminate: bool = False, signal: Any = None, **kwargs: Any
    ) -> Any:
        """Revoke task by task id (or list of ids)."""
        ids = {str(value) for value in maybe_list(task_id) or []}
        durable = _cancel(ids)
        celerys = (ids - durable) | (set(_messages(durable)) if terminate else set())
        if durable and not celerys:
            return {"ok": f"tasks {durable} cancelled"}
        return celerys_revoke(state, celerys, terminate, signal, **kwargs)

    @control_command(
        variadic="task_id", args=[("signal", str)], signature="<signal> [id1 [id2 [... [idN]]]]"
    )
    def terminate(state: Any, signal: Any, task_id: Any, **_: Any) -> Any:
        """Terminate task by task id (or list of ids)."""
        return revoke(state, task_id, terminate=True, signal=signal)

    @inspect_command(variadic="ids", signature="[id1 [id2 [... [idN]]]]")
    def query_task(state: Any, ids: Any, **kwargs: Any) -> Any:
        """Query for task information by id."""
        request_ids = [str(value) for value in maybe_list(ids) or []]
        messages = _messages(request_ids)
        reply = celerys_query(state, [*request_ids, *messages], **kwargs)
        return {messages.get(request_id, request_id): entry for request_id, entry in reply.items()}

    revoke.of_durable_tasks = True

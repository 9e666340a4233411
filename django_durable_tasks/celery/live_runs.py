"""The runs in progress in this process, and the renewal of their leases."""

from __future__ import annotations

import json
import logging
import math
import mmap
import os
import struct
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from billiard import current_process
from celery import current_app
from django.db import DataError, Error, IntegrityError

from django_durable_tasks import conf, registry
from django_durable_tasks.celery.positions import Iteration, Position
from django_durable_tasks.choices import Status
from django_durable_tasks.exceptions import InvalidOption, RunCancelled, RunLost, RunOutOfTime
from django_durable_tasks.masking import shortened
from django_durable_tasks.models import Task, Tenant
from django_durable_tasks.states.machine import Outcome, Verdict
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks import attempts
from django_durable_tasks.tasks.arguments import JSON_MAX_DEPTH
from django_durable_tasks.texts import counted
from django_durable_tasks.workflows.builder import AddedTasks, FollowUp

# The leases of all runs are renewed first, by a statement that contains nothing that a task
# function supplied. What the functions have reported is written after it.
#
# The thread runs in the process that executes the tasks. A process that is stuck or killed renews
# nothing, so its leases expire. A run enters when it starts and leaves when its ending is recorded
# or could not be recorded. In the second case its lease expires too.


logger = logging.getLogger("django_durable_tasks.runs")
_RETRY_PAUSE = 1.0
"""Seconds between attempts for leases that were not renewed. The first attempt has no pause."""


class LeaseHeartbeat:
    """A thread that renews the leases of all runs of the process in one UPDATE.

    It does so every HEARTBEAT seconds of the monotonic clock. The thread starts with the first run.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[uuid.UUID, LiveRun] = {}
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def add(self, *lives: LiveRun) -> None:
        """Renew the leases of these runs from now on."""
        with self._lock:
            self._runs.update((live.run.run_id, live) for live in lives)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._renew_forever, name="durable-heartbeat", daemon=True
                )
                self._thread.start()

    def remove(self, *lives: LiveRun) -> None:
        """Stop renewing the leases of these runs. Idempotent."""
        with self._lock:
            for live in lives:
                self._runs.pop(live.run.run_id, None)

    def renews(self, live: LiveRun) -> bool:
        """Return whether the lease of this run is being renewed."""
        return live.run.run_id in self._runs

    def _renew_forever(self) -> None:
        next_at = time.monotonic()
        while True:
            next_at = max(next_at + conf.settings().HEARTBEAT, time.monotonic())
            if self._stop.wait(max(0.0, next_at - time.monotonic())):
                return
            behind = self._renew_or_log(None)
            pause = 0.0
            while behind and time.monotonic() < next_at + conf.settings().HEARTBEAT:
                if self._stop.wait(pause):
                    return
                behind, pause = self._renew_or_log(behind), _RETRY_PAUSE

    def _renew_or_log(self, behind: dict[uuid.UUID, LiveRun] | None) -> dict[uuid.UUID, LiveRun]:
        try:
            return self.renew(behind)
        except Exception:
            logger.exception(
                "The heartbeat of the runs of this process failed. If it keeps failing, the runs"
                " are marked LOST."
            )
            return {}

    def renew(self, behind: dict[uuid.UUID, LiveRun] | None = None) -> dict[uuid.UUID, LiveRun]:
        """Renew the leases of all runs, or of those in ``behind``, and then write their progress;
        return the ones not renewed.

        Runs that exceed their time limit are left out.
        """
        with self._lock:
            named = (
                self._runs
                if behind is None
                else {key: live for key, live in behind.items() if key in self._runs}
            )
            runs = {key: live for key, live in named.items() if not live.out_of_time}
        behind = self._renew(runs) if runs else {}
        self._write_progress([live for key, live in runs.items() if key not in behind])
        return behind

    def _renew(self, runs: dict[uuid.UUID, LiveRun]) -> dict[uuid.UUID, LiveRun]:
        """Renew these leases, except those of locked rows.

        Waiting for a locked row would delay the renewal of all other leases.
        """
        began = time.monotonic()
        beats = [
            (live.run.task_id, live.run.epoch, live.run.run_id, live.lease)
            for live in runs.values()
        ]
        try:
            with dedicated_connection(at_once=True):
                renewed = attempts.heartbeat(beats)
                unrenewed = [beat for beat in beats if beat[2] not in renewed]
                locked = attempts.still_owned(unrenewed) if unrenewed else set()
        except Error as error:
            logger.warning(
                "Could not renew the leases of %s: %s",
                counted(len(runs), "run"),
                type(error).__name__,
            )
            return runs
        if locked:
            logger.info(
                "Could not renew the leases of %s because rows are locked. Retrying.",
                counted(len(locked), "run"),
            )
        for key, live in runs.items():
            if key in renewed:
                live.renewed, live.cancel_requested = began, renewed[key]
            elif key not in locked and self.renews(live):
                live.lost = True
                self.remove(live)
            live.interrupt_if_ended()
        return {key: live for key, live in runs.items() if key in locked}

    def _write_progress(self, lives: Sequence[LiveRun]) -> None:
        """Write what these runs have reported since the last heartbeat.

        If that fails, each report is written alone, for at most half of HEARTBEAT. One that the
        database refuses is not written again; any other is repeated at the next heartbeat.
        """
        reports = [
            (live, live.progress)
            for live in lives
            if live.progress is not None and live.progress is not live.written_progress
        ]
        until = time.monotonic() + conf.settings().HEARTBEAT / 2
        if not reports or self._wrote(reports) or len(reports) == 1:
            return
        for report in reports:
            if time.monotonic() < until:
                self._wrote([report])

    def _wrote(self, reports: Sequence[tuple[LiveRun, str]]) -> bool:
        """Write these reports together; return whether there was no error."""
        try:
            with dedicated_connection(at_once=True):
                written = attempts.write_progress(
                    [
                        (live.run.task_id, live.run.epoch, live.run.run_id, text)
                        for live, text in reports
                    ]
                )
        except Exception as error:  # noqa: BLE001 - it must not end the heartbeat
            ((live, text), *other_reports) = reports
            if not other_reports:
                refused = isinstance(error, DataError | IntegrityError)
                live.written_progress = text if refused else live.written_progress
                logger.warning(
                    "The progress of run %s was not written: %s",
                    live.run.celery_id,
                    type(error).__name__,
                    extra={"task_id": str(live.run.task_id)},
                )
            return False
        for live, text in reports:
            if live.run.run_id in written:
                live.written_progress = text
        return True


# The runs in progress in this process: of the current thread, by message, and by lease.


class Success(NamedTuple):
    """The success that a function returned: the outcome, and the tasks to create with it."""

    outcome: Outcome
    followups: tuple[FollowUp, ...]


def followups_of(value: Any) -> tuple[FollowUp, ...]:
    """Return the schedules and workflows that a task function returned: one, a list of them, or
    none.
    """
    if isinstance(value, FollowUp):
        return (value,)
    several = isinstance(value, list | tuple) and all(isinstance(item, FollowUp) for item in value)
    return tuple(value) if several else ()


class LiveRun:
    """A run in progress. Times are seconds of the monotonic clock."""

    def __init__(
        self,
        run: Run,
        *,
        lease: float,
        timeout: float | None,
        worker: str,
        eager: bool,
        soft_timeout: float | None = None,
    ) -> None:
        self.run, self.worker, self.eager = run, worker, eager
        self.lease, self.timeout, self.soft_timeout = lease, timeout, soft_timeout
        self.began = self.renewed = time.monotonic()
        # Read now, so that nothing has to be read between the return of the function and the
        # record of its ending.
        settings = conf.settings()
        self.result_limits = settings.RESULT_MAX_BYTES, JSON_MAX_DEPTH
        self.write_timeout = settings.RESULT_WRITE_TIMEOUT
        self.cancel_requested = self.lost = False
        self.progress: str | None = None
        """What the function reported last, as JSON. It was checked and encoded at the report."""
        self.reports_progress = False
        """Whether the function has reported it. Otherwise its steps do."""
        self.written_progress: str | None = None
        """What a heartbeat has written of it, or the database refused."""
        self.interrupt: Callable[[BaseException], object] | None = None
        """Ends the function with this exception, if it is a coroutine."""
        self.called = False
        """Whether the function, or a hook before it, was called."""
        self.success: Success | None = None
        """The ending that the return of the function decided; no later error changes it."""
        self.value: Any = None
        """What Celery receives as the result."""
        self.recorded = False
        self.growth: AddedTasks | None = None
        self.verdict: Verdict | None = None
        self.args: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        self.max_attempts: int | None = None
        """The limit that ``self.retry(max_retries=…)`` set."""
        self.gives_up = False
        """Whether the next error ends the task without a retry."""
        self.requested_retry: BaseException | None = None
        """The exception of ``self.retry(throw=False)``, raised when the function returns."""
        self.position: Position | None = None
        """How far the task has come, if the function has asked."""
        self.blocks_before: Mapping[str, int] = {}
        """How many ``atomic`` blocks were open on each connection when the function was called."""

    @property
    def out_of_time(self) -> bool:
        """Whether the function exceeds its time limit, for pools in which Celery cannot interrupt
        it.
        """
        return (
            self.timeout is not None
            and self.success is None
            and time.monotonic() - self.began > self.timeout
        )

    def interrupt_if_ended(self) -> None:
        """Interrupt the function, if it can be, when it was cancelled or has lost its task."""
        interrupt = self.interrupt
        if interrupt is not None and (self.lost or self.cancel_requested):
            interrupt(RunLost() if self.lost else RunCancelled())

    @property
    def lease_may_be_over(self) -> bool:
        """Whether no renewal has succeeded for the lease minus one heartbeat interval.

        Another worker may have started the task since. An eager run has no heartbeat.
        """
        is_late = time.monotonic() - self.renewed > self.lease - conf.settings().HEARTBEAT
        return is_late and not self.eager

    def report(self, progress: str | None) -> None:
        """Let the next heartbeat write what the function reports (JSON), and not its steps."""
        self.progress, self.reports_progress = progress, True

    @property
    def is_interrupted(self) -> bool:
        """Whether the worker is shutting down, so that the run should stop where it can."""
        return process_runs.are_stopping and not self.eager

    def check(self, *, is_guarded: bool = False) -> None:
        """Raise RunCancelled, RunLost or RunOutOfTime if the function should stop.

        ``is_guarded``: a write that requires the lease follows, so that it is not estimated.
        """
        if self.lost:
            raise RunLost
        if self.cancel_requested:
            raise RunCancelled
        if self.out_of_time:
            raise RunOutOfTime(f"The run is over its time limit of {self.timeout:g} s.")
        if self.lease_may_be_over and not is_guarded:
            raise RunLost(
                "No heartbeat reached the database for almost a lease: another run may have taken"
                " over."
            )

    def succeed(self, value: object, outcome: Outcome) -> None:
        """Decide the success of the run. Its follow-ups are the returned and the added tasks."""
        returned = followups_of(value)
        added = () if self.growth is None or not len(self.growth) else (self.growth,)
        self.value = None if returned else value
        self.success = Success(outcome, (*returned, *added))

    @property
    def decided(self) -> Success:
        """The success. Raises RuntimeError if the function has not returned."""
        if self.success is None:
            raise RuntimeError(f"The function of run {self.run.celery_id} has not returned.")
        return self.success

    @property
    def has_succeeded(self) -> bool:
        """Whether the success of this run is recorded."""
        return self.verdict is not None and self.verdict.status == Status.SUCCESS


_current: ContextVar[LiveRun | None] = ContextVar("durable_tasks_run", default=None)
"""The run whose function this thread or coroutine executes."""


_STARTS = "dQ"
"""The shared memory of a worker: when the last run started, and the number of starts."""
_RETURNED = struct.Struct("=16sq")
"""The run of a child whose function returned last: task and epoch."""
# More than a pool has children. If there were more, some runs that returned would be regarded as
# interrupted by their time limit.
_CHILDREN = 1024


class LiveRuns:
    """The runs of one process. There is one object per process; a forked child clears it."""

    def __init__(self) -> None:
        self.leases = LeaseHeartbeat()
        self._by_celery_id: dict[str, LiveRun] = {}
        self._place: int | None = None
        """Where in the shared memory this process writes what has returned."""
        self.share_last_start()

    def clear(self) -> None:
        """Remove the runs of the parent process; called in a forked child."""
        self.leases, self._place = LeaseHeartbeat(), None
        self._by_celery_id.clear()

    def current(self) -> LiveRun | None:
        """Return the run whose function this thread or coroutine executes."""
        return _current.get()

    @contextmanager
    def running(self, live: LiveRun, *, in_batch: bool = False) -> Iterator[None]:
        """Make this the current run. `find` returns it until `forget` is called."""
        starts = self.starts() if in_batch else self.starts() + 1
        # Without a lock, which a process that is killed would keep. A lost increment does no harm.
        struct.pack_into(_STARTS, self._last_start, 0, time.monotonic(), starts)
        token = _current.set(live)
        self._by_celery_id[live.run.celery_id] = live
        try:
            yield
        finally:
            _current.reset(token)

    def find(self, celery_id: str) -> LiveRun | None:
        """Return the run that this message started in this process."""
        return self._by_celery_id.get(celery_id)

    def forget(self, celery_id: str) -> None:
        """Remove the run of a finished message."""
        self._by_celery_id.pop(celery_id, None)

    def share_last_start(self) -> None:
        """Share memory with the processes that are forked from now on."""
        self._last_start = mmap.mmap(-1, struct.calcsize(_STARTS))
        self._returned = mmap.mmap(-1, _CHILDREN * _RETURNED.size)
        self._stopping = mmap.mmap(-1, 1)

    def stop(self) -> None:
        """Let the runs of this worker stop where the next attempt can continue. Safe in a signal
        handler.
        """
        self._stopping[0] = 1

    @property
    def are_stopping(self) -> bool:
        """Whether the worker of this process is shutting down."""
        return self._stopping[0] == 1

    def share_returned(self, live: LiveRun) -> None:
        """Let the parent of this child process know that the function of this run has returned."""
        if self._place is None:
            self._place = int(getattr(current_process(), "index", 0)) % _CHILDREN * _RETURNED.size
        _RETURNED.pack_into(self._returned, self._place, live.run.task_id.bytes, live.run.epoch)

    def has_returned(self, task_id: uuid.UUID, epoch: int) -> bool:
        """Return whether this run is the last one of a child whose function has returned."""
        run = task_id.bytes, epoch
        return any(slot == run for slot in _RETURNED.iter_unpack(self._returned))

    def last_start(self) -> float | None:
        """Return when this process or a child last started a run; None before the first."""
        return float(struct.unpack_from(_STARTS, self._last_start, 0)[0]) or None

    def starts(self) -> int:
        """Return about how many runs this process and its children have started outside of
        batches.
        """
        return int(struct.unpack_from(_STARTS, self._last_start, 0)[1])


process_runs = LiveRuns()
os.register_at_fork(after_in_child=process_runs.clear)


# ``self.durable``: the current run, for the task function; and runs over many items.


class RunContext:
    """The current run."""

    def __init__(self, live: LiveRun) -> None:
        self._live = live

    @property
    def task(self) -> Task:
        """The task of this run, read from the database."""
        row: Task = Task.objects.using(conf.settings().DATABASE).get(pk=self._live.run.task_id)
        return row

    @property
    def tenant(self) -> Tenant:
        """The tenant of the task."""
        return Tenant.objects.using(conf.settings().DATABASE).get(pk=self._live.run.tenant_id)

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1. A replay continues the numbers."""
        return self._live.run.attempt

    @property
    def idempotency_key(self) -> str:
        """The key for outside systems: the same for every attempt and replay of this task."""
        return self._live.run.idempotency_key

    @property
    def fence(self) -> int:
        """A number that increases with each run of the task. Outside systems can refuse lower
        ones.
        """
        return self._live.run.epoch

    @property
    def workflow(self) -> AddedTasks:
        """The workflow of this task. What is added to it is written with the success of this run.

        Tasks that depend on this task also wait for the last added ones. Raises InvalidOption if
        the task is not part of a workflow.
        """
        live = self._live
        if live.run.workflow_id is None:
            raise InvalidOption("self.durable.workflow: this task is no part of a workflow.")
        if live.growth is None:
            live.growth = AddedTasks("growth")
        return live.growth

    @property
    def cancelled(self) -> bool:
        """Whether the function should return: the task was cancelled, its lease was lost, or its
        time is over.

        Heartbeats update the first two.
        """
        live = self._live
        return live.cancel_requested or live.lost or live.lease_may_be_over or live.out_of_time

    def check(self) -> None:
        """Raise RunCancelled, RunLost or RunOutOfTime if the function should stop. For long
        loops.
        """
        self._live.check()

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Set the progress of the run. The next heartbeat writes it to ``Task.progress``. Raises
        InvalidOption.
        """
        whole = None if total is None else _number("total", total)
        progress = {
            "done": _number("done", done),
            "total": whole,
            "note": shortened(str(note), 200),
        }
        self._live.report(json.dumps(progress))

    @property
    def _position(self) -> Position:
        if self._live.position is None:
            self._live.position = Position(self._live)
        return self._live.position

    def step(
        self,
        name: str,
        function: Callable[..., Any] | None = None,
        /,
        *args: Any,
        atomic: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Call the function, store what it returns, and return that; if an earlier attempt has done
        so, return the stored value without a call. The value is JSON.

        Without a function it is a loop, ``for _ in self.durable.step("name"):``, whose block an
        attempt skips if an earlier one has finished it.

        A step that was interrupted is done again: at least once. With ``atomic`` what it writes to
        the database of the tasks, and that it is done, are one transaction. Raises InvalidOption,
        UnserializableResult, ResultTooLarge, and RunCancelled, RunLost or RunOutOfTime if the
        function should stop.
        """
        if function is None:
            if args or kwargs:
                raise InvalidOption(f"step({name!r}): give the function of these arguments.")
            return self._position.block(name, atomic=atomic)
        return self._position.call(name, function, args, kwargs, atomic=atomic)

    def iterate(
        self,
        items: Iterable[Any],
        *,
        step: str,
        batch: int = 100,
        throttle: str | None = None,
        atomic: bool = False,
        total: int | None = None,
    ) -> Iteration:
        """Return an iterator over the items that no earlier attempt of the task has finished.

        ``items``: a queryset, which is read in batches by its primary key or by its own order, or
        any iterable that yields the same items in each attempt. ``throttle``: at most so many
        items, such as "200/s". ``total``: their number, for the progress.

        After each batch the position is recorded, at least once a second between two items, and
        when the worker shuts down: then the run stops, and another worker continues. An item whose
        block was interrupted is repeated. With ``atomic`` a batch, and the position after it, are
        one transaction. Raises what ``step`` raises.
        """
        return self._position.iteration(
            items, step, batch=batch, throttle=throttle, atomic=atomic, total=total
        )


def _number(name: str, value: Any) -> int | float:
    """Return a number that every database accepts in JSON; raises InvalidOption."""
    try:
        number = value if isinstance(value, int) else float(value)
    except Exception:  # noqa: BLE001 - a value's own code may raise anything
        number = math.nan
    if not -(2**63) <= number < 2**63:
        raise InvalidOption(f"progress({name}=...): give a finite number below 2**63.")
    return number


# Runs a durable task for many items, one after the other, inside one run.


def called_for_each(name: str, items: Iterable[Any], *, spread: bool) -> list[Any]:
    """Return the results of the durable task for each item. With ``spread`` an item is a tuple of
    positional arguments.

    Raises UnknownTask and the exceptions of the task.
    """
    registered = registry.get(name)
    task, results = current_app.tasks[registered.options.name], []
    for item in items:
        args = list(item) if spread else [item]
        if registered.types is not None:
            args, _ = registered.types.from_json(name, args, {})
        value = task(*args)
        results.append(task.wait_for(value) if isinstance(value, Coroutine) else value)
    return results

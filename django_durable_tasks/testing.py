"""Run and check durable tasks in tests, without a broker and without a worker.

``drain()`` runs what is due in the process of the test, with the state machine of a real worker
and scheduler: statuses, log entries, retries, dead letters, dependents and schedules. It works
inside ``TestCase`` and pytest-django's ``db``, in whose transaction everything happens, and in
transactional tests.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, overload

from asgiref.sync import sync_to_async
from celery import current_app
from celery.exceptions import Ignore
from celery.exceptions import Retry as CeleryRetry
from django.conf import settings as django_settings
from django.db import connections, transaction
from django.db.backends.signals import connection_created
from django.db.models import Q
from django.db.models.functions import Coalesce
from django.test import override_settings

from django_durable_tasks import conf, ports, process_state, registry
from django_durable_tasks.celery import gate
from django_durable_tasks.celery.inspect import load_tasks
from django_durable_tasks.celery.live_runs import LiveRun, process_runs
from django_durable_tasks.celery.positions import Position
from django_durable_tasks.celery.prepared_messages import celery_id_of, headers_of
from django_durable_tasks.choices import Status
from django_durable_tasks.dependencies import resolve
from django_durable_tasks.limits import overlap, release
from django_durable_tasks.limits.backpressure import paused_queues, read_heads
from django_durable_tasks.models import RecurringTask, Task, TaskExecutionLog
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.schedules import sync, trigger
from django_durable_tasks.schedules.schedule_cache import agenda_of
from django_durable_tasks.states import claims, inserts
from django_durable_tasks.states.demand import QueueDemand
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.store import clock
from django_durable_tasks.store import connections as dedicated
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import RunLocation
from django_durable_tasks.tasks import attempts, requests
from django_durable_tasks.tasks.attempts import Refusal
from django_durable_tasks.tasks.claim import claim_some, claim_these
from django_durable_tasks.texts import counted
from django_durable_tasks.workflows import runs

logger = logging.getLogger("django_durable_tasks.runs")

__all__ = [
    "BackendConformance",  # noqa: F822 - __getattr__ returns it
    "CapturedTasks",
    "acrash",
    "adrain",
    "aperform",
    "assert_nothing_scheduled",
    "assert_scheduled",
    "capture_tasks",
    "crash",
    "drain",
    "fire",
    "fires_between",
    "perform",
    "travel",
]


def __getattr__(name: str) -> Any:
    if name == "BackendConformance":  # it needs django.tasks
        return import_module("django_durable_tasks.backend_conformance").BackendConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# The time of tests. The engine reads the clock of the database by four functions of SQL, and on
# SQLite the clock of the host too. While a test travels, a wrapper adds the distance to the
# functions in each statement.

# The clock of SQLite shows milliseconds: a task that is due at a microsecond is due one later.
_PRECISION = timedelta(milliseconds=1)
_FUNCTIONS = {
    "postgresql": (
        re.compile(r"\b(CLOCK_TIMESTAMP|STATEMENT_TIMESTAMP)\(\)", re.IGNORECASE),
        r"(\1() + INTERVAL '{seconds:f} seconds')",
    ),
    "mysql": (
        re.compile(r"\b(UTC_TIMESTAMP)\(6\)", re.IGNORECASE),
        r"(\1(6) + INTERVAL {microseconds:d} MICROSECOND)",
    ),
    "sqlite": (re.compile(r"(%f000', 'NOW')", re.IGNORECASE), r"\1, '{seconds:+f} seconds'"),
}


def _add_distance(execute: Any, sql: Any, parameters: Any, many: bool, context: Any) -> Any:
    pattern, replacement = _FUNCTIONS[context["connection"].vendor]
    seconds = clock.travelled.total_seconds()
    moved = replacement.format(seconds=seconds, microseconds=round(seconds * 1e6))
    if isinstance(sql, str) and seconds:
        sql = pattern.sub(moved, sql)
    return execute(sql, parameters, many, context)


def _wrap(connection: Any, **_: Any) -> None:
    if connection.vendor in _FUNCTIONS and _add_distance not in connection.execute_wrappers:
        connection.execute_wrappers.append(_add_distance)


def _move_to(to: datetime) -> None:
    """Let the database's clock show this time, and forget what was read at another one."""
    clock.travelled += to - database_now()
    process_state.renew()


@contextmanager
def travel(to: datetime | timedelta) -> Iterator[None]:
    """Let the clock of the database show another time for the engine in this process while the
    block runs: an instant, or a distance from now. The clock goes on from there.

    It moves due times, schedules, limits and expiry, and nothing else: functions that call
    ``timezone.now()`` need a library that moves the clock of Python, too. Values that a column's
    default writes, such as ``created_at``, are not moved.
    """
    before = clock.travelled
    connection = connections[conf.settings().DATABASE]
    # The distance does not show whether this block is nested: that of an outer one may be zero.
    is_outermost = _add_distance not in connection.execute_wrappers
    dedicated.close_all()
    connection_created.connect(_wrap)
    connection.ensure_connection()
    _wrap(connection)
    try:
        _move_to(database_now() + to if isinstance(to, timedelta) else _aware(to))
        yield
    finally:
        clock.travelled = before
        if is_outermost:
            connection_created.disconnect(_wrap)
            connection.execute_wrappers.remove(_add_distance)
        dedicated.close_all()
        process_state.renew()


def _aware(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError(f"{instant!r} has no time zone: give an aware datetime.")
    return instant.astimezone(UTC)


# Runs tasks in the process of the test.


_resolve_endings_of = resolve.resolve_endings_of


def _publish_nothing(_: Any) -> None:
    """Leave tasks QUEUED; the next step of ``drain`` takes them from there."""


@contextmanager
def _in_this_process(now: datetime | None = None, *, workflows: bool = True) -> Iterator[None]:
    """Let the engine use the connection of the test, and publish nothing."""
    settings = {**getattr(django_settings, "DURABLE_TASKS", {}), "FAST_PATH": False}
    before = ports.publish, ports.publish_batches
    if problem := load_tasks():  # rows name tasks of modules that the test does not import
        raise ImportError(f"The modules of tasks cannot be imported: {problem}")
    with ExitStack() as stack:
        stack.enter_context(dedicated.connection_of_caller())
        stack.enter_context(override_settings(DURABLE_TASKS=settings))
        process_state.renew()
        if now is not None:
            stack.enter_context(travel(_aware(now) + _PRECISION))
        vars(ports).update(publish=_publish_nothing, publish_batches=_publish_nothing)
        if not workflows:
            # The dependents of an ended task wait.
            vars(resolve).update(resolve_endings_of=lambda _: resolve.ResolveResult())
        try:
            yield
        finally:
            ports.publish, ports.publish_batches = before
            vars(resolve).update(resolve_endings_of=_resolve_endings_of)
            process_state.renew()


def _tasks() -> Any:
    return Task.objects.using(conf.settings().DATABASE)


def _run_hooks(before: Mapping[str, int]) -> None:
    """Call the ``on_commit`` callbacks that were registered since, as the end of the transaction of
    a worker does. In a test that commits they have been called. Errors of robust ones are logged.
    """
    for connection in connections.all(initialized_only=True):
        first = before.get(connection.alias, 0)
        while connection.in_atomic_block and len(connection.run_on_commit) > first:
            hook: Any = connection.run_on_commit.pop(first)  # the stubs lack the third value
            _, callback, is_robust = hook
            try:
                callback()
            except Exception:
                if not is_robust:
                    raise
                logger.exception("The robust on_commit callback %r failed.", callback)


def _hooks() -> dict[str, int]:
    every = connections.all(initialized_only=True)
    return {connection.alias: len(connection.run_on_commit) for connection in every}


def _run(message: TaskMessage) -> Any:
    """Run one task as a worker does; return the value or the exception that Celery sees."""
    task = current_app.tasks.get(message.name)
    if task is None:
        raise LookupError(
            f"No durable task is registered as {message.name!r} in this process: import its module."
        )
    before = _hooks()
    headers, result = {**(message.headers or {}), **headers_of(message)}, None
    try:
        result = task.apply(task_id=celery_id_of(message), headers=headers, throw=False).result
    except SystemExit as error:  # ends the process of a worker, whose attempt has failed
        result = error
    _run_hooks(before)
    return result


def _resolve(*, workflows: bool) -> None:
    """Do what a leader does between two attempts, until nothing is left of it."""
    now, batch = database_now(), conf.settings().BATCH_SIZE
    steps: list[Callable[[], int]] = [
        lambda: requests.apply_left(batch),
        lambda: release.release_waiting(now, batch),
        lambda: overlap.release(batch),
    ]
    if workflows:
        steps += [
            lambda: resolve.resolve_endings(batch).events,
            lambda: runs.count_endings(batch),
            lambda: runs.finish_starts(now, batch),
            lambda: runs.cancel_late(now, batch),
            lambda: runs.cancel_called_off(batch),
        ]
    before = _hooks()
    changed = True
    while changed:
        changed = sum(step() for step in steps) > 0
        _run_hooks(before)


def _claim(queues: Collection[str] | None, node: uuid.UUID) -> list[TaskMessage]:
    """Claim the due tasks of the queues. What waits for a message or a batch needs none here."""
    waiting = _tasks() if queues is None else _tasks().filter(queue__in=queues)
    claims.return_to_pending(waiting.queued(), Coalesce("ready_at", "run_at"))
    if waiting.waiting_for_batch().exists():
        inserts.edit(waiting.waiting_for_batch(), in_batch=False)
    now, paused = database_now(), paused_queues()
    demands = [
        QueueDemand(head.queue, 1, levels=head.levels)
        for head in read_heads(now)
        if head.queue not in paused and (queues is None or head.queue in queues)
    ]
    return claim_some(demands, now, 1, node) if demands else []


def _advance(queues: Collection[str] | None, *, retries: bool, scheduled: bool | datetime) -> bool:
    """Make the next attempt due, or move the clock to the next delayed task; return whether there
    was one.
    """
    waiting = _tasks().pending().filter(due_at__gt=database_now(), due_at__lt=NEVER)
    if queues is not None:
        waiting = waiting.filter(queue__in=queues)
    until = scheduled if isinstance(scheduled, datetime) else NEVER
    allowed = Q(attempts__gt=0) if retries else Q(pk=None)
    if scheduled:
        allowed |= Q(due_at__lte=until, attempts=0)
    first = waiting.filter(allowed).order_by("due_at").first()
    if first is None:
        return False
    if scheduled:
        _move_to(first.due_at + _PRECISION)
    else:
        # The clock stays: tasks that are due earlier than this attempt are not to run.
        inserts.edit(_tasks().filter(pk=first.pk), due_at=database_now())
    return True


def drain(
    queues: Collection[str] | None = None,
    *,
    now: datetime | None = None,
    scheduled: bool | datetime = False,
    retries: bool = True,
    schedules: bool = False,
    workflows: bool = True,
    limit: int = 1_000,
    raise_errors: bool = True,
) -> list[TaskExecutionLog]:
    """Run what is due in this process until nothing is left; return the attempts in their order.

    ``queues``: only tasks of these. ``now``: the time that the engine's clock shows meanwhile.
    ``scheduled``: run delayed tasks too, each at its time, which the clock is moved to; with a
    datetime only those due by then. ``retries``: run further attempts, likewise, until the task
    succeeds or becomes a dead letter. ``schedules``: fire schedules that are due. ``workflows``:
    resolve the dependents of ended tasks, and end workflows. Tasks that the functions create are
    run too.

    Each function runs in a savepoint if the test has a transaction, and its ``on_commit`` callbacks
    are called after it. With ``raise_errors`` the exception of the first task that fails for good
    is raised, after its ending was recorded. Raises AssertionError after ``limit`` attempts.
    """
    if isinstance(queues, str):
        raise TypeError(f"drain({queues!r}): give a list of names, [{queues!r}].")
    node, number = uuid.uuid4(), 0
    seen = set(_logs().values_list("pk", flat=True))
    with _in_this_process(now, workflows=workflows), travel(timedelta()):
        while True:
            _resolve(workflows=workflows)
            if schedules:
                while trigger.fire_due(database_now(), conf.settings().BATCH_SIZE):
                    pass
            messages = _claim(queues, node)
            if not messages and not _advance(queues, retries=retries, scheduled=scheduled):
                break
            for message in messages:
                if number >= limit:
                    raise AssertionError(
                        f"drain() has run {limit:,} attempts and {message.name} is due: does a task"
                        " create itself again? Give limit= for more."
                    )
                number += 1
                result = _run(message)
                failed = _tasks().filter(pk=message.task_id, status=Status.FAILED)
                if raise_errors and failed.exists():
                    raise result
        return list(_logs().exclude(pk__in=seen).select_related("task").order_by("pk"))


def _logs() -> Any:
    return TaskExecutionLog.objects.using(conf.settings().DATABASE)


def perform(
    task: Any,
    /,
    *args: Any,
    attempt: int = 1,
    headers: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Run one attempt of a new task and return its result, or raise the exception of its function.

    Arguments and result make the way through JSON, and ``self.durable`` and ``self.request`` work.
    ``attempt``: the number that they show.
    """
    options: dict[str, Any] = {} if headers is None else {"headers": dict(headers)}
    _registered(task)
    with _in_this_process():
        row = task.using(max_attempts=max(attempt, 2), **options).schedule(*args, **kwargs)
        if attempt > 1:
            spent = {"attempts": attempt - 1, "failures": attempt - 1}
            _tasks().unguarded().filter(pk=row.pk).update(**spent)
        result = _run(_message_of(row))
        row.refresh_from_db()
    if row.status == Status.SUCCESS:
        return row.result
    error = result
    if isinstance(error, CeleryRetry) and error.exc is not None:
        error = error.exc
    if isinstance(error, BaseException) and not isinstance(error, Ignore):
        raise error
    raise AssertionError(f"{task.name} did not succeed: it is {row.status} ({row.reason}).")


def _message_of(row: Task) -> TaskMessage:
    """Claim a due task; return its message."""
    this = _tasks().filter(pk=row.pk)
    claims.return_to_pending(this.queued(), 0)
    if row.in_batch:
        inserts.edit(this, in_batch=False)
    messages = claim_these([row.pk], database_now(), uuid.uuid4())
    if not messages:
        row.refresh_from_db()
        raise AssertionError(
            f"{row.name} cannot start: it is {row.status}, due at {row.due_at}, and may wait for"
            f" {row.waiting_for_limit or 'a pause or its overlap key'}."
        )
    return messages[0]


def crash(task: Any, /, *args: Any, at: str = "after_body", **kwargs: Any) -> Task:
    """Run one attempt whose worker is killed, and return the task, which is run again later.

    ``task``: a task function, which is scheduled with the arguments, or a Task that is due. ``at``:
    ``after_body``, after the function returned and before its success was recorded,
    ``before_body``, or ``after_step``, after the first step or batch of ``self.durable`` that this
    attempt has recorded. The exception of a function that fails is raised. What the function wrote
    is kept, as by a worker without a transaction; of a task with ``atomic=True`` it is rolled back.
    Run ``drain()`` next and check that nothing was done twice.
    """
    if at not in ("after_body", "before_body", "after_step"):
        raise ValueError(f"crash(at={at!r}): give 'after_body', 'before_body' or 'after_step'.")
    with _in_this_process():
        if not isinstance(task, Task):
            _registered(task)
            task = task.schedule(*args, **kwargs)
        row: Task = task
        message = _message_of(row)
        lease = conf.settings().LEASE
        place = RunLocation(node=uuid.uuid4(), worker="crashed@test", lease=lease)
        run = attempts.open_run(row.pk, message.epoch, place, celery_id_of(message), None)
        if isinstance(run, Refusal):
            raise AssertionError(f"{row.name} was refused: {run}.")  # noqa: TRY004 - of a test
        lost = Outcome(kind=EndingKind.CRASHED, error="The worker was killed.")
        running = _tasks().filter(pk=row.pk, epoch=run.epoch)
        try:
            if at == "after_body":
                with _run_of_killed(run, lease, eager=True) as (function, live):
                    before = _hooks()
                    if function.durable_options.atomic:
                        with transaction.atomic(using=conf.settings().DATABASE):
                            gate.call_function(function, live)
                            transaction.set_rollback(True, using=conf.settings().DATABASE)
                    else:
                        gate.call_function(function, live)
                        _run_hooks(before)
            elif at == "after_step":
                # Not eager: the savepoint of an eager function would undo what a killed one wrote.
                with _run_of_killed(run, lease, eager=False) as (function, live):
                    live.position = _LastPosition(live)
                    with suppress(_Killed):
                        gate.call_function(function, live, dedicated.open_blocks())
                        raise AssertionError(
                            f"{row.name} has ended without a step that was not recorded before."
                        )
        finally:
            attempts.end_runs(running, lambda _: lost, worker=place.worker)
        row.refresh_from_db()
    return row


class _Killed(BaseException):
    """Ends a function after its first step."""


class _LastPosition(Position):
    """The position of a run whose worker is killed when it has recorded it."""

    def _confirm(self, steps: dict[str, dict[str, Any]], progress: str | None) -> None:
        raise _Killed


@contextmanager
def _run_of_killed(run: Any, lease: float, *, eager: bool) -> Iterator[tuple[Any, LiveRun]]:
    task = current_app.tasks[run.name]
    live = LiveRun(run, lease=lease, timeout=None, worker="crashed@test", eager=eager)
    task.push_request(
        id=run.celery_id, called_directly=False, is_eager=eager, headers={}, args=[], kwargs={}
    )
    try:
        with process_runs.running(live):
            yield task, live
    finally:
        process_runs.forget(run.celery_id)
        task.pop_request()


# Schedules.


def _schedule_of(schedule: Any) -> RecurringTask:
    """Return the row of a schedule; one that code declares is written first."""
    if isinstance(schedule, RecurringTask):
        return schedule
    rows = RecurringTask.objects.using(conf.settings().DATABASE).filter(name=schedule)
    if not rows.exists():
        sync.apply()
    row: RecurringTask | None = rows.first()
    if row is None:
        every = RecurringTask.objects.using(conf.settings().DATABASE)
        names = ", ".join(sorted(every.values_list("name", flat=True))) or "none"
        raise LookupError(f"There is no schedule {schedule!r}. Schedules: {names}.")
    return row


def fire(schedule: Any, *, at: datetime | None = None) -> Task:
    """Fire a schedule at one of its fire times, by default the next one, as a leader does then;
    return the task, which ``drain(now=at)`` runs. No other schedule fires.

    ``schedule``: its name or its row; one that ``@recurring`` or SCHEDULES declares needs no
    ``sync``. Raises AssertionError if this is no fire time, with the reason.
    """
    with _in_this_process():
        row = _schedule_of(schedule)
        at = _aware(at) if at is not None else row.next_run_at
        if at is None:
            raise AssertionError(f"{row.name} does not fire any more: it is {row.status}.")
        with travel(at):
            rows = RecurringTask.objects.using(conf.settings().DATABASE).filter(pk=row.pk)
            earlier = at - timedelta(microseconds=1)
            rows.unguarded().update(next_run_at=at, watermark_at=earlier, updated_at=earlier)
            while trigger.fire_due(database_now(), 1, keys=[row.pk]):
                pass
        task: Task | None = _tasks().filter(recurring_task=row.pk, fire_time=at).first()
        if task is None:
            row.refresh_from_db()
            raise AssertionError(f"{row.name} did not run at {at.isoformat()}: {row.explain(at)}")
        return task


def fires_between(schedule: Any, start: datetime, end: datetime) -> list[datetime]:
    """Return the fire times of a schedule after ``start`` and up to ``end``. Nothing is created."""
    with _in_this_process():
        agenda, fire_times, at = agenda_of(_schedule_of(schedule)), list[datetime](), _aware(start)
        while (planned := agenda.next(at)) is not None and planned.at <= _aware(end):
            fire_times.append(planned.nominal)
            at = planned.at
        return fire_times


# What was scheduled.

_SHOWN = 10


@dataclass(eq=False)  # of two nested blocks, the inner one is removed at its end
class CapturedTasks(Sequence[Task]):
    """The tasks that were created in a block, in the order of their creation."""

    before: frozenset[uuid.UUID]
    found: list[Task] | None = field(default=None)

    def _rows(self) -> list[Task]:
        if self.found is not None:
            return self.found
        created = _tasks().exclude(pk__in=self.before)
        return list(created.order_by("created_at", "pk"))

    def __len__(self) -> int:
        return len(self._rows())

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._rows()[index]

    def of(self, task: Any) -> list[Task]:
        """Return the tasks of this function."""
        name = _registered(task).options.name
        return [row for row in self._rows() if row.name == name]


_capturing: list[CapturedTasks] = []


@contextmanager
def capture_tasks() -> Iterator[CapturedTasks]:
    """Collect the tasks that are created in the block, whatever was created before it.

    In the block ``assert_scheduled`` sees only these.
    """
    captured = CapturedTasks(frozenset(_tasks().values_list("pk", flat=True)))
    _capturing.append(captured)
    try:
        yield captured
        captured.found = captured._rows()  # after an error the transaction may be unusable
    finally:
        _capturing.remove(captured)


def _registered(task: Any) -> registry.Registered:
    name = getattr(task, "name", None)
    if isinstance(registered := getattr(task, "registered", None), registry.Registered):
        raise TypeError(
            f"{registered.options.name}.using(...) is a call with options: give the task itself. To"
            " run it with these options, schedule it and call drain()."
        )
    if not isinstance(name, str):
        raise TypeError(f"{task!r} is no durable task: give a function with @durable_task.")
    return registry.get(name)


def _visible(tasks: Sequence[Task] | None) -> Sequence[Task]:
    if tasks is not None:
        return tasks
    return _capturing[-1] if _capturing else list(_tasks().order_by("created_at", "pk"))


def _matches(expected: Any, actual: Any) -> bool:
    if callable(expected):
        return bool(expected(actual))
    if expected == actual:
        return True
    try:  # as it is stored: lists for tuples
        return bool(json.loads(json.dumps(expected)) == actual)
    except (TypeError, ValueError):
        return False


def _differences(
    row: Task, signature: Any, arguments: Mapping[str, Any], options: Mapping[str, Any]
) -> list[str]:
    bound = signature.bind(*row.args, **row.kwargs)
    bound.apply_defaults()
    actual = dict(bound.arguments)
    for kind, name in ((parameter.kind, name) for name, parameter in signature.parameters.items()):
        if kind is kind.VAR_KEYWORD:
            actual |= actual.pop(name, {})
    wrong = [
        f"{name}={actual.get(name)!r} instead of {expected!r}"
        for name, expected in arguments.items()
        if name not in actual or not _matches(expected, actual[name])
    ]
    for name, expected in options.items():
        value = getattr(row, name)
        if not _matches(expected, value):
            wrong.append(f"{name}={value!r} instead of {expected!r}")
    return wrong


def assert_scheduled(
    task: Any,
    /,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    count: int | None = None,
    tasks: Sequence[Task] | None = None,
    **columns: Any,
) -> Task:
    """Check that a task of this function was created, and return the first one that matches.

    ``args`` and ``kwargs`` are bound to the function's signature, so it does not matter how the
    arguments were passed; those that are not named may have any value. ``columns``: ``run_at``,
    ``queue``, ``key``, ``priority``, ``status`` or any other column. A value may be a function of
    the actual one. ``count``: exactly so many must match. ``tasks``: only these, such as those of
    ``capture_tasks()``; by default those of the innermost open block, or all.
    """
    registered = _registered(task)
    if count == 0:
        raise ValueError("assert_scheduled(count=0): use assert_nothing_scheduled(task).")
    unknown = sorted(set(columns) - {field.name for field in Task._meta.get_fields()})
    if unknown:
        raise TypeError(f"assert_scheduled() has no {unknown[0]!r}, and a task has no such column.")
    bound = registered.signature.bind_partial(*args, **(kwargs or {})).arguments
    arguments = dict(bound)
    for name, parameter in registered.signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(name, {})
    rows = [row for row in _visible(tasks) if row.name == registered.options.name]
    matching = [
        row for row in rows if not _differences(row, registered.signature, arguments, columns)
    ]
    if matching and count in (None, len(matching)):
        return matching[0]
    number = counted(len(matching), "task")
    lines = [
        f"{number} of {registered.options.name} as expected, instead of {count or 'at least 1'}."
    ]
    for row in rows[:_SHOWN]:
        differences = _differences(row, registered.signature, arguments, columns)
        lines.append(f"  {row.pk} {row.status}: {'; '.join(differences) or 'matches'}")
    other_names = [row.name for row in _visible(tasks) if row.name != registered.options.name]
    if other_names:
        lines.append(f"  Of other functions: {', '.join(other_names[:_SHOWN])}")
    raise AssertionError("\n".join(lines))


def assert_nothing_scheduled(task: Any = None, /, *, tasks: Sequence[Task] | None = None) -> None:
    """Check that no task was created, or none of this function; see ``assert_scheduled``."""
    rows = list(_visible(tasks))
    if task is not None:
        name = _registered(task).options.name
        rows = [row for row in rows if row.name == name]
    if rows:
        scheduled = counted(len(rows), "task was", "tasks were")
        shown = [f"  {row.name}{tuple(row.args)} {row.kwargs or ''}" for row in rows[:_SHOWN]]
        raise AssertionError("\n".join([f"{scheduled} scheduled:", *shown]))


# The same for tests that are coroutines: in the thread whose connection Django's tests use.

adrain = sync_to_async(drain)
aperform = sync_to_async(perform)
acrash = sync_to_async(crash)

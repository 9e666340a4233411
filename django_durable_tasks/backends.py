"""Backends of ``django.tasks``: durable tasks for ``@task``, and two that tests use.

A function with ``@task`` is registered as a durable task under its module path when its Task object
is validated. ``enqueue()`` creates a durable task in the caller's transaction, and a Celery worker
runs it. DummyBackend and ImmediateBackend accept the same options.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import logging
import traceback
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, cast

from celery import current_app
from celery.exceptions import Retry as CeleryRetry
from django.db import transaction

from django_durable_tasks import (
    conf,
    durable_task,  # first: its error names the missing entry of INSTALLED_APPS
    ports,
    registry,
    tasks_api,
)
from django_durable_tasks.celery.live_runs import LiveRun, process_runs
from django_durable_tasks.celery.task import DurableTask
from django_durable_tasks.choices import OPEN, LogStatus, Status
from django_durable_tasks.decorators import adopt
from django_durable_tasks.exceptions import BodyFailed, InvalidOption, RunLost
from django_durable_tasks.models import Task as TaskRow
from django_durable_tasks.models import TaskExecutionLog
from django_durable_tasks.option_values import hint
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.task_values import new_task_id
from django_durable_tasks.tasks import enqueue
from django_durable_tasks.tasks.enqueue import Call
from django_durable_tasks.tasks.options import TASK_OPTIONS, CallOptions, call_options
from django_durable_tasks.tasks_api import InvalidTask

logger = logging.getLogger("django_durable_tasks.backends")

# The Task class, with the options of a durable task as fields.


# django.tasks has options or properties of its own for these.
_NOT_FIELDS = frozenset({"name", "queue", "priority"})
TASK_FIELDS = tuple(sorted(TASK_OPTIONS - _NOT_FIELDS))
"""The options of ``@durable_task`` that ``@task`` takes under the same name."""
_OF_DJANGO = frozenset({"priority", "queue_name", "backend", "takes_context"})
_INSTEAD = {
    "queue": "Write queue_name=...",
    "bind": "Write takes_context=True.",
    "max_retries": "Write max_attempts=..., which counts the first attempt too: max_retries + 1.",
    "run_at": "Write .using(run_after=...).",
    "eta": "Write .using(run_after=...).",
    "countdown": "Write .using(run_after=...).",
}
"""What to write instead of options that other interfaces have."""


def _new_task(cls: type, /, **fields: Any) -> Any:
    for option in fields:
        if option not in cls.__dataclass_fields__:  # type: ignore[attr-defined]
            known = _OF_DJANGO.union(TASK_FIELDS)
            remedy = _INSTEAD.get(option) or hint(option, known)
            raise InvalidOption(f"@task has no option {option!r}. {remedy}".rstrip(), option=option)
    return object.__new__(cls)


DurableDjangoTask: Any = dataclasses.make_dataclass(
    "DurableDjangoTask",
    [(option, Any, dataclasses.field(default=None)) for option in TASK_FIELDS],
    bases=(tasks_api.Task,),
    namespace={
        "__doc__": "A Task that also has the options of ``@durable_task``; None is the default.",
        "__module__": __name__,
        "__new__": _new_task,
    },
    frozen=True,
    slots=True,
    kw_only=True,
)


# Registration: the durable task of each `@task` function.


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """A `@task` function, and the options with which it was registered."""

    task: Any
    options: Mapping[str, Any]
    backoff: Callable[[BaseException, Any], Any] | None


_entries: dict[str, _Entry] = {}
"""By module path, which is the name of the durable task."""


def _takes_error_and_result(backoff: object) -> bool:
    """Return whether this is a function of an exception and a TaskResult, as
    django/new-features#142 proposes, and not one of the number of failures.
    """
    if not callable(backoff):
        return False
    try:
        parameters = inspect.signature(backoff).parameters.values()
    except (TypeError, ValueError):  # some functions in C have no signature
        return False
    required = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 2


def _register(task: Any, defaults: Mapping[str, Any]) -> _Entry:
    """Return the entry of this task; register its function if these options are new.

    Raises InvalidOption for an invalid option, or if another function has the name.
    """
    options = dict(defaults)
    for option in TASK_FIELDS:
        value = getattr(task, option, None)
        if value is not None:
            options[option] = value
    name = task.module_path
    existing = _entries.get(name)
    if existing is not None and existing.task.func is task.func and existing.options == options:
        return existing
    if task.run_after is not None:
        # A call of a Task object of another backend, as in tests.
        return _register(dataclasses.replace(task, run_after=None), defaults)
    durable_options, backoff = dict(options), None
    if _takes_error_and_result(durable_options.get("backoff")):
        backoff = durable_options.pop("backoff")
    if existing is not None:
        # Other settings, as in tests. Celery would keep the task that it has.
        current_app.tasks.pop(name, None)
    durable_task(name=name, base=DjangoTask, bind=True, **durable_options)(_function_of(task))
    entry = _entries[name] = _Entry(task, options, backoff)
    adopt(task, task.func, name)
    return entry


def _function_of(task: Any) -> Callable[..., Any]:
    """Return the function of the durable task: with Celery's task as its first parameter, and the
    parameters of calls.

    They have no annotations, because a durable task converts arguments by these, and django.tasks
    passes what JSON has.
    """

    @functools.wraps(task.func)
    def function(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return _run(self, args, kwargs)

    parameters = [
        parameter.replace(annotation=parameter.empty)
        for parameter in inspect.signature(task.func).parameters.values()
    ]
    celery_task = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    if any(parameter.name == "self" for parameter in parameters):
        celery_task = celery_task.replace(name="celery_task")
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [celery_task, *parameters[bool(task.takes_context) :]]
    )
    return function


def load_task(name: str) -> bool:
    """Import the module of a `@task` function; return whether a durable task has this name now.

    Only a Task object whose backend is a DurableTasksBackend is registered.
    """
    module_name, _, function_name = name.rpartition(".")
    if not module_name or module_name.startswith("."):
        return False
    try:
        target: Any = getattr(importlib.import_module(module_name), function_name, None)
        if name not in _entries and isinstance(target, tasks_api.Task):
            backend = target.get_backend()
            if isinstance(backend, DurableTasksBackend) and target.module_path == name:
                backend.validate_task(target)
    except Exception as error:
        # A name without such a module is one that this process does not have, for example the name
        # of a function that was removed. Only a module that fails is worth a message.
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module_name}.".startswith(f"{missing}."):
            logger.warning("The task function %s could not be imported.", name, exc_info=True)
        return False
    return name in _entries


registry.importers.append(load_task)


# Runs.


_CALL = "django_tasks"
"""The header of a call with the options of the Task object that differ from the decorator's."""


def _run(celery_task: Any, args: Any, kwargs: Any) -> Any:
    """Call the function of a `@task`, with the signal and the context of django.tasks."""
    entry = _entries[celery_task.name]
    task, live = entry.task, process_runs.current()
    if live is None:  # a direct call of the durable task, without a row
        if task.takes_context:
            raise InvalidOption(f"{celery_task.name} takes a context: call it with .enqueue().")
        return _json_if_possible(task.call(*args, **kwargs))
    result = _result_of_run(task, live)
    tasks_api.task_started.send_robust(_backend_class(result), task_result=result)
    try:
        if task.takes_context:
            args = (tasks_api.TaskContext(task_result=result), *args)
        value = task.func(*args, **kwargs)
        if isinstance(value, Coroutine):
            value = celery_task.wait_for(value)
        return _json_if_possible(value)
    except Exception as error:
        if entry.backoff is None or not celery_task.durable_options.retryable(error):
            raise
        failed = _changed(
            result, status=tasks_api.TaskResultStatus.FAILED, errors=_errors(result, error)
        )
        delay = entry.backoff(error, failed)
        if delay is None:
            live.gives_up = True
            raise
        seconds = delay.total_seconds() if hasattr(delay, "total_seconds") else delay
        raise CeleryRetry(exc=error, when=float(seconds)) from error


def _json_if_possible(value: Any) -> Any:
    """Return the value as django.tasks stores it, for example with lists for tuples.

    A value that is no JSON is returned as it is, and the run then fails without a retry.
    """
    try:
        return tasks_api.normalize_json(value)
    except (TypeError, ValueError):
        return value


class DjangoTask(DurableTask):
    """The Celery task of a `@task` function. It sends ``task_finished`` after a final ending.

    The endings that a scheduler, an operator or the parent process records are without a signal.
    """

    abstract = True
    has_schedule_method = False

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Send ``task_finished`` with status SUCCESSFUL."""
        live = self._live()
        if live is not None:
            self._finished(live, tasks_api.TaskResultStatus.SUCCESSFUL, _return_value=live.value)

    def on_failure(
        self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Send ``task_finished`` with status FAILED."""
        live = self._live()
        if live is not None:
            self._finished(live, tasks_api.TaskResultStatus.FAILED, exc)

    def _live(self) -> LiveRun | None:
        return process_runs.find(str(self.request.id)) or process_runs.current()

    def _finished(
        self, live: LiveRun, status: Any, error: BaseException | None = None, **changes: Any
    ) -> None:
        result = _result_of_run(_entries[self.name].task, live)
        if error is not None:
            changes["errors"] = _errors(result, error)
        result = _changed(result, status=status, finished_at=estimated_now(), **changes)
        tasks_api.task_finished.send_robust(_backend_class(result), task_result=result)


# Results.


_STATUSES = {status: "READY" if status in OPEN else "FAILED" for status in Status}
_STATUSES |= {Status.RUNNING: "RUNNING", Status.SUCCESS: "SUCCESSFUL"}
"""The status of a TaskResult for each status of a task."""
_WITHOUT_ATTEMPT = "celery.exceptions.TaskRevokedError"
"""The class of the error of a task that ended without a failed attempt, as in DurableResult."""
_FAILED_ATTEMPTS = (LogStatus.FAILED, LogStatus.RETRY, LogStatus.LOST, LogStatus.CANCELLED)
_ATTEMPTS = (*_FAILED_ATTEMPTS, LogStatus.SUCCESS)


def _changed(result: Any, **changes: Any) -> Any:
    """Set attributes of a TaskResult, which is frozen, and return it."""
    for name, value in changes.items():
        object.__setattr__(result, name, value)
    return result


def _backend_class(result: Any) -> type:
    return type(tasks_api.task_backends[result.backend])


def _errors(result: Any, error: BaseException) -> list[Any]:
    """Return the errors of the result with this one."""
    path = f"{type(error).__module__}.{type(error).__qualname__}"
    text = "".join(traceback.format_exception(error))
    return [*result.errors, tasks_api.TaskError(exception_class_path=path, traceback=text)]


def _called(task: Any, options: Mapping[str, Any] | None, run_at: datetime) -> tuple[Any, str]:
    """Return the Task object of a call, and the alias of its backend."""
    call = ((options or {}).get("headers") or {}).get(_CALL) or {}
    if not call:
        return task, task.backend
    changes = {name: call[name] for name in ("priority", "queue_name", "backend") if name in call}
    if call.get("run_after"):
        changes["run_after"] = run_at
    try:
        task = task.using(**changes)
    except Exception:  # noqa: BLE001 - the settings have changed since the call
        logger.debug("The options of a call of %s are not valid now.", task.module_path)
    return task, call.get("backend", task.backend)


def _result_of_run(task: Any, live: LiveRun) -> Any:
    """Return the TaskResult of a run in progress. The log is read from the second attempt on."""
    run = live.run
    called, alias = _called(task, run.options, run.run_at)
    log = _log(run.task_id, before=run.attempt) if run.attempt > 1 else []
    enqueued_at = run.queued_at or run.run_at
    if (
        run.task_id.version == 7
    ):  # an id of this package, which has the milliseconds of its creation
        enqueued_at = datetime.fromtimestamp((run.task_id.int >> 80) / 1_000, tz=UTC)
    return tasks_api.TaskResult(
        task=called,
        id=str(run.task_id),
        status=tasks_api.TaskResultStatus.RUNNING,
        enqueued_at=enqueued_at,
        started_at=_first_start(log) or run.started_at,
        finished_at=None,
        last_attempted_at=run.started_at,
        args=live.args,
        kwargs=live.kwargs,
        backend=alias,
        errors=_logged_errors(log),
        worker_ids=[*_workers(log), live.worker],
    )


def _log(task_id: uuid.UUID, before: int | None = None) -> list[TaskExecutionLog]:
    """Return the attempts of a task in order, or those before an attempt."""
    log = TaskExecutionLog.objects.using(conf.settings().DATABASE).filter(
        task_id=task_id, status__in=_ATTEMPTS
    )
    if before is not None:
        log = log.filter(attempt_number__lt=before)
    return list(log.order_by("attempt_number", "id"))


def _first_start(log: Sequence[TaskExecutionLog]) -> datetime | None:
    return next((attempt.started_at for attempt in log if attempt.started_at), None)


def _workers(log: Iterable[TaskExecutionLog]) -> list[str]:
    return [attempt.worker or str(attempt.node or "") for attempt in log]


def _logged_errors(log: Iterable[TaskExecutionLog]) -> list[Any]:
    return [
        tasks_api.TaskError(
            exception_class_path=_class_path(attempt),
            traceback=attempt.traceback or attempt.error_message,
        )
        for attempt in log
        if attempt.status in _FAILED_ATTEMPTS
    ]


def _class_path(attempt: TaskExecutionLog) -> str:
    """Return the path of the class of an error: as it was stored, else as its traceback names
    it.
    """
    if attempt.exception:
        return f"{attempt.exception['module']}.{attempt.exception['name']}"
    if attempt.status == LogStatus.LOST:
        return f"{RunLost.__module__}.{RunLost.__qualname__}"
    name = attempt.error_message.partition(":")[0]
    for line in reversed(attempt.traceback.splitlines()):
        path = line.partition(":")[0]
        if path.rpartition(".")[2] == name and all(map(str.isidentifier, path.split("."))):
            return path if "." in path else f"builtins.{path}"
    return f"{BodyFailed.__module__}.{BodyFailed.__qualname__}"


def _result_of_row(task: Any, row: TaskRow) -> Any:
    called, alias = _called(task, row.options, row.run_at)
    log = _log(row.pk) if row.attempts else []
    status, errors, workers = Status(row.status), _logged_errors(log), _workers(log)
    if _STATUSES[status] == "FAILED" and not errors:
        text = row.last_error or f"{status}: {row.reason}"
        errors = [tasks_api.TaskError(exception_class_path=_WITHOUT_ATTEMPT, traceback=text)]
    if status is Status.RUNNING:
        workers.append(str(row.node or ""))
    return _changed(
        tasks_api.TaskResult(
            task=called,
            id=str(row.pk),
            status=tasks_api.TaskResultStatus(_STATUSES[status]),
            enqueued_at=row.created_at,
            started_at=_first_start(log) or row.started_at,
            finished_at=row.completed_at,
            last_attempted_at=row.started_at,
            args=row.args,
            kwargs=row.kwargs,
            backend=alias,
            errors=errors,
            worker_ids=workers,
        ),
        _return_value=row.result if status is Status.SUCCESS else None,
    )


# Backends.


# How many of the 201 priorities of django.tasks become one of the 10 of this package.
_PRIORITIES = 20


def durable_priority(priority: int) -> int:
    """Return the priority from 0 to 9 of a priority from -100 to 100: 0 becomes 5, and each step
    of 20 is one priority.
    """
    return min((priority + 100) // _PRIORITIES, 9)


class _DurableOptions:
    """What the three backends share: the options of durable tasks, and their registration.

    ``OPTIONS`` may have options of ``@durable_task``, which apply to the tasks of the backend that
    do not name them. ``MAX_ATTEMPTS`` and ``BACKOFF`` are the same in the form of
    django/new-features#142.
    """

    task_class = DurableDjangoTask
    alias: str
    options: Mapping[str, Any]

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)  # type: ignore[call-arg]
        defaults = dict(self.options)
        for key in ("MAX_ATTEMPTS", "BACKOFF"):
            if params.get(key) is not None:
                defaults[key.lower()] = params[key]
        for option in defaults:
            if option not in TASK_FIELDS:
                remedy = hint(option, TASK_FIELDS) or f"It takes: {', '.join(TASK_FIELDS)}."
                raise InvalidOption(
                    f"TASKS[{alias!r}]['OPTIONS'] has no option {option!r}. {remedy}", option=option
                )
        self._defaults = defaults

    def validate_task(self, task: Any) -> None:
        """Check the task as django.tasks does, and register its function as a durable task.

        Raises InvalidTask, and InvalidOption for an option of ``@durable_task``.
        """
        super().validate_task(task)  # type: ignore[misc]
        self._entry(task)

    def _entry(self, task: Any) -> _Entry:
        return _register(task, self._defaults)


class DurableTasksBackend(_DurableOptions, tasks_api.BaseTaskBackend):
    """Stores the calls of `@task` functions as durable tasks, which Celery workers run."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Create a durable task in the caller's transaction and return its result.

        Raises InvalidTask, InvalidArguments for arguments that do not fit the function, and
        TypeError for arguments that are no JSON. Then nothing is written. ``task_enqueued`` is sent
        at once, and not for a call that found the open task of its ``unique`` key.
        """
        self.validate_task(task)
        entry, task_id = self._entry(task), new_task_id()
        options: dict[str, Any] = {
            "task_id": task_id,
            "priority": durable_priority(task.priority),
            "run_at": _aware(task.run_after),
        }
        if task.queue_name != "default":
            options["queue"] = task.queue_name
        # What ``_called`` reads: the options that differ from those of the decorator.
        named = {"priority": task.priority, "queue_name": task.queue_name, "backend": self.alias}
        call = {key: value for key, value in named.items() if value != getattr(entry.task, key)}
        if task.run_after is not None:
            call["run_after"] = True
        if call:
            options["headers"] = {_CALL: call}
        new = Call(
            registry.get(task.module_path),
            tuple(tasks_api.normalize_json(list(args))),
            cast("dict[str, Any]", tasks_api.normalize_json(dict(kwargs))),
            call_options(CallOptions(), options),
        )
        # In Celery's eager mode the task runs at the COMMIT, and task_enqueued is sent before.
        alias = conf.settings().DATABASE
        with transaction.atomic(using=alias) if ports.eager() else nullcontext():
            row = enqueue.schedule(new)
            result = _result_of_row(entry.task, row)
            if row.pk == task_id:
                tasks_api.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result with this id; raises TaskResultDoesNotExist."""
        try:
            pk = uuid.UUID(str(result_id))
        except ValueError:
            raise tasks_api.TaskResultDoesNotExist(result_id) from None
        row = TaskRow.objects.using(conf.settings().DATABASE).filter(pk=pk).first()
        if row is None or (row.name not in _entries and not load_task(row.name)):
            raise tasks_api.TaskResultDoesNotExist(result_id)
        return _result_of_row(_entries[row.name].task, row)


def _aware(run_after: datetime | None) -> datetime | None:
    """Return the time with the zone of the project. Without USE_TZ, Django takes naive times."""
    if run_after is None or run_after.tzinfo is not None:
        return run_after
    return run_after.astimezone()


class DummyBackend(_DurableOptions, tasks_api.DjangoDummyBackend):
    """Django's DummyBackend with the options of durable tasks, for tests. It runs nothing."""


class ImmediateBackend(_DurableOptions, tasks_api.DjangoImmediateBackend):
    """Django's ImmediateBackend with the options of durable tasks, for tests.

    It calls the function once, in ``enqueue()``, also if ``run_after`` is in the future.
    """

    supports_defer = True


__all__ = [
    "DummyBackend",
    "DurableTasksBackend",
    "ImmediateBackend",
    "InvalidTask",
    "durable_priority",
]

"""``@durable_task``: a Celery shared task of class DurableTask, with validated options, that is
registered in this process.

``@recurring``: a schedule of a durable task. It is written above or below ``@durable_task``, any
number of times.
"""

from __future__ import annotations

import inspect
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from celery import shared_task

from django_durable_tasks import conf, registry
from django_durable_tasks.celery import task as celery_task
from django_durable_tasks.celery.result import DurableResult
from django_durable_tasks.celery.task import DurableTask, signature_of
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import Task
from django_durable_tasks.option_values import checked_key, hint
from django_durable_tasks.registry import Declaration, Registered
from django_durable_tasks.schedules.options import CODE, KINDS, ScheduleOptions, columns
from django_durable_tasks.tasks.options import (
    TASK_OPTIONS,
    DecoratorOptions,
    UsingOptions,
    checked_defaults,
    task_options,
)
from django_durable_tasks.texts import warn_caller

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
T = TypeVar("T")

_CELERY = frozenset(
    {
        *celery_task.RETRY_OPTIONS,
        "base",
        "bind",
        "ignore_result",
        "track_started",
        "trail",
        "store_errors_even_if_ignored",
    }
)


class DurableCalls(Protocol[P, R_co]):
    """The calling forms of a durable task for type checkers, with the signature of the function.

    ``schedule(run_at=...)`` accepts any arguments: Python has no type for a keyword beside the
    parameters of a function. ``using(run_at=...).schedule(...)`` is checked.
    """

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> DurableResult[R_co]:
        """Create the task in the caller's transaction and return its result."""

    @overload
    def schedule(self, *args: P.args, **kwargs: P.kwargs) -> Task: ...
    @overload
    def schedule(self, *args: Any, run_at: datetime | None, **kwargs: Any) -> Task: ...
    def schedule(self, *args: Any, **kwargs: Any) -> Task:
        """Create the task in the caller's transaction and return it; ``run_at=`` is the earliest
        start.
        """

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> DurableResult[R_co]:
        """Create the task as ``delay`` does, without blocking the event loop."""

    @overload
    async def aschedule(self, *args: P.args, **kwargs: P.kwargs) -> Task: ...
    @overload
    async def aschedule(self, *args: Any, run_at: datetime | None, **kwargs: Any) -> Task: ...
    async def aschedule(self, *args: Any, **kwargs: Any) -> Task:
        """Create the task as ``schedule`` does, without blocking the event loop."""

    async def aschedule_many(
        self, arguments: Iterable[Iterable[Any]], *, run_at: datetime | None = None
    ) -> list[uuid.UUID]:
        """Create tasks as ``schedule_many`` does, without blocking the event loop."""

    def using(self, **options: Unpack[UsingOptions]) -> DurableCalls[P, R_co]:
        """Return this task with options for the calls made through the returned object."""

    def schedule_many(
        self, arguments: Iterable[Iterable[Any]], *, run_at: datetime | None = None
    ) -> list[uuid.UUID]:
        """Create one task for each tuple of arguments, all or none; return their ids."""

    def schedule_stream(
        self,
        arguments: Iterable[Iterable[Any]],
        *,
        run_at: datetime | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Create one task for each tuple of an iterable of any length, all or none, in constant
        memory; return their number.
        """

    def apply_async(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> DurableResult[R_co]:
        """Create the task; the arguments are those of Celery's ``apply_async``."""


class DurableFunction(DurableCalls[P, R_co], Protocol[P, R_co]):
    """The type of a durable task for type checkers: the function and its calling forms."""

    name: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def delay_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> DurableResult[R_co] | None:
        """Create the task in the caller's transaction. Returns None if that is a transaction of
        another database.
        """

    def apply_async_on_commit(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> DurableResult[R_co] | None:
        """Create the task in the caller's transaction. Returns None if that is a transaction of
        another database.
        """

    def s(self, *args: Any, **kwargs: Any) -> Any:
        """Return Celery's signature of a call, for the canvas of ``Workflow.from_canvas``."""

    def si(self, *args: Any, **kwargs: Any) -> Any:
        """Return a signature that ignores the results of preceding tasks."""

    def map(self, it: Iterable[Any]) -> Any:
        """Return a signature that calls the task for each item in sequence."""

    def starmap(self, it: Iterable[Iterable[Any]]) -> Any:
        """Return a signature that calls the task for each list of arguments in sequence."""

    def chunks(self, it: Iterable[Iterable[Any]], n: int) -> Any:
        """Return a signature that calls the task for each list of arguments, in chunks of n."""


class _Plain(Protocol):
    def __call__(self, function: Callable[P, R], /) -> DurableFunction[P, R]: ...


class _Bound(Protocol):
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> DurableFunction[P, R]: ...


@overload
def durable_task(function: Callable[P, R], /) -> DurableFunction[P, R]: ...
@overload
def durable_task(*, bind: Literal[True], **options: Unpack[DecoratorOptions]) -> _Bound: ...
@overload
def durable_task(
    *, bind: Literal[False] = False, **options: Unpack[DecoratorOptions]
) -> _Plain: ...


def durable_task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a durable task: its calls are rows that Celery executes, and no committed
    call is lost.

    Options (durations in seconds or timedelta): name, queue, priority (0-9, 9 first), max_attempts,
    backoff (FIXED, LINEAR, EXPONENTIAL, a list or a callable), backoff_base, backoff_max, jitter,
    retry_for, give_up_on, max_crashes, on_orphan (RETRY, DEAD_LETTER), timeout, soft_timeout,
    lease, expected_duration, expires_in, unique, unique_for, unique_on_conflict, atomic,
    max_concurrency, rate_limit, weight, batch (how many tasks start together at most), bind. Raises
    InvalidOption at import, with option, value and remedy.
    """
    return partial(_decorate, kwargs=options) if function is None else _decorate(function, options)


def _decorate(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> DurableFunction[..., Any]:
    for option in kwargs:
        if option not in TASK_OPTIONS | _CELERY:
            remedy = hint(option, TASK_OPTIONS | _CELERY)
            raise InvalidOption(f"@durable_task has no option {option!r}. {remedy}".rstrip())
    _check_function(function)
    base = kwargs.get("base") or DurableTask
    if not (isinstance(base, type) and issubclass(base, DurableTask)):
        raise InvalidOption.of(
            "base",
            base,
            "derive it from django_durable_tasks.celery.task.DurableTask instead of Celery's Task.",
        )
    kwargs = celery_task.with_those_of_base(base, kwargs)
    ours = {key: value for key, value in kwargs.items() if key in TASK_OPTIONS and key != "name"}
    name = kwargs.get("name") or f"{function.__module__}.{function.__name__}"
    # The project's defaults do not apply to the tasks of this package.
    is_ours = function.__module__.startswith("django_durable_tasks.")
    defaults = {} if is_ours else checked_defaults(conf.settings().TASK_DEFAULTS or {})
    options = task_options(name, ours, {**defaults, **celery_task.implied_retries(kwargs)})
    signature = signature_of(function, bound=bool(kwargs.get("bind")))
    # A parameter that ``.schedule(run_at=...)`` could not pass.
    run_at = signature.parameters.get("run_at") if base.has_schedule_method else None
    if run_at is not None and run_at.kind in (run_at.POSITIONAL_OR_KEYWORD, run_at.KEYWORD_ONLY):
        raise InvalidOption(
            f"{function.__qualname__}(run_at): a durable task cannot have this parameter, because "
            ".schedule(run_at=...) names the earliest start of the task. Rename the parameter."
        )
    registry.add(Registered(options, signature, function))
    # The result is stored in the row; a result backend would store it a second time.
    celery_options = {"ignore_result": True} | {
        key: value for key, value in kwargs.items() if key in _CELERY
    }
    celery_options |= {"base": base, **celery_task.celery_options(kwargs, options)}
    with _warnings_of_caller():
        task = shared_task(
            name=options.name,
            durable_options=options,
            time_limit=options.timeout,
            soft_time_limit=options.soft_timeout,
            **celery_options,
        )(function)
    adopt(task, function, options.name)
    return cast("DurableFunction[..., Any]", task)


@contextmanager
def _warnings_of_caller() -> Iterator[None]:
    """Issue the warnings of the block for the line that calls this package. Celery's
    DuplicateTaskNameWarning names the first frame outside of Celery, which is in this module.
    """
    with warnings.catch_warnings(record=True) as caught:
        yield
    for warning in caught:
        warn_caller(warning.message, warning.category)


def _check_function(function: Any) -> None:
    """Raise InvalidOption for what Celery could not run as the function of a task."""
    name = getattr(function, "__qualname__", repr(function))
    is_function = inspect.isfunction(function) or inspect.ismethod(function)
    if not is_function and type(function).__name__ != "cython_function_or_method":
        kind = "a class" if isinstance(function, type) else f"a {type(function).__name__}"
        raise InvalidOption(
            f"@durable_task cannot decorate {name}, which is {kind}: write a function with `def`"
            " that calls it."
        )
    if inspect.isasyncgenfunction(function):
        raise InvalidOption(
            f"{name} is an async generator: a call would run nothing of it. Return a list, or read"
            " the generator by `async for` in a function with `async def`."
        )
    if inspect.isgeneratorfunction(function):
        raise InvalidOption(
            f"{name} is a generator: a call would run nothing of it. Return a list, or call the"
            " generator in a plain function."
        )


_built: dict[int, tuple[Any, str]] = {}
"""Names of the tasks created here, by identity. Reading the name of Celery's proxy would resolve
the Celery app.
"""
_below: dict[int, tuple[Callable[..., Any], tuple[tuple[str, Mapping[str, Any]], ...]]] = {}
"""Functions with ``@recurring`` that are not durable tasks yet, by identity."""


def recurring(name: str, /, **options: Unpack[ScheduleOptions]) -> Callable[[T], T]:
    """Declare a schedule of a durable task; ``manage.py durable sync`` writes it to the table.
    Returns the task itself.

    The options are those of ``RecurringTask.objects.upsert``: one of interval, cron, rrule, solar,
    at, every or parts, and the options of the schedule. Raises InvalidSchedule or InvalidOption at
    import.
    """
    checked_key("name", name)
    timing: dict[str, Any] = dict(options)
    if not columns(name, timing).get("timetable"):
        raise InvalidOption(f"@recurring({name!r}) needs one of {', '.join(KINDS)}.")

    def declare(task: T) -> T:
        _, known = _built.get(id(task), (task, None))
        if known is not None:
            registry.declare(Declaration(name, known, timing, CODE), registry.get(known).function)
        else:
            function = cast("Callable[..., Any]", task)
            _below[id(task)] = function, (*_below.get(id(task), (function, ()))[1], (name, timing))
        return task

    return declare


def adopt(task: object, function: Callable[..., Any], name: str) -> None:
    """Let ``@recurring`` decorate an object of another package, whose ``function`` is registered as
    the durable task of this name.
    """
    _built[id(task)] = task, name
    for schedule, timing in _below.pop(id(function), (function, ()))[1]:
        registry.declare(Declaration(schedule, name, timing, CODE), registry.get(name).function)


def stray_schedules() -> dict[str, str]:
    """Return the schedules of functions that are not durable tasks, with the names of these
    functions.
    """
    return {
        schedule: f"{function.__module__}.{function.__qualname__}"
        for function, schedules in _below.values()
        for schedule, _ in schedules
    }

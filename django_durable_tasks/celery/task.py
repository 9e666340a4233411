"""``DurableTask``: the Celery task class of ``@durable_task``. Calls create rows; messages pass the
gate.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, NoReturn

from asgiref.sync import sync_to_async
from celery import Task as CeleryTask
from celery.exceptions import MaxRetriesExceededError
from celery.exceptions import Retry as CeleryRetry
from django.db import DEFAULT_DB_ALIAS, connection, transaction

from django_durable_tasks import conf, registry
from django_durable_tasks.celery import calls, event_loop, gate, plain_messages
from django_durable_tasks.celery.calls import Using
from django_durable_tasks.celery.live_runs import LiveRun, RunContext, process_runs
from django_durable_tasks.celery.prepared_messages import of_request
from django_durable_tasks.celery.result import META, STATE, DurableResult
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.option_values import seconds
from django_durable_tasks.tasks.arguments import JSON_MAX_DEPTH, encode_result
from django_durable_tasks.tasks.options import ATTEMPTS_MAX, TaskOptions

logger = logging.getLogger("django_durable_tasks.runs")
# Characters of a state of ``update_state()``, as in the result backends of Celery and Django.
_STATE_MAX = 50
_FUNCTION = "function_to_retry"
"""The attribute of a task with the function that ``autoretry_for`` wraps."""


class DurableTask(CeleryTask):
    """Celery's task class for ``@durable_task``.

    Its messages are acknowledged early and not redelivered by Celery. A lost run is found by its
    lease and republished, without the double executions of late acknowledgement.
    """

    abstract = True
    # Celery writes the beginning of a returned value into the log and into events, which anyone may
    # read who may not read results. With 0 it writes `, ...` instead.
    resultrepr_maxsize: ClassVar[int] = 0
    acks_late: ClassVar[bool] = False
    reject_on_worker_lost: ClassVar[bool] = False
    retry_on_worker_lost: ClassVar[bool] = False
    durable_options: TaskOptions
    has_schedule_method: ClassVar[bool] = True
    """Whether calls are made by ``schedule(run_at=...)``, so that the function cannot have this
    parameter.
    """
    around_function: ClassVar[Callable[..., Any] | None] = None
    """The ``__call__`` that a subclass defines or inherits from a mixin."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task of the current message, or call the function.

        Celery calls this for a message. Then the gate calls the function through
        ``call_function()``, which ends here again if there is an overridden ``__call__``. A direct
        call, also inside another task, calls the function.
        """
        request = self.request
        if request.called_directly:
            return super().__call__(*args, **kwargs)
        state = gate.state_of(request)
        if state.in_function:
            return super().__call__(*args, **kwargs)
        if not state.received:
            state.received = True
            return self._receive(state, args, kwargs)
        return self._run(state, args, kwargs)

    @property
    def request(self) -> Any:
        """The request of the current message, also inside a coroutine that runs for it."""
        request = self.request_stack.top
        if request is None:
            request = event_loop.request_of(self)
        return self._get_request() if request is None else request

    def _run(self, state: gate.CallState, args: Any, kwargs: Any) -> Any:
        state.in_function = True
        try:
            return self._to_end(self.run(*args, **kwargs))
        finally:
            state.in_function = False

    def _receive(self, state: gate.CallState, args: Any, kwargs: Any) -> Any:
        """Run the task of a message that Celery delivers, or that a batch stands for."""
        if state.run is not None:
            return state.run()
        envelope = of_request(self.request)
        if envelope is None:
            return self._plain_message(args, kwargs)
        return gate.run_message(self, envelope)

    def call_function(self, request: Any, args: Any, kwargs: Any) -> Any:
        """Call the function of an accepted message, with an overridden ``__call__`` around it."""
        around: Any = type(self).around_function
        if around is None:
            return self._run(gate.state_of(request), args, kwargs)
        return self._to_end(around(self, *args, **kwargs))

    def _to_end(self, value: Any) -> Any:
        """Return what the function of a message has returned; of a coroutine, its value."""
        if not isinstance(value, Coroutine):
            return value
        is_called_by_code = self.request.called_directly or event_loop.is_current()
        return value if is_called_by_code else self.wait_for(value)

    @property
    def _orig_run(self) -> Callable[..., Any]:
        """The function that Celery's ``autoretry_for`` calls in a ``try`` statement."""
        run = self.__dict__.get(_FUNCTION)
        if run is None:
            raise AttributeError("_orig_run")  # Celery has not wrapped the function
        return lambda *args, **kwargs: self._to_end(run(*args, **kwargs))

    @_orig_run.setter
    def _orig_run(self, run: Callable[..., Any]) -> None:
        self.__dict__[_FUNCTION] = run

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run the coroutine on the event loop of this process, as a part of the current run; return
        its value.
        """
        return event_loop.wait_for(coroutine, self, self.request, process_runs.current())

    def _plain_message(self, args: Any, kwargs: Any) -> Any:
        """Handle a message without a row. A message that is part of a canvas runs as a plain Celery
        task.
        """
        if not self.request.is_eager:
            if not conf.settings().ACCEPT_PLAIN_MESSAGES:
                plain_messages.refuse(
                    self,
                    f"Refused message {self.request.id}, which no task was created for: durable"
                    f" task {self.name} takes its arguments from the database. Call it with"
                    " .delay(), or set DURABLE_TASKS['ACCEPT_PLAIN_MESSAGES']. This call is"
                    " lost.",
                )
            if not plain_messages.has_canvas(self.request):
                plain_messages.adopt(self, args, kwargs)
        types = registry.get(self.name).types
        if types is not None:
            args, kwargs = types.from_json(self.name, args, kwargs)
        return self.call_function(self.request, args, kwargs)

    @property
    def durable(self) -> RunContext:
        """The current run; raises InvalidOption outside of a run."""
        live = process_runs.current()
        if live is None:
            raise InvalidOption(
                "self.durable exists only while a worker runs the body; a plain call has no row."
            )
        return RunContext(live)

    @property
    def _calls(self) -> Using:
        return calls.of_task(self, DurableTask)

    def using(self, **options: Any) -> Using:
        """Return this task with options for the calls made through the returned object."""
        return self._calls.using(**options)

    def schedule(self, /, *args: Any, **kwargs: Any) -> Any:
        """Create the task in the caller's transaction and return it. ``run_at`` is the earliest
        start.
        """
        return self._calls.schedule(*args, **kwargs)

    def schedule_many(self, arguments: Iterable[Iterable[Any]], **options: Any) -> Any:
        """Create one task per tuple of arguments, all or none; return their ids."""
        return self._calls.schedule_many(arguments, **options)

    def schedule_stream(self, arguments: Iterable[Iterable[Any]], **options: Any) -> int:
        """Create one task per tuple of an iterable of any length, all or none, in constant memory;
        return their number.
        """
        return self._calls.schedule_stream(arguments, **options)

    async def aschedule(self, /, *args: Any, **kwargs: Any) -> Any:
        """Create the task as ``schedule`` does, without blocking the event loop."""
        return await sync_to_async(self.schedule)(*args, **kwargs)

    async def aschedule_many(self, arguments: Iterable[Iterable[Any]], **options: Any) -> Any:
        """Create tasks as ``schedule_many`` does, without blocking the event loop."""
        return await sync_to_async(self.schedule_many)(arguments, **options)

    async def adelay(self, /, *args: Any, **kwargs: Any) -> Any:
        """Create the task as ``delay`` does, without blocking the event loop."""
        return await sync_to_async(self.delay)(*args, **kwargs)

    def delay(self, /, *args: Any, **kwargs: Any) -> Any:
        """Create the row in the caller's transaction and return a DurableResult.

        As in Celery this is ``apply_async(args, kwargs)`` if a subclass overrides that method.
        """
        return self._calls.delay(*args, **kwargs)

    def delay_on_commit(self, /, *args: Any, **kwargs: Any) -> Any:
        """Create the task in the caller's transaction, as ``apply_async_on_commit`` does."""
        return self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, *args: Any, **options: Any) -> Any:
        """Create the task in the caller's transaction and return a DurableResult.

        If the tasks are in another database than ``default``, whose transaction Celery means, the
        task is created after that transaction has been committed, and None is returned inside of
        it.
        """
        if conf.settings().DATABASE == DEFAULT_DB_ALIAS or not connection.in_atomic_block:
            return self.apply_async(*args, **options)
        transaction.on_commit(partial(self.apply_async, *args, **options))
        return None

    def apply_async(
        self, args: Any = None, kwargs: Any = None, task_id: Any = None, **options: Any
    ) -> Any:
        """Create the task with the options of Celery's ``apply_async``; return a DurableResult."""
        return calls.of(self.name).apply_async(args, kwargs, task_id=task_id, **options)

    def AsyncResult(self, task_id: Any, **options: Any) -> DurableResult:  # noqa: N802 - Celery's name
        """Return the result of the task with this id."""
        return DurableResult(task_id, **options)

    def __init_subclass__(cls, **options: Any) -> None:
        """Make hooks such as ``on_failure`` receive the id and the arguments of the task, and an
        overridden ``__call__`` its arguments.
        """
        super().__init_subclass__(**options)
        gate.wrap_hooks(cls)
        gate.wrap_call(cls, DurableTask)

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Refuse a class that was registered without ``@durable_task``."""
        if not hasattr(cls, "durable_options"):
            # @app.task(base=...) makes a class with the name of the function.
            base = cls.__mro__[1] if "_decorated" in vars(cls) else cls
            raise InvalidOption(
                f"{cls.__name__} is a DurableTask that was registered with Celery itself: write a"
                f" function with @durable_task(bind=True, base={base.__name__}) instead of"
                " app.register_task() or @app.task(base=...)."
            )

    def update_state(
        self, task_id: Any = None, state: Any = None, meta: Any = None, **options: Any
    ) -> None:
        """Show this state and ``meta`` in results while the function runs. The next heartbeat
        writes them.

        Both are encoded now, so later changes of ``meta`` have no effect. Raises
        UnserializableResult, ResultTooLarge, or InvalidOption for a state that is no text of at
        most 50 characters.
        """
        live = process_runs.current()
        if live is None or (task_id is not None and str(task_id) != str(live.run.task_id)):
            super().update_state(task_id, state, meta, **options)
            return
        if state is not None and not (isinstance(state, str) and len(state) <= _STATE_MAX):
            raise InvalidOption(
                f"update_state(state={state!r:.60}): give a text of at most {_STATE_MAX}"
                " characters."
            )
        settings = conf.settings()
        live.report(
            encode_result(
                self.name,
                {STATE: state, META: meta},
                max_bytes=settings.RESULT_MAX_BYTES,
                max_depth=JSON_MAX_DEPTH + 1,
            )
        )

    def replace(self, sig: Any) -> NoReturn:
        """Raise InvalidOption: a durable task cannot be replaced."""
        raise InvalidOption(
            "self.replace(): a durable task cannot be replaced while it runs; return Schedule(task,"
            " args) from the function, or add to the workflow by self.durable.workflow."
        )

    def add_to_chord(self, sig: Any, lazy: bool = False) -> NoReturn:
        """Raise InvalidOption: a durable task cannot be part of Celery's chords."""
        raise InvalidOption("self.add_to_chord(): add to the workflow by self.durable.workflow.")

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        """Request another attempt, whose delay is stored in the row. Nothing is published.

        With ``throw=False`` the function continues, and the next attempt follows whatever its
        result is.
        """
        live = process_runs.current()
        if live is None:
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        refused = sorted({**({} if args is None and kwargs is None else {"args": args}), **options})
        if refused:
            raise InvalidOption(
                f"self.retry({refused[0]}=...): the next attempt has the arguments and options of"
                " the row; to change them return Schedule(...) instead."
            )
        retry = retry_exception(self, live, exc, countdown or eta or countdown, max_retries)
        if throw:
            raise retry from exc
        live.requested_retry = retry
        return retry


def signature_of(function: Any, *, bound: bool) -> inspect.Signature:
    """Return the signature for calls: without ``self`` if ``bound``."""
    signature = inspect.signature(function)
    if not bound:
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])


# Implements Celery's retry options and ``self.retry()`` for durable tasks. The delay is stored in
# the row.
#
# A task without any retry option uses the defaults of this package for errors that its function
# raises. If Celery's options are given, only ``self.retry()`` and the errors of ``autoretry_for``
# are retried, unless ``max_attempts`` or ``retry_for`` is given too.


RETRY_OPTIONS = frozenset(
    {
        "autoretry_for",
        "dont_autoretry_for",
        "retry_kwargs",
        "retry_backoff",
        "retry_backoff_max",
        "retry_jitter",
        "max_retries",
        "default_retry_delay",
    }
)
"""The retry options of Celery's decorator."""


_OF_A_RETRY = frozenset({"countdown", "max_retries"})


def with_those_of_base(base: type, declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``declared`` with the retry options that are attributes of a class. Those of the
    decorator take precedence.
    """
    options: dict[str, Any] = {}
    for option in RETRY_OPTIONS:
        owner = next((kind for kind in base.__mro__ if option in vars(kind)), CeleryTask)
        if owner is not CeleryTask:
            options[option] = getattr(base, option)
    if "max_attempts" in declared:
        options.pop("max_retries", None)
    return {**options, **declared}


def implied_retries(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return Celery's options in ``declared`` as options of this package; raises InvalidOption."""
    if RETRY_OPTIONS.isdisjoint(declared):
        return {}
    if "max_retries" in declared and "max_attempts" in declared:
        raise InvalidOption(
            f"max_retries={declared['max_retries']!r} and max_attempts=...: give one of them."
        )
    retry_kwargs = declared.get("retry_kwargs") or {}
    for option in retry_kwargs:
        if option not in _OF_A_RETRY:
            raise InvalidOption(
                f"retry_kwargs={{{option!r}: ...}}: a durable task takes"
                f" {' and '.join(sorted(_OF_A_RETRY))} there."
            )
    options: dict[str, Any] = {}
    if "max_attempts" not in declared:
        limit = retry_kwargs.get("max_retries", declared.get("max_retries", CeleryTask.max_retries))
        is_number = isinstance(limit, int) and not isinstance(limit, bool)
        if limit is not None and not (is_number and 0 <= limit < ATTEMPTS_MAX):
            raise InvalidOption.of(
                "max_retries", limit, f"give a whole number from 0 to {ATTEMPTS_MAX - 1}, or None."
            )
        options["max_attempts"] = _attempts(limit)
    if "retry_for" not in declared and (
        declared.get("autoretry_for") or "max_attempts" not in declared
    ):
        options["retry_for"] = ()
    return options


def _attempts(max_retries: int | None) -> int:
    return ATTEMPTS_MAX if max_retries is None else min(max_retries + 1, ATTEMPTS_MAX)


def celery_options(declared: Mapping[str, Any], options: TaskOptions) -> dict[str, Any]:
    """Return the attributes of Celery's task class that ``self.retry()`` uses. A delay of None
    means that the row's policy decides.
    """
    attributes: dict[str, Any] = {
        "max_retries": declared.get("max_retries", CeleryTask.max_retries)
    }
    if options.limits_retries:
        attributes["max_retries"] = options.max_attempts - 1
    delay = declared.get("default_retry_delay")
    if delay is not None:
        attributes["default_retry_delay"] = seconds("default_retry_delay", delay)
    elif options.spaces_retries:
        attributes["default_retry_delay"] = None
    return attributes


def retry_exception(
    task: Any,
    live: LiveRun,
    exc: BaseException | None,
    when: datetime | float | None,
    max_retries: int | None,
) -> CeleryRetry:
    """Return the exception that requests another attempt. Raises ``exc`` or MaxRetriesExceededError
    if no retry is left.
    """
    options: TaskOptions = task.durable_options
    # ``max_attempts``, if the call or the decorator sets it.
    stated: int | None = live.run.options.get("max_attempts")
    if stated is None and options.limits_retries:
        stated = options.max_attempts
    limit = task.max_retries if max_retries is None else max_retries
    if stated is not None:
        limit = stated - 1 if max_retries is None else min(max_retries, stated - 1)
    if limit is not None and live.run.failures >= limit:
        live.max_attempts = live.run.failures + 1
        text = f"Can't retry {task.name}[{live.run.task_id}]: {limit} retries."
        error = exc or MaxRetriesExceededError(text)
        handled = sys.exception()
        if handled is None or handled is error:
            raise error
        raise error from handled  # as Celery does
    if stated is None:
        live.max_attempts = _attempts(limit)
    if isinstance(when, datetime) and when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    delay: Any = task.default_retry_delay if when is None else when
    return CeleryRetry("The task requested another attempt.", exc=exc, when=delay)

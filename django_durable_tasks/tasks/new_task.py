"""Checks the arguments, options and keys of a call, and builds the new task with the caller's
trace.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from django.db import InterfaceError, OperationalError

from django_durable_tasks import conf, ports
from django_durable_tasks.choices import OnUpstreamFailure
from django_durable_tasks.dependencies.joins import Join
from django_durable_tasks.dependencies.references import MASKED, REFERS
from django_durable_tasks.exceptions import DurableTasksError, InvalidOption
from django_durable_tasks.host_clock import host_now
from django_durable_tasks.limits.scopes import key_of, key_of_tenant
from django_durable_tasks.models import DEFAULT_TENANT_ID, Task
from django_durable_tasks.models.tasks import new_task_id, new_task_ids
from django_durable_tasks.option_values import checked_key, checked_name
from django_durable_tasks.registry import Registered, bind
from django_durable_tasks.states.demand import shard_of
from django_durable_tasks.store.errors import is_of_another_database
from django_durable_tasks.task_values import NO_ID, PER_CALL, NewTask, traceparents, with_trace
from django_durable_tasks.tasks.arguments import JSON_MAX_DEPTH, encode
from django_durable_tasks.tasks.options import CallOptions, check_time_limits, formatted

# Seconds, a year: the longest distance of run_at and of a retry. A later time is a mistake, such as
# milliseconds.
DELAY_MAX = 31_536_000.0
_SLICE = 250
"""The number of tasks of a part of ``TaskTemplate.slices``."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a durable task, with its arguments and options."""

    task: Registered
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: CallOptions = CallOptions()


class TaskTemplate:
    """Builds the tasks of calls of one durable task that have the same options.

    The constructor checks the options. It and the methods raise DurableTasksError and write
    nothing.
    """

    def __init__(self, task: Registered, options: CallOptions, stored: Mapping[str, Any]) -> None:
        settings = conf.settings()
        check_options(options, settings)
        # The limits of the call with those of the decorator for what the call leaves out.
        check_time_limits(
            options.timeout or task.options.timeout,
            options.soft_timeout or task.options.soft_timeout,
        )
        self._task, self._options = task, options
        self._bytes, self._depth = settings.PAYLOAD_MAX_BYTES, JSON_MAX_DEPTH
        self._queue = options.queue or task.options.queue
        limited = key_of(task.options.rate_limit, task.options.max_concurrency) is not None
        self._has_limit_key = limited or task.target.endpoint is not None
        self._shared = {"": _shared_values(task, options, stored)[PER_CALL:]}
        self._fixed: tuple[Any, ...] | None = None
        if not ports.routes_by_arguments(self._queue):
            self._fixed = self._shared_by(ports.queue_of(task.options.name, self._queue))

    @property
    def calls_project_code(self) -> bool:
        """Whether building a task may call functions that use the database connection."""
        target = self._task.target
        return self._fixed is None or target.endpoint is not None or target.prepared is not None

    def many(self, calls: Sequence[tuple[Any, ...]]) -> list[NewTask]:
        """Return a task for each tuple of positional arguments, PENDING."""
        return [task for part in self.slices(calls) for task in part]

    def slices(self, calls: Sequence[tuple[Any, ...]]) -> Iterator[list[NewTask]]:
        """Yield the tasks of ``many`` in parts, each built when it is requested."""
        for first in range(0, len(calls), _SLICE):
            part = calls[first : first + _SLICE]
            pairs = zip(part, new_task_ids(len(part)), strict=True)
            yield [self.called(args, {}, task_id) for args, task_id in pairs]

    def called(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], task_id: uuid.UUID
    ) -> NewTask:
        """Return the task of a call whose arguments must fit the function, PENDING."""
        return self.task(args, kwargs, prepared_kwargs(self._task, args, kwargs), task_id)

    def task(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        stored: Mapping[str, Any],
        task_id: uuid.UUID,
    ) -> NewTask:
        """Return the task of a call whose arguments were checked, PENDING.

        ``stored`` are the keyword arguments as the target stores them.
        """
        task, shared, key = self._task.options, self._fixed, None
        name = task.name
        payload = encode(name, args, stored, max_bytes=self._bytes, max_depth=self._depth)
        if self._has_limit_key:
            key = limit_key(Call(self._task, args, kwargs, self._options))
        if shared is None:
            shared = self._shared_by(ports.queue_of(name, self._queue, args, kwargs))
        new = NewTask._make(
            (task_id, payload.args, payload.kwargs, shard_of(task_id), key, *shared)
        )
        if task.unique is None:
            return new
        return new._replace(unique_key=_unique_key(task.name, task.unique, args, kwargs))

    def _shared_by(self, queue: str) -> tuple[Any, ...]:
        found = self._shared.get(queue)
        if found is None:
            first = NewTask._make((*[None] * PER_CALL, *self._shared[""]))
            found = first._replace(queue=checked_name("queue", queue))[PER_CALL:]
            self._shared[queue] = found
        return found


def _shared_values(task: Registered, given: CallOptions, stored: Mapping[str, Any]) -> NewTask:
    """Return a task with the values that do not depend on the arguments of a call."""
    options = task.options
    return NewTask(
        id=NO_ID,
        args="[]",
        kwargs="{}",
        shard_key=0,
        limit_key=None,
        tenant_id=_tenant_id(given.tenant),
        name=options.name,
        queue="",
        priority=options.priority if given.priority is None else given.priority,
        max_attempts=given.max_attempts or options.max_attempts,
        max_crashes=given.max_crashes or options.max_crashes,
        on_orphan=str(given.on_orphan or options.on_orphan),
        weight=given.weight or options.weight,
        options=json.dumps(stored) if stored else None,
        run_at=given.run_at,
        expires_at=given.expires_at,
        expires_in=options.expires_in if given.expires_in is None else given.expires_in,
        expected_duration=given.expected_duration or options.expected_duration,
        has_given_id=given.task_id is not None,
        idempotency_key=given.idempotency_key,
        key=given.key,
        on_upstream_failure=given.on_upstream_failure or OnUpstreamFailure.SKIP.value,
        target_type=task.target.type.value,
        in_batch=options.batch is not None and given.fits_batch and not ports.eager(),
    )


def step_template(
    task: Registered, options: CallOptions, *, refers: bool, hides_secrets: bool = False
) -> TaskTemplate:
    """Return the template of the steps of a workflow with these options; raises DurableTasksError.

    ``refers``: their arguments contain references to results, which are resolved when the task
    starts. The target checks the arguments then, so ``TaskTemplate.task`` builds such a step.
    ``hides_secrets``: secrets in these results are masked.
    """
    stored = options.overrides()
    if refers:
        stored = {**stored, REFERS: MASKED if hides_secrets else 1}
    return TaskTemplate(task, options, stored)


def new_task(call: Call) -> NewTask:
    """Check a call and return its task, PENDING. Raises DurableTasksError; writes nothing."""
    task_id = call.options.task_id or new_task_id()
    return template(call.task, call.options).called(call.args, call.kwargs, task_id)


def template(task: Registered, options: CallOptions) -> TaskTemplate:
    """Return the template of calls of this task with these options; raises DurableTasksError."""
    return TaskTemplate(task, options, options.overrides())


def prepared_kwargs(
    task: Registered, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the keyword arguments of a call as its target stores them; raises
    DurableTasksError.
    """
    if not task.shape.fits(args, kwargs):
        bind(task.signature, task.options.name, args, kwargs)
    prepared = task.target.prepared
    return kwargs if prepared is None else prepared(kwargs)


def _tenant_id(tenant: Any) -> int:
    if tenant is None:
        return DEFAULT_TENANT_ID
    found = getattr(tenant, "pk", tenant)
    if isinstance(found, bool) or not isinstance(found, int):
        raise InvalidOption.of("tenant", tenant, "give a saved Tenant or its id.")
    return found


def check_options(given: CallOptions, settings: conf.Settings) -> None:
    """Check the options of a call together and with the settings; raises InvalidOption."""
    if given.lease is not None and given.lease < 2 * settings.HEARTBEAT:
        raise InvalidOption(
            f"lease={given.lease:g}: give at least 2 x HEARTBEAT, {2 * settings.HEARTBEAT:g} s.",
            option="lease",
        )
    if given.depends_on is None and given.join != Join.ALL:
        raise InvalidOption(
            f"join={given.join!r} needs depends_on=..., the tasks that are meant.", option="join"
        )
    if given.run_at is not None and (given.run_at - host_now()).total_seconds() > DELAY_MAX:
        raise InvalidOption(
            f"run_at={given.run_at.isoformat()} is more than {DELAY_MAX:,.0f} s ahead, a year.",
            option="run_at",
        )
    if (
        given.expires_at is not None
        and given.run_at is not None
        and given.expires_at <= given.run_at
    ):
        raise InvalidOption(
            f"expires_at={given.expires_at.isoformat()} is not after run_at: the task could never"
            " start.",
            option="expires_at",
        )


def _unique_key(
    name: str, unique: str | Callable[..., str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    if isinstance(unique, str):
        return formatted("unique", unique, args, {**kwargs, "task": name})
    try:
        found = unique(*args, **kwargs)
    except (Exception, SystemExit) as error:
        # An error of this connection may need a retry of the whole transaction.
        ours = isinstance(error, OperationalError | InterfaceError)
        if isinstance(error, DurableTasksError) or (ours and not is_of_another_database(error)):
            raise
        kind = type(error).__name__
        raise InvalidOption(f"unique={unique!r} of {name} raised {kind}: {error}") from error
    return checked_key("unique", found)


def limit_key(call: Call) -> str | None:
    """Return the key of the call in a PerKey limit or its endpoint, or None. Raises
    InvalidOption.
    """
    tenant_id, keyed = _tenant_id(call.options.tenant), _per_key(call.task, call.args, call.kwargs)
    if keyed is not None:
        return key_of_tenant(tenant_id, keyed)
    endpoint = call.task.target.endpoint
    return endpoint and endpoint(tenant_id, call.kwargs)


def _per_key(task: Registered, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    options = task.options
    template = key_of(options.rate_limit, options.max_concurrency)
    if template is None:
        return None
    return formatted("PerKey", template, args, {**kwargs, "task": options.name})


def keys_of(task: Registered, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    """Return the keys that the options of the task derive from these arguments: of ``unique`` and
    of PerKey limits. Raises InvalidOption.
    """
    unique, name = task.options.unique, task.options.name
    unique_key = None if unique is None else _unique_key(name, unique, tuple(args), kwargs)
    return unique_key, _per_key(task, args, kwargs)


# Adds the trace of the caller to new tasks, if TRACES is set.


def traced(task: NewTask, upstreams: Sequence[Task] = ()) -> NewTask:
    """Return the task with the context of its creation, and those of its upstreams."""
    if ports.traces is None:
        return task
    links = traceparents([upstream.options for upstream in upstreams])
    context = ports.traces.created(task.name, task.queue, str(task.id), 1, links)
    return task if context is None else _with_trace(task, context, links)


def traced_together(tasks: Sequence[NewTask], name: str) -> list[NewTask]:
    """Return the tasks of the workflow of this name, all with one context."""
    return list(_tracer(tasks, len(tasks), name)(tasks))


def tracer(
    template: TaskTemplate, first: Sequence[tuple[Any, ...]], calls: Iterable[Any]
) -> Callable[[Sequence[NewTask]], Sequence[NewTask]]:
    """Return a function that adds one context to all tasks of a bulk call.

    ``first``: the arguments of the first calls. ``calls``: all calls, which are counted if they
    have a length.
    """
    if ports.traces is None:
        return _unchanged
    number = len(calls) if isinstance(calls, Sized) else len(first)
    return _tracer(template.many(first[:1]), number)


def _tracer(
    tasks: Sequence[NewTask], number: int, name: str = ""
) -> Callable[[Sequence[NewTask]], Sequence[NewTask]]:
    if ports.traces is None or not tasks:
        return _unchanged
    first = tasks[0]
    context = ports.traces.created(name or first.name, first.queue, "", number, [])
    if context is None:
        return _unchanged
    return lambda new: [_with_trace(one, context) for one in new]


def _unchanged(tasks: Sequence[NewTask]) -> Sequence[NewTask]:
    return tasks


def _with_trace(task: NewTask, context: str, links: Sequence[str] = ()) -> NewTask:
    return task._replace(options=with_trace(task.options, context, links))

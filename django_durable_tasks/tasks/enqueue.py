"""Creates tasks from calls, in the caller's transaction and at most once for each key, and
publishes them at commit if that is possible.
"""

from __future__ import annotations

import json
import logging
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, TypeVar

from django.db import InterfaceError, OperationalError, connections, transaction
from django.db.models import Q, QuerySet

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.audit import current_actor, masked_arguments
from django_durable_tasks.choices import (
    AuditSource,
    OnUpstreamFailure,
    Status,
    TargetType,
    UniqueOnConflict,
)
from django_durable_tasks.dependencies import edit, rules
from django_durable_tasks.dependencies.edges import tally_of
from django_durable_tasks.exceptions import (
    DurableTasksError,
    IdempotencyConflict,
    InvalidOption,
    TransitionRefused,
    UniqueConflict,
)
from django_durable_tasks.limits.scopes import key_of, key_of_tenant
from django_durable_tasks.models import DEFAULT_TENANT_ID, RequestKind, Task
from django_durable_tasks.option_values import checked_key
from django_durable_tasks.registry import Registered, bind
from django_durable_tasks.states import claims, dependencies, endings, inserts
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import has_passed, host_now
from django_durable_tasks.store.errors import DEADLOCKS, code_of, is_of_another_database
from django_durable_tasks.store.tables import (
    FAST_PATH_MAX,
    messages_so_far,
    publish_after_commit,
    remember_until_commit,
    start_batch_after_commit,
)
from django_durable_tasks.targets import http_request
from django_durable_tasks.task_values import (
    NO_ID,
    PER_CALL,
    SENTRY_HEADERS,
    TRACEPARENT,
    NewTask,
    new_task_id,
    new_task_ids,
    shard_of,
    traceparents,
    with_trace,
)
from django_durable_tasks.tasks import requests
from django_durable_tasks.tasks.arguments import JSON_MAX_DEPTH, encode
from django_durable_tasks.tasks.options import (
    CallOptions,
    Schedule,
    call_options,
    check_time_limits,
    formatted,
)

# Checks the arguments, options and keys of a call, and builds the new task with the caller's
# trace.


# Seconds, a year: the longest distance of run_at and of a retry. A later time is an error, such as
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
        # The values that do not depend on the arguments of a call.
        defaults = task.options
        shared = NewTask(
            id=NO_ID,
            args="[]",
            kwargs="{}",
            shard_key=0,
            limit_key=None,
            tenant_id=_tenant_id(options.tenant),
            name=defaults.name,
            queue="",
            priority=defaults.priority if options.priority is None else options.priority,
            max_attempts=options.max_attempts or defaults.max_attempts,
            max_crashes=options.max_crashes or defaults.max_crashes,
            on_orphan=str(options.on_orphan or defaults.on_orphan),
            weight=options.weight or defaults.weight,
            options=json.dumps(stored) if stored else None,
            run_at=options.run_at,
            expires_at=options.expires_at,
            expires_in=defaults.expires_in if options.expires_in is None else options.expires_in,
            expected_duration=options.expected_duration or defaults.expected_duration,
            has_given_id=options.task_id is not None,
            idempotency_key=options.idempotency_key,
            key=options.key,
            on_upstream_failure=options.on_upstream_failure or OnUpstreamFailure.SKIP.value,
            target_type=task.target.type.value,
            in_batch=defaults.batch is not None and options.fits_batch and not ports.eager(),
        )
        self._shared = {"": shared[PER_CALL:]}
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
        return [task for tasks in self.slices(calls) for task in tasks]

    def slices(self, calls: Sequence[tuple[Any, ...]]) -> Iterator[list[NewTask]]:
        """Yield the tasks of ``many`` in parts, each built when it is requested."""
        for first in range(0, len(calls), _SLICE):
            chunk = calls[first : first + _SLICE]
            pairs = zip(chunk, new_task_ids(len(chunk)), strict=True)
            yield [self.called(args, {}, task_id) for args, task_id in pairs]

    def called(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], task_id: uuid.UUID
    ) -> NewTask:
        """Return the task of a call whose arguments must fit the function, PENDING."""
        stored = prepared_kwargs(self._task, args, kwargs)
        types = self._task.types
        if types is not None:
            # Keys are made of the JSON form too, so that they are the same after an edit.
            args, stored = types.to_json(self._task.options.name, args, stored)
            kwargs = stored
        return self.task(args, kwargs, stored, task_id)

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
        payload = encode(
            name,
            args,
            stored,
            max_bytes=self._bytes,
            max_depth=self._depth,
            signature=self._task.signature,
        )
        if self._has_limit_key:
            key = limit_key(Call(self._task, args, kwargs, self._options))
        if shared is None:
            shared = self._shared_by(ports.queue_of(name, self._queue, args, kwargs))
        new = NewTask._make(
            (task_id, payload.args, payload.kwargs, shard_of(task_id), key, *shared)
        )
        if task.unique is None:
            return new
        return new._replace(unique_key=_unique_key(self._task, task.unique, args, kwargs))

    def _shared_by(self, queue: str) -> tuple[Any, ...]:
        values = self._shared.get(queue)
        if values is None:
            first = NewTask._make((*[None] * PER_CALL, *self._shared[""]))
            values = first._replace(queue=queue)[PER_CALL:]
            self._shared[queue] = values
        return values


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
        stored = {**stored, rules.REFERS: rules.MASKED if hides_secrets else 1}
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
    tenant_id = getattr(tenant, "pk", tenant)
    if isinstance(tenant_id, bool) or not isinstance(tenant_id, int):
        raise InvalidOption.of("tenant", tenant, "give a saved Tenant or its id.")
    return tenant_id


def check_options(options: CallOptions, settings: conf.Settings) -> None:
    """Check the options of a call together and with the settings; raises InvalidOption."""
    if options.lease is not None and options.lease < 2 * settings.HEARTBEAT:
        raise InvalidOption(
            f"lease={options.lease:g}: give at least 2 x HEARTBEAT, {2 * settings.HEARTBEAT:g} s.",
            option="lease",
        )
    if options.depends_on is None and options.join != rules.Join.ALL:
        raise InvalidOption(
            f"join={options.join!r} needs depends_on=..., the tasks that are meant.", option="join"
        )
    if options.run_at is not None and (options.run_at - host_now()).total_seconds() > DELAY_MAX:
        raise InvalidOption(
            f"run_at={options.run_at.isoformat()} is more than {DELAY_MAX:,.0f} s ahead, a year.",
            option="run_at",
        )
    if (
        options.expires_at is not None
        and options.run_at is not None
        and options.expires_at <= options.run_at
    ):
        raise InvalidOption(
            f"expires_at={options.expires_at.isoformat()} is not after run_at: the task could never"
            " start.",
            option="expires_at",
        )


def _unique_key(
    task: Registered,
    unique: str | Callable[..., str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    name = task.options.name
    if isinstance(unique, str):
        return formatted("unique", unique, args, {**kwargs, "task": name})
    if task.types is not None:
        args, kwargs = task.types.from_json(name, args, kwargs, refers=True)
    try:
        key = unique(*args, **kwargs)
    except (Exception, SystemExit) as error:
        # An error of this connection may need a retry of the whole transaction.
        is_database_error = isinstance(error, OperationalError | InterfaceError)
        if isinstance(error, DurableTasksError) or (
            is_database_error and not is_of_another_database(error)
        ):
            raise
        kind = type(error).__name__
        raise InvalidOption(f"unique={unique!r} of {name} raised {kind}: {error}") from error
    return checked_key("unique", key)


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
    unique = task.options.unique
    unique_key = None if unique is None else _unique_key(task, unique, tuple(args), kwargs)
    return unique_key, _per_key(task, args, kwargs)


# Adds the trace of the caller to new tasks: that of OpenTelemetry if TRACES is set, and that of
# Sentry if its integration of Celery is active. Sentry adds it in a wrapper of Celery's
# ``Task.apply_async``, which does not create durable tasks.


def traced(task: NewTask, upstreams: Sequence[Task] = ()) -> NewTask:
    """Return the task with the context of its creation, and those of its upstreams."""
    if not _may_trace():
        return task
    links = traceparents([upstream.options for upstream in upstreams]) if ports.traces else []
    context = _context(task.name, task.queue, str(task.id), 1, links)
    return _with_trace(task, context, links) if context else task


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
    if not _may_trace():
        return _unchanged
    number = len(calls) if isinstance(calls, Sized) else len(first)
    return _tracer(template.many(first[:1]), number)


def _tracer(
    tasks: Sequence[NewTask], number: int, name: str = ""
) -> Callable[[Sequence[NewTask]], Sequence[NewTask]]:
    if not tasks or not _may_trace():
        return _unchanged
    first = tasks[0]
    context = _context(name or first.name, first.queue, "", number, [])
    if not context:
        return _unchanged
    return lambda new: [_with_trace(task, context) for task in new]


def _may_trace() -> bool:
    return ports.traces is not None or "sentry_sdk" in sys.modules


def _context(
    name: str, queue: str, task_id: str, number: int, links: Sequence[str]
) -> dict[str, str]:
    traceparent = (
        None if ports.traces is None else ports.traces.created(name, queue, task_id, number, links)
    )
    return {**({TRACEPARENT: traceparent} if traceparent else {}), **_context_in_sentry(name)}


def _context_in_sentry(name: str) -> dict[str, str]:
    """Return the headers of the caller's trace in Sentry; none without its integration of Celery.
    An error of the SDK is logged, because it must not fail the call.
    """
    sentry: Any = sys.modules.get("sentry_sdk")
    try:
        integration = sentry and sentry.get_client().get_integration("celery")
        if not integration or not integration.propagate_traces:
            return {}
        values = (sentry.get_traceparent(), sentry.get_baggage())
        headers = zip(SENTRY_HEADERS, values, strict=True)
        return {header: value for header, value in headers if value}
    except Exception:
        logger.exception("The trace of the caller was not added to a task %s.", name)
        return {}


def _unchanged(tasks: Sequence[NewTask]) -> Sequence[NewTask]:
    return tasks


def _with_trace(task: NewTask, context: Mapping[str, str], links: Sequence[str] = ()) -> NewTask:
    return task._replace(options=with_trace(task.options, context, links))


# The fast path: a task that is due now is published when the transaction that creates it commits,
# without a claim by a scheduler.
#
# A task that runs in batches stays PENDING. For it a batch message is published if none is
# outstanding.


def queued_if_possible(task: NewTask) -> NewTask:
    """Return the task as QUEUED if it may be published at commit, and with ``starts_batch`` if a
    batch message may be; unchanged otherwise.
    """
    if task.in_batch:
        return task._replace(starts_batch=True) if may_start_batch(task) else task
    if not may_publish_at_once(task, task.run_at):
        return task
    wait = conf.settings().REPUBLISH_AFTER
    return task._replace(status=Status.QUEUED, epoch=1, publish_count=1, wait=wait)


def may_publish_at_once(task: NewTask, run_at: datetime | None) -> bool:
    """Return whether this task may be inserted as QUEUED and published at commit.

    Workers must need a message for it, it must not run in a batch, and it must be due: ``run_at``
    is None or has certainly passed by the database's clock.
    """
    if task.in_batch or ports.takes_tasks() or not _is_due(run_at):
        return False
    hooks = connections[tables.database()].run_on_commit
    if hooks and messages_so_far() >= FAST_PATH_MAX and not ports.eager():
        return False
    return ports.broker_open(task.queue) and ports.fast_path.is_open(
        task.name, task.queue, task.tenant_id
    )


def may_start_batch(task: NewTask) -> bool:
    """Return whether a batch message for this PENDING task may be published at commit."""
    return (
        task.in_batch
        and _is_due(task.run_at)
        and ports.broker_open(task.queue)
        and ports.fast_path.may_start_batch(task.name, task.queue, task.tenant_id)
    )


def _is_due(run_at: datetime | None) -> bool:
    """Return whether the fast path is enabled, the COMMIT is noticed, and the task is due: without
    ``run_at``, or if it has certainly passed by the database's clock.
    """
    connection = connections[tables.database()]
    if not conf.settings().FAST_PATH:
        return False
    if not connection.in_atomic_block and not connection.get_autocommit():
        return False
    return run_at is None or has_passed(run_at)


# Inserts one new task, and publishes it when the transaction commits if that is possible.


logger = logging.getLogger("django_durable_tasks.calls")


def insert(task: NewTask) -> bool:
    """Insert a task; return False, without a change, if one of its keys is taken."""
    if not inserts.create(task):
        return False
    publish_new(task)
    return True


def insert_with_answer(task: NewTask, now: datetime, parameters: Mapping[str, Any]) -> bool:
    """Insert a task with the answer to its request; return False, without a change, if the
    Idempotency-Key is taken.

    As after a COMMIT, an error of the broker is logged and not raised: the task exists, and the
    request must not look refused.
    """
    if not inserts.create_with_answer(task, now, parameters):
        return False
    try:
        publish_new(task)
    except Exception:
        logger.exception("Task %s was created but not published; a scheduler will do so.", task.id)
    return True


def publish_new(task: NewTask) -> None:
    """Publish the message of an inserted task at the COMMIT if it is QUEUED, or a batch message."""
    remember_until_commit(task.id)
    if task.status == Status.QUEUED:
        publish_after_commit(claims.messages_for([task]))
    elif task.status == Status.PENDING and (task.starts_batch or may_start_batch(task)):
        start_batch_after_commit(task.queue, task.name, task.priority)


# Idempotency keys, ``unique`` and ``key``: finds the task that has the key, or assigns the key to
# the new task.
#
# ``enqueue`` calls these functions.


_TRIES_OF_A_KEY = 5


def same_call(call: Call, task: NewTask) -> uuid.UUID | None:
    """Return the task that the first call with this idempotency key, or this id, created.

    Raises IdempotencyConflict if that call was of another task or had other arguments. Clients of
    the API may not be able to read secrets, so that for them these are not compared.
    """
    lookup: dict[str, Any]
    if task.idempotency_key is not None:
        lookup = {"idempotency_key": task.idempotency_key}
        label = f"idempotency_key={task.idempotency_key!r}"
    elif task.has_given_id:
        lookup, label = {"pk": task.id}, f"task_id={task.id}"
    else:
        return None
    first = tables.tasks().for_tenant(task.tenant_id).filter(**lookup).first()
    if first is None:
        return None
    check_same_call(first, task, label)
    return first.id


def first_calls(tenant_id: int, keys: Collection[str]) -> dict[str, Task]:
    """Return the tasks that the first calls with these idempotency keys created, by their keys."""
    if not keys:
        return {}
    of_tenant = tables.tasks().for_tenant(tenant_id)
    rows = tables.with_texts(of_tenant, "idempotency_key", keys)
    return {str(row.idempotency_key): row for row in rows}


def check_same_call(first: Task, task: NewTask, label: str) -> None:
    """Raise IdempotencyConflict if the first call was of another task or had other arguments."""
    if first.name == task.name:
        before: Any = first.args, first.kwargs
        now: Any = json.loads(task.args), json.loads(task.kwargs)
        if current_actor().source == AuditSource.API:
            before, now = masked_arguments(first.name, *before), masked_arguments(first.name, *now)
        if before == now:
            return
    raise IdempotencyConflict(
        f"{label} belongs to task {first.pk} ({first.name}) with other arguments."
    )


def acquire_unique(call: Call, task: NewTask, key: str) -> uuid.UUID:
    """Apply ``unique_on_conflict`` to the open task that has the unique key.

    Return its id, or the id of the task that replaces it. Raises UniqueConflict.
    """
    policy = call.task.options.unique_on_conflict
    for _ in range(_TRIES_OF_A_KEY):
        owner = requests.owner(RequestKind.UNIQUE_KEY, task.tenant_id, key)
        if owner is not None and policy == UniqueOnConflict.RAISE:
            raise UniqueConflict(
                f"unique={key!r} belongs to the open task {owner.pk} ({owner.status})."
            )
        if owner is not None and policy == UniqueOnConflict.RETURN_EXISTING:
            return owner.id
        with tables.atomic():
            if owner is not None:
                replaced = tables.tasks().filter(pk=owner.pk)
                endings.cancel(replaced, "REPLACED")
                endings.request_cancel(replaced, "REPLACED")
            if _insert_as_owner(owner, RequestKind.UNIQUE_KEY, task, key):
                return task.id
            # Nothing was inserted, so the cancellation of the owner is rolled back.
            transaction.set_rollback(True, using=tables.database())
    raise UniqueConflict(
        f"unique={key!r} was not acquired after {_TRIES_OF_A_KEY} attempts because of concurrent"
        " updates; retry the call."
    )


def _insert_as_owner(owner: Task | None, kind: RequestKind, task: NewTask, key: str) -> bool:
    """Insert a task whose key this RUNNING owner releases; return False if another key is taken.

    In a caller's transaction the owner's row is not touched, because its ending would wait for the
    caller's commit. The key is passed on after that commit.
    """
    if owner is None:
        return insert(task)
    this = tables.tasks().filter(pk=owner.pk)
    if not tables.callers_transaction():
        inserts.release_key(this, kind.marker)
        return insert(task)
    before = owner.pk if getattr(owner, kind.marker) is None else None
    if before is None and not this.filter(**{kind.marker: key}).exists():
        return insert(task)
    if not requests.leave_key(kind, task.tenant_id, key, task.id, before):
        return False
    without_key = (
        task._replace(key=None) if kind == RequestKind.KEY else task._replace(unique_key=None)
    )
    return insert(without_key) and inserts.name_key(task.id, kind.lower(), key)


def upsert(call: Call, task: NewTask, key: str) -> uuid.UUID:
    """Update the waiting task of this key, or create it; return its id.

    A RUNNING task of the key finishes with its arguments, and a new task becomes the key's owner.
    """
    same = same_call(call, task)
    if same is not None:
        return same
    for _ in range(_TRIES_OF_A_KEY):
        task_id = _update_or_insert(call, task, key) or same_call(call, task)
        if task_id is not None:
            return task_id
    if task.unique_key is not None:
        return acquire_unique(call, task, task.unique_key)
    raise TransitionRefused(
        f"key={key!r} was not acquired after {_TRIES_OF_A_KEY} attempts because of concurrent"
        " updates; retry the call."
    )


def _update_or_insert(call: Call, task: NewTask, key: str) -> uuid.UUID | None:
    """Return the id of the task; None if the key's owner changed or another key is taken."""
    with tables.atomic():
        # The owner is locked by its primary key, as every transition locks it. On MariaDB a lock
        # by the index of the key would deadlock with them.
        current = requests.owner(RequestKind.KEY, task.tenant_id, key)
        owner = None if current is None else dependencies.lock_rows([current.pk]).get(current.pk)
        if current is not None and (
            owner is None or owner.open_key != current.open_key or not owner.is_open
        ):
            return None
        if owner is not None and owner.name != task.name:
            raise TransitionRefused(
                f"key={key!r} belongs to the open task {owner.pk} of {owner.name}."
            )
        if owner is not None and owner.status != Status.RUNNING:
            return _update(owner, call, task)
        if _insert_as_owner(owner, RequestKind.KEY, task, key):
            return task.id
        # Nothing was inserted, so the RUNNING owner must keep its key.
        transaction.set_rollback(True, using=tables.database())
    return None


def changes_request(row: Task, args: Any, kwargs: Any) -> bool:
    """Return whether these arguments of an HTTP callback change its request.

    Secrets are left out: otherwise the id of the next request would show whether one was guessed.
    """
    before = masked_arguments(row.name, row.args, row.kwargs)
    return before != masked_arguments(row.name, args, kwargs)


def _update(row: Task, call: Call, task: NewTask) -> uuid.UUID:
    this = tables.tasks().filter(pk=row.pk)
    expires_at: Any = task.expires_at
    if expires_at is None and task.expires_in is not None:
        expires_at = (task.run_at or tables.NOW) + timedelta(seconds=task.expires_in)
    args, kwargs = json.loads(task.args), json.loads(task.kwargs)
    options = json.loads(task.options) if task.options else None
    if row.attempts and call.task.target.type is TargetType.HTTP_CALLBACK:
        is_edited = changes_request(row, args, kwargs)
        options = http_request.content_id_of_call(row.options, options, is_edited=is_edited)
    claims.return_to_pending(this, 0)
    same = ("priority", "queue", "max_attempts", "max_crashes", "on_orphan", "limit_key", "weight")
    inserts.edit(
        this,
        **{name: getattr(task, name) for name in (*same, "in_batch")},
        args=args,
        kwargs=kwargs,
        run_at=call.options.run_at or tables.NOW,
        expires_at=expires_at,
        options=options,
        expected_duration=(
            timedelta(seconds=task.expected_duration) if task.expected_duration else None
        ),
    )
    return row.id


def key_owners(task: NewTask) -> list[uuid.UUID]:
    """Return the open tasks that own the keys of this one.

    The caller locks them together with the upstreams, in primary-key order.
    """
    names = {"key": task.key, "unique_key": task.unique_key}
    keys = {name: key for name, key in names.items() if key is not None}
    if not keys:
        return []
    owners = Q(*((f"open_{name}", key) for name, key in keys.items()), _connector=Q.OR)
    queryset = tables.tasks().filter(owners, tenant_id=task.tenant_id)
    return list(queryset.values_list("pk", flat=True))


_Created = TypeVar("_Created", uuid.UUID, Task)
BULK = 5_000
"""The number of tasks that one statement of a bulk call writes."""
_OVERLAP = 0.1
"""The seconds after which a statement of a bulk call accepts no more tasks."""


def submit(call: Call) -> uuid.UUID:
    """Create the task of this call, or find the task that has its keys; return its id.

    Without keys and dependencies this is one INSERT. Raises DurableTasksError before anything is
    written if the call is invalid.
    """
    if call.options.depends_on is None:
        return _repeated(_create, call, planned(call))
    planned_edges, task = rules.edges_to(call.options.depends_on), new_task(call)
    with tables.atomic():
        if task.key is not None:
            edit.lock_tenant(task.tenant_id)
        # The upstreams are locked first, so that no ending is missed.
        upstreams = dependencies.lock_rows([*planned_edges, *key_owners(task)])
        edit.check_upstreams(planned_edges.values(), upstreams, task.tenant_id)
        new_edges = [
            edit.new_edge(edge, task.id, upstreams[key], task.on_upstream_failure)
            for key, edge in planned_edges.items()
        ]
        join = rules.needed_of(call.options.join, len(planned_edges))
        unresolved = rules.needed(join, tally_of(new_edges))
        task = traced(task, [upstreams[key] for key in planned_edges])
        task_id = _create(call, task.waiting_for(unresolved, join))
        if task_id == task.id:
            edit.insert_edges(new_edges, upstreams)
        elif task.key is not None:
            edit.link(task_id, planned_edges)
    return task_id


def planned(call: Call) -> NewTask:
    """Return the task of a call without dependencies, as ``submit`` inserts it."""
    return queued_if_possible(traced(new_task(call)))


def _repeated(create: Callable[[Call, NewTask], _Created], call: Call, task: NewTask) -> _Created:
    for _ in range(_TRIES_OF_A_KEY - 1):
        try:
            return create(call, task)
        except OperationalError as error:
            # MariaDB and MySQL report a deadlock if two transactions insert the same key just after
            # a third one released it. Without a transaction nothing was written.
            connection = connections[tables.database()]
            alone = not connection.in_atomic_block and connection.get_autocommit()
            if not alone or code_of(error) not in DEADLOCKS:
                raise
    return create(call, task)


def _create(call: Call, task: NewTask) -> uuid.UUID:
    if task.key is not None:
        return upsert(call, task, task.key)
    return task.id if insert(task) else _with_taken_key(call, task)


def _with_taken_key(call: Call, task: NewTask) -> uuid.UUID:
    existing = same_call(call, task)
    if existing is not None:
        return existing
    if task.unique_key is not None:
        return acquire_unique(call, task, task.unique_key)
    # The owner of the key released it meanwhile, or the id belongs to a task of another tenant.
    if insert(task):
        return task.id
    raise IdempotencyConflict(
        f"The id or idempotency key of {task.name} belongs to a task of another tenant."
    )


def schedule(call: Call) -> Task:
    """Create the task as ``submit`` does; return the model instance."""
    if call.options.depends_on is None and call.options.key is None:

        def create_row(call: Call, task: NewTask) -> Task:
            row = inserts.create_row(task)
            if row is None:  # one of its keys is taken
                return tables.tasks().get(pk=_with_taken_key(call, task))
            publish_new(task)
            return row

        return _repeated(create_row, call, planned(call))
    row: Task = tables.tasks().get(pk=submit(call))
    return row


Progress = Callable[[int], object]
"""Called with the number of tasks that were created so far, which are not committed yet."""


def schedule_many(
    task: Registered, options: CallOptions, arguments: Iterable[Iterable[Any]]
) -> list[uuid.UUID]:
    """Create one task without keys per tuple of arguments, all or none; return their ids.

    The next poll publishes them. A statement writes up to BULK of them.
    """
    ids: list[uuid.UUID] = []
    _create_all(
        task, options, arguments, lambda new_tasks: ids.extend([new.id for new in new_tasks])
    )
    return ids


def schedule_stream(
    task: Registered,
    options: CallOptions,
    arguments: Iterable[Iterable[Any]],
    progress: Progress | None = None,
) -> int:
    """Create tasks as ``schedule_many`` does; return their number.

    Needs the memory of BULK tasks, for any number of tuples. An exception of the iterable or of
    ``progress`` is raised, and no task is created.
    """
    number = 0

    def written(new: Sequence[NewTask]) -> None:
        nonlocal number
        number += len(new)
        if progress is not None:
            progress(number)

    _create_all(task, options, arguments, written)
    return number


def _create_all(
    task: Registered,
    options: CallOptions,
    arguments: Iterable[Iterable[Any]],
    written: Callable[[Sequence[NewTask]], None],
) -> None:
    """Create the tasks in parts of BULK, in one transaction or savepoint if there is more than
    one part.

    The database writes tasks while the next ones are built, in statements of about _OVERLAP
    seconds, because the ``statement_timeout`` of PostgreSQL counts them. The iterable may use the
    connection. It is read one part ahead, before the part is written.
    """
    if options.depends_on is not None:
        raise InvalidOption(
            "schedule_many() takes no depends_on: build a Workflow, or schedule those one by one."
        )
    keys = (options.task_id, options.key, options.idempotency_key, task.options.unique)
    if any(key is not None for key in keys):
        raise InvalidOption(
            "schedule_many() takes no id, key, idempotency_key or unique: schedule those one by"
            " one."
        )
    task_template, iterator = template(task, options), iter(arguments)
    calls = _tuples(iterator)
    with_trace = tracer(task_template, calls, arguments)
    if len(calls) < BULK:
        _create_built(with_trace(task_template.many(calls)), written)
        return
    with tables.atomic():
        while calls:
            following = _tuples(iterator)
            if task_template.calls_project_code or ports.eager():
                _create_built(with_trace(task_template.many(calls)), written)
            else:
                slices, created = map(with_trace, task_template.slices(calls)), list[NewTask]()
                while len(created) < len(calls):
                    remaining = len(calls) - len(created)
                    created += inserts.create_stream(slices, remaining, _OVERLAP)
                written(created)
            calls = following


def _create_built(new: Sequence[NewTask], written: Callable[[Sequence[NewTask]], None]) -> None:
    if not new:
        return
    if not ports.eager():
        inserts.create_many(new)
        written(new)
        return
    # They run in the caller after the commit, because no scheduler publishes them.
    new = [queued_if_possible(task) for task in new]
    inserts.create_many(new)
    for task in new:
        publish_new(task)
    written(new)


def _tuples(iterator: Iterator[Iterable[Any]]) -> list[tuple[Any, ...]]:
    return [tuple(args) for args in islice(iterator, BULK)]


_COLUMNS_OF_KEYS = {
    "idempotency_key": "idempotency_key",
    "key": RequestKind.KEY.marker,
    "unique_key": RequestKind.UNIQUE_KEY.marker,
}


def with_free_keys(tenant_id: int, new_tasks: Sequence[NewTask]) -> list[NewTask]:
    """Return the tasks none of whose keys belongs to a task of the tenant, or to an earlier one of
    these, in a constant number of statements.
    """
    taken = set[tuple[str, str]]()
    for name, column in _COLUMNS_OF_KEYS.items():
        new_keys = {key for task in new_tasks if (key := getattr(task, name)) is not None}
        if new_keys:
            taken |= {(name, key) for key in _taken(tenant_id, column, new_keys)}
    free = list[NewTask]()
    for task in new_tasks:
        keys = {(name, getattr(task, name)) for name in _COLUMNS_OF_KEYS}
        keys = {(name, key) for name, key in keys if key is not None}
        if taken.isdisjoint(keys):
            free.append(task)
        taken |= keys
    return free


def _taken(tenant_id: int, column: str, keys: Collection[str]) -> set[str]:
    of_tenant = tables.tasks().for_tenant(tenant_id)
    rows: QuerySet[Any] = tables.with_texts(of_tenant, column, keys)
    taken = set(rows.values_list(column, flat=True))
    if tables.callers_transaction():  # see requests.next_owner
        kinds = [
            kind for kind in (RequestKind.KEY, RequestKind.UNIQUE_KEY) if kind.marker == column
        ]
        requested = requests.requests().filter(kind__in=kinds, tenant_id=tenant_id, key__in=keys)
        taken |= set(requested.values_list("key", flat=True))
    return taken


def insert_many(new_tasks: Sequence[NewTask]) -> set[uuid.UUID]:
    """Insert tasks without dependencies, in a constant number of statements; return the ids of
    those that were inserted: not of tasks whose keys were taken since ``with_free_keys``.
    """
    keyed = [traced(task) for task in new_tasks if task.has_key]
    plain = [task for task in new_tasks if not task.has_key]
    inserts.create_many(plain)
    # In the same order in every transaction, because each waits for others that insert its keys.
    keyed.sort(key=lambda task: [getattr(task, name) or "" for name in _COLUMNS_OF_KEYS])
    return {task.id for task in plain} | inserts.create_free(keyed)


@dataclass(frozen=True, slots=True)
class FollowUps:
    """Tasks that a task function returned: calls with keys or dependencies, and tasks without."""

    calls: list[Call]
    tasks: list[NewTask]


def planned_followups(followups: Iterable[Schedule], tenant_id: int) -> FollowUps:
    """Check the tasks that a task function returned; raises DurableTasksError. Writes nothing."""
    result, shared = FollowUps([], []), dict[str, tuple[CallOptions, TaskTemplate]]()
    for followup in followups:
        options = call_options(
            CallOptions(tenant=tenant_id), {**followup.options, "run_at": followup.run_at}
        )
        task = registry.get(getattr(followup.task, "name", followup.task))
        call = Call(task, tuple(followup.args), followup.kwargs, options)
        if options.depends_on is not None or options.task_id is not None:
            result.calls.append(call)
            continue
        last = shared.get(task.options.name)
        if last is None or last[0] != options:
            last = shared[task.options.name] = options, template(task, options)
        new = last[1].called(call.args, call.kwargs, new_task_id())
        if new.has_key:
            result.calls.append(call)
        else:
            result.tasks.append(traced(new))
    return result


def create_followups(followups: FollowUps) -> None:
    """Create these tasks in the transaction of the success: those without keys in a constant number
    of statements.

    The first FAST_PATH_MAX of them are published at the COMMIT, the others by the next poll.
    """
    for call in followups.calls:
        submit(call)
    new = [queued_if_possible(task) for task in followups.tasks[:FAST_PATH_MAX]]
    new += followups.tasks[FAST_PATH_MAX:]
    if len(new) == 1:
        insert(new[0])
    elif new:
        inserts.create_many(new)
        for task in new[:FAST_PATH_MAX]:
            publish_new(task)

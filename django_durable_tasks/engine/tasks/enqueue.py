"""Creates tasks from calls, in the caller's transaction and at most once for each key."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from django.db import OperationalError, connections

from django_durable_tasks import registry
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.error_codes import DEADLOCKS, code_of
from django_durable_tasks.engine.db.publish_on_commit import FAST_PATH_MAX
from django_durable_tasks.engine.dependencies import edit
from django_durable_tasks.engine.dependencies.edges import tally_of
from django_durable_tasks.engine.tasks.fast_path import queued_if_possible
from django_durable_tasks.engine.tasks.insert import insert, insert_row, publish_new
from django_durable_tasks.engine.tasks.keys import acquire_unique, key_owners, same_call, upsert
from django_durable_tasks.engine.tasks.new_task import Call, TaskTemplate, new_task, template
from django_durable_tasks.engine.tasks.traces import traced, tracer
from django_durable_tasks.exceptions import IdempotencyConflict, InvalidOption
from django_durable_tasks.models import Task
from django_durable_tasks.models.task_queries import new_task_id
from django_durable_tasks.registry import Registered
from django_durable_tasks.rules.dependencies import needed, needed_of
from django_durable_tasks.rules.tasks.new_task import NewTask
from django_durable_tasks.rules.tasks.options import CallOptions, call_options
from django_durable_tasks.rules.workflows.followups import Schedule
from django_durable_tasks.rules.workflows.upstreams import edges_to

_Created = TypeVar("_Created", uuid.UUID, Task)
_TRIES = 5
BULK = 5_000
"""The number of tasks that one statement of a bulk call writes."""
_OVERLAP = 0.1
"""The seconds after which a statement of a bulk call accepts no more tasks."""


def submit(call: Call) -> uuid.UUID:
    """Create the task of this call, or find the task that has its keys; return its id.

    Without keys and dependencies this is one INSERT. Raises DurableTasksError before anything is
    written if the call is invalid.
    """
    if call.options.depends_on is not None:
        return _submit_waiting(call)
    return _repeated(_create, call, planned(call))


def planned(call: Call) -> NewTask:
    """Return the task of a call without dependencies, as ``submit`` inserts it."""
    return queued_if_possible(traced(new_task(call)))


def _repeated(create: Callable[[Call, NewTask], _Created], call: Call, task: NewTask) -> _Created:
    for _ in range(_TRIES - 1):
        try:
            return create(call, task)
        except OperationalError as error:
            if not _may_be_repeated(error):
                raise
    return create(call, task)


def _may_be_repeated(error: OperationalError) -> bool:
    """Return whether the insert may be repeated: nothing was written, and the error is a deadlock.

    MariaDB and MySQL report a deadlock if two transactions insert the same key just after a third
    one released it.
    """
    connection = connections[tables.database()]
    alone = not connection.in_atomic_block and connection.get_autocommit()
    return alone and connection.vendor == "mysql" and code_of(error) in DEADLOCKS


def _create(call: Call, task: NewTask) -> uuid.UUID:
    if task.key is not None:
        return upsert(call, task, task.key)
    return task.id if insert(task) else _with_taken_key(call, task)


def _create_row(call: Call, task: NewTask) -> Task:
    return insert_row(task) or tables.tasks().get(pk=_with_taken_key(call, task))


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


def _submit_waiting(call: Call) -> uuid.UUID:
    """Create a task with upstreams. These are locked first, so that no ending is missed."""
    planned, task = edges_to(call.options.depends_on), new_task(call)
    with tables.atomic():
        if task.key is not None:
            edit.lock_tenant(task.tenant_id)
        upstreams = transitions.lock_rows([*planned, *key_owners(task)])
        edit.check_upstreams(planned.values(), upstreams, task.tenant_id)
        new_edges = [
            edit.new_edge(edge, task.id, upstreams[key], task.on_upstream_failure)
            for key, edge in planned.items()
        ]
        join = needed_of(call.options.join, len(planned))
        unresolved = needed(join, tally_of(new_edges))
        task = traced(task, [upstreams[key] for key in planned])
        task_id = _create(call, task.waiting_for(unresolved, join))
        if task_id == task.id:
            edit.insert_edges(new_edges, upstreams)
        elif task.key is not None:
            edit.link(task_id, planned)
    return task_id


def schedule(call: Call) -> Task:
    """Create the task as ``submit`` does; return the model instance."""
    if call.options.depends_on is None and call.options.key is None:
        return _repeated(_create_row, call, planned(call))
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
    _create_all(task, options, arguments, lambda new: ids.extend([one.id for one in new]))
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
    _check_keys(task, options)
    found, rest = template(task, options), iter(arguments)
    calls = _tuples(rest)
    with_trace = tracer(found, calls, arguments)
    if len(calls) < BULK:
        _create_built(with_trace(found.many(calls)), written)
        return
    with tables.atomic():
        while calls:
            following = _tuples(rest)
            if found.calls_project_code:
                _create_built(with_trace(found.many(calls)), written)
            else:
                _create_building(map(with_trace, found.slices(calls)), len(calls), written)
            calls = following


def _create_built(new: Sequence[NewTask], written: Callable[[Sequence[NewTask]], None]) -> None:
    if new:
        transitions.create_many(new)
        written(new)


def _create_building(
    parts: Iterator[Sequence[NewTask]],
    number: int,
    written: Callable[[Sequence[NewTask]], None],
) -> None:
    created = list[NewTask]()
    while len(created) < number:
        created += transitions.create_stream(parts, number - len(created), _OVERLAP)
    written(created)


def _tuples(rest: Iterator[Iterable[Any]]) -> list[tuple[Any, ...]]:
    return [tuple(args) for args in islice(rest, BULK)]


def _check_keys(task: Registered, options: CallOptions) -> None:
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


def needs_own_insert(call: Call, task: NewTask) -> bool:
    """Return whether this task cannot be inserted together with others: it has a key or waits for
    other tasks.
    """
    return task.has_key or call.options.depends_on is not None


def insert_many(new_tasks: Sequence[NewTask]) -> list[uuid.UUID]:
    """Insert tasks without keys and dependencies in one statement per batch; return their ids."""
    transitions.create_many(new_tasks)
    return [task.id for task in new_tasks]


@dataclass(frozen=True, slots=True)
class FollowUps:
    """Tasks that a task function returned: calls with keys or dependencies, and tasks without."""

    calls: list[Call]
    tasks: list[NewTask]


def planned_followups(followups: Iterable[Schedule], tenant_id: int) -> FollowUps:
    """Check the tasks that a task function returned; raises DurableTasksError. Writes nothing."""
    found, shared = FollowUps([], []), dict[str, tuple[CallOptions, TaskTemplate]]()
    for followup in followups:
        options = call_options(
            CallOptions(tenant=tenant_id), {**followup.options, "run_at": followup.run_at}
        )
        task = registry.get(getattr(followup.task, "name", followup.task))
        call = Call(task, tuple(followup.args), followup.kwargs, options)
        if options.depends_on is not None or options.task_id is not None:
            found.calls.append(call)
            continue
        last = shared.get(task.options.name)
        if last is None or last[0] != options:
            last = shared[task.options.name] = options, template(task, options)
        new = last[1].called(call.args, call.kwargs, new_task_id())
        if new.has_key:
            found.calls.append(call)
        else:
            found.tasks.append(traced(new))
    return found


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
        transitions.create_many(new)
        for task in new[:FAST_PATH_MAX]:
            publish_new(task)

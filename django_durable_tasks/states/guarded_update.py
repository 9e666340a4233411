"""Locks rows in primary-key order, writes transitions as guarded UPDATEs, and records and
announces them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.models import F, Q
from django.db.models.lookups import In

from django_durable_tasks import conf, ports
from django_durable_tasks.choices import TERMINAL, Status
from django_durable_tasks.models import Task
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.signals import tasks_transitioned
from django_durable_tasks.states import attempt_log
from django_durable_tasks.states.machine import TRANSITIONS
from django_durable_tasks.store import tables
from django_durable_tasks.store.dialects import MYSQL, POSTGRESQL, verb
from django_durable_tasks.task_values import Run

# Records which tasks an operation changes, and their status before it.
#
# ``workflows/operations.py`` uses this for previews and reports, and ``audit.py`` for
# its entries. The transitions call ``touch``, and writers of other columns ``observe``.


_MANY = 5_000


@dataclass(slots=True)
class TrackedChanges:
    """The tasks that were changed.

    ``before``: the status of each task before its first transition. ``latest``: the ids that were
    added since the reader last cleared it.
    """

    preview: bool
    before: dict[uuid.UUID, str] = field(default_factory=dict)
    latest: set[uuid.UUID] = field(default_factory=set)


_watch: ContextVar[TrackedChanges | None] = ContextVar("durable_tasks_watch", default=None)


@contextmanager
def watching(*, preview: bool) -> Iterator[TrackedChanges]:
    """Record every transition of this thread until the block ends.

    In a preview, and in a block inside one, ``tasks_transitioned`` is not sent.
    """
    watch = TrackedChanges(preview=preview or in_preview())
    token = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(token)


Observer = Callable[[Sequence[uuid.UUID]], None]
_observer: ContextVar[Observer | None] = ContextVar("durable_tasks_observer", default=None)


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Call ``observer`` with the ids of locked tasks before each write of the block."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def observe(ids: Sequence[uuid.UUID]) -> None:
    """Report locked tasks before a write of columns other than the status."""
    observer = _observer.get()
    if observer is not None and ids:
        observer(ids)


def touch(ids: Sequence[uuid.UUID]) -> None:
    """Record the current status of these locked rows if an operation is being recorded.

    Must be called before the transition.
    """
    observe(ids)
    watch = _watch.get()
    if watch is None:
        return
    watch.latest.update(ids)
    new = [task_id for task_id in ids if task_id not in watch.before]
    for first in range(0, len(new), _MANY):
        rows = Task.objects.using(conf.settings().DATABASE).filter(
            pk__in=new[first : first + _MANY]
        )
        watch.before.update(rows.values_list("pk", "status"))


def in_preview() -> bool:
    """Return whether the transitions of this thread are a preview, which sends no signals."""
    watch = _watch.get()
    return watch is not None and watch.preview


# Calls the recorders of optional apps, and sends ``tasks_transitioned``. No error of either undoes
# the transition.


logger = logging.getLogger("django_durable_tasks.signals")


class Recorder(Protocol):
    """What an optional app records about transitions, in their transaction.

    A receiver of ``tasks_transitioned`` costs a savepoint for each transition. A recorder costs
    what it does, and has to handle its errors.
    """

    def needs_transaction(self, runs: Sequence[Run]) -> bool:
        """Return whether it may record successes of these runs, which are one statement otherwise
        and then have no transaction.
        """

    def record(
        self, transition: str, status: Status, task_ids: Sequence[uuid.UUID], runs: Sequence[Run]
    ) -> None:
        """Record that tasks have changed to this status. ``runs``: their runs, if they have
        succeeded.
        """


RECORDERS: dict[str, Recorder] = {}
"""The recorders of optional apps by their labels. They add them in ``AppConfig.ready()``."""


def transaction_of_successes(runs: Sequence[Run]) -> AbstractContextManager[Any]:
    """Return a transaction for the successes of runs, if a recorder may record one."""
    is_needed = any(recorder.needs_transaction(runs) for recorder in RECORDERS.values())
    return tables.atomic() if is_needed else nullcontext()


def announce(
    transition: str, status: Status, task_ids: Sequence[uuid.UUID], succeeded: Sequence[Run] = ()
) -> None:
    """Call the recorders, and send the signal in a savepoint. ``succeeded``: the runs whose
    successes they are.

    If a receiver fails, the writes of the receivers are rolled back, but not the transition.
    Nothing is sent during a preview.
    """
    if not task_ids or in_preview():
        return
    for recorder in RECORDERS.values():
        recorder.record(transition, status, task_ids, succeeded)
    if not tasks_transitioned.has_listeners(Task):
        return
    database = conf.settings().DATABASE
    connection = connections[database]
    in_transaction, hooks = connection.in_atomic_block, len(connection.run_on_commit)
    try:
        with transaction.atomic(using=database):
            responses = tasks_transitioned.send_robust(
                Task, transition=transition, status=status, task_ids=list(task_ids), using=database
            )
            # The hooks of receivers become robust: their exceptions must not look like a failure of
            # the transition, which is committed when they run.
            registered: list[Any] = connection.run_on_commit
            registered[hooks:] = [
                (savepoints, hook, True) for savepoints, hook, *_ in registered[hooks:]
            ]
            if any(isinstance(response, Exception) for _, response in responses):
                transaction.set_rollback(True, using=database)
    except DatabaseError as error:
        # Either a receiver caught the error of a statement, after which PostgreSQL requires a
        # rollback to the savepoint, or its writes violate a deferred constraint.
        if connection.needs_rollback or (
            isinstance(error, OperationalError) and not in_transaction
        ):
            raise
        logger.exception(
            "A receiver of tasks_transitioned failed for %s; its writes were rolled back.",
            transition,
        )


# The other modules of this package call ``locked`` and ``move``.


Pair = tuple[uuid.UUID, int]
"""A row's primary key and epoch."""
PAGES = 20
"""How many pages a limited query reads to find unlocked rows (databases other than PostgreSQL)."""
WAITING = TRANSITIONS["skip"].sources


TRIES = 5
"""How many attempts are made to lock rows whose status changes before they are locked."""
PART = 50
"""How many rows are locked together after all attempts to lock all rows at once have failed."""
IDLE = frozenset(Status) - {Status.RUNNING}

NO_OWNER: dict[str, Any] = {"lease_until": None, "cancel_requested_at": None}
REOPENED: dict[str, Any] = {
    **NO_OWNER,
    "failures": 0,
    "crashes": 0,
    "publish_count": 0,
    "node": None,
    "expires_at": None,
    "completed_at": None,
    "open_key": F("key"),
    "open_unique_key": F("unique_key"),
    "reason": "",
    "cause": None,
}
CLOSED: dict[str, Any] = {
    **NO_OWNER,
    "due_at": None,
    "waiting_for_limit": None,
    "open_key": None,
    "open_unique_key": None,
    "completed_at": DatabaseNow(),
}


def matches_epochs(pairs: Iterable[tuple[uuid.UUID, int]]) -> Q:
    """Return the condition that matches each of these rows if it is still in its epoch."""
    by_epoch: dict[int, list[uuid.UUID]] = {}
    for task_id, epoch in sorted(pairs):
        by_epoch.setdefault(epoch, []).append(task_id)
    guard = Q(pk__in=[])
    for epoch, ids in by_epoch.items():
        guard |= Q(pk__in=ids, epoch=epoch)
    return guard


def _lists_keys(queryset: TaskQuerySet) -> bool:
    """Return whether the queryset is already filtered by a list of primary keys.

    With a second list of keys PostgreSQL would read the whole table.
    """
    lists = (
        node
        for node in queryset.query.where.children
        if isinstance(node, In) and isinstance(node.rhs, list)
    )
    return any(getattr(node.lhs, "target", None) is Task._meta.pk for node in lists)


def locked(queryset: TaskQuerySet, limit: int | None = None) -> list[Pair]:
    """Lock rows of the queryset and return them in primary-key order. Must be inside ``atomic()``.

    With ``limit`` (claims, maintenance jobs) these are the first ``limit`` rows that no other
    transaction has locked. Without it (operations of users) all rows are locked in primary-key
    order, and the statement waits for rows that are locked. In a transaction that the caller
    opened, rows that start while the statement waits are left out.
    """
    if limit is not None:
        return sorted(first_locked(queryset, limit))
    if not tables.callers_transaction():
        return _lock(queryset, list(queryset.values_list("pk", flat=True)))
    # If a row starts during each of TRIES attempts, the rows are locked in pages of PART rows. If a
    # row of a page starts, the rows of this page are locked one by one. The number of statements is
    # therefore bounded, and no row that starts meanwhile stays locked.
    seen = dict[uuid.UUID, str]()
    for _ in range(TRIES):
        seen = dict(queryset.order_by("pk").values_list("pk", "status"))
        pairs = _lock_all(queryset, seen)
        if pairs is not None:
            return pairs
    rows, pairs = list(seen.items()), list[Pair]()
    for first in range(0, len(rows), PART):
        page = dict(rows[first : first + PART])
        together = _lock_all(queryset, page)
        alone = (
            [] if together is not None else _lock_all(queryset, {key: page[key]}) or []
            for key in page
        )
        pairs += chain(together or (), *alone)
    return pairs


def _lock_all(queryset: TaskQuerySet, seen: Mapping[uuid.UUID, str]) -> list[Pair] | None:
    """Lock these rows and return those that still match the queryset.

    Returns None, without a lock, if one of them has started. On PostgreSQL a row that starts while
    the statement waits for its lock stays locked although it is not returned. The rollback to the
    savepoint unlocks it. InnoDB unlocks rows that its statement does not match, unless it had to
    wait for the lock.
    """
    with tables.atomic():
        statuses = IDLE | set(seen.values())
        rows = tables.tasks().filter(pk__in=list(seen), status__standing=statuses).order_by("pk")
        locked_ids = (
            set(tables.locked_for_change(rows).values_list("pk", flat=True)) if seen else set()
        )
        if len(locked_ids) < len(seen):
            transaction.set_rollback(True, using=tables.database())
            return None
        matching = queryset if _lists_keys(queryset) else queryset.filter(pk__in=locked_ids)
        return (
            sorted(pair for pair in matching.values_list("pk", "epoch") if pair[0] in locked_ids)
            if locked_ids
            else []
        )


@verb
def first_locked(queryset: TaskQuerySet, limit: int) -> list[Pair]:
    """Lock the first ``limit`` rows of the queryset that no other transaction has locked.

    They are returned in the order of the queryset.
    """
    pairs, seen = list[Pair](), list[uuid.UUID]()
    for _ in range(PAGES):
        unseen = queryset.exclude(pk__in=seen) if seen else queryset
        page = list(unseen.values_list("pk", flat=True)[: limit - len(pairs)])
        position = {task_id: number for number, task_id in enumerate(page)}
        locked_pairs = _lock(queryset, page, skip_locked=True)
        pairs += sorted(locked_pairs, key=lambda pair: position[pair[0]])
        seen += page
        if len(locked_pairs) == len(page):
            break
    return pairs


@first_locked.on(POSTGRESQL)
def _first_locked_in_one_statement(queryset: TaskQuerySet, limit: int) -> list[Pair]:
    """Lock and limit by one statement, so that rows locked by others do not count towards the
    limit.
    """
    free = tables.locked_for_change(queryset, skip_locked=True)
    return list(free.values_list("pk", "epoch")[:limit])


@verb
def _lock(
    queryset: TaskQuerySet, task_ids: Sequence[uuid.UUID], *, skip_locked: bool = False
) -> list[Pair]:
    if not task_ids:
        return []
    whole = not skip_locked and _lists_keys(queryset)
    matching = (queryset if whole else queryset.filter(pk__in=task_ids)).order_by("pk")
    locked_rows = tables.locked_for_change(matching, skip_locked=skip_locked)
    return list(locked_rows.values_list("pk", "epoch"))


@_lock.on(MYSQL)
def _lock_by_primary_key(
    queryset: TaskQuerySet, task_ids: Sequence[uuid.UUID], *, skip_locked: bool = False
) -> list[Pair]:
    """Lock by the primary key only. A statement that locks an entry of another index first would
    deadlock with one that locks the row first.
    """
    if not task_ids:
        return []
    rows = tables.tasks().filter(pk__in=task_ids).order_by("pk")
    locked_rows = tables.locked_for_change(rows, skip_locked=skip_locked)
    keys = list(locked_rows.values_list("pk", flat=True))
    whole = not skip_locked and _lists_keys(queryset)
    matching = (queryset if whole else queryset.filter(pk__in=task_ids)).order_by("pk")
    return list(matching.filter(pk__in=keys).values_list("pk", "epoch"))


def move(name: str, pairs: Sequence[tuple[uuid.UUID, int]], status: Status, **writes: Any) -> int:
    """Execute the transition ``name`` as one guarded UPDATE; return how many rows it changed.

    ``pairs``: the rows with the epochs in which they were read. The UPDATE raises the epoch and
    also writes ``writes``. Ending events are inserted in the same transaction.
    """
    if not pairs:
        return 0
    sources = TRANSITIONS[name].sources
    ids = [task_id for task_id, _ in pairs]
    touch(ids)
    replayed = []
    if sources & TERMINAL:
        ended = tables.tasks().filter(pk__in=ids, status__in=TERMINAL, workflow__isnull=False)
        replayed = list(ended.values_list("pk", "epoch", "workflow_id", "status"))
    changed = (
        tables.tasks()
        .filter(matches_epochs(pairs), status__standing=sources)
        .update(status=status, epoch=F("epoch") + 1, updated_at=DatabaseNow(), **writes)
    )
    attempt_log.insert_return_events(replayed)
    if status in TERMINAL:
        record_endings(ids, status)
        if name not in attempt_log.LOGGED:
            attempt_log.ended_without_attempt.send(Task, task_ids=ids, status=status)
    elif status == Status.PENDING and name != "return_to_pending" and "due_at" in writes:
        # A task that is returned to PENDING wakes no scheduler. Otherwise a task that a limit
        # refuses would be claimed and returned in an endless loop.
        ports.due.rescheduled(writes["due_at"])
    announce(name, status, ids)
    return changed


def record_endings(ids: Sequence[uuid.UUID], status: Status) -> None:
    """Insert the ending events of these tasks, and wake the leader if there are any."""
    if attempt_log.insert_ending_events(ids, status):
        ports.due.leader_work()


def write_running(queryset: TaskQuerySet, **writes: Any) -> int:
    """Write columns other than the status to RUNNING rows; return how many."""
    with tables.atomic():
        pairs = locked(queryset.filter(status=Status.RUNNING))
        observe([task_id for task_id, _ in pairs])
        return (
            tables.tasks()
            .filter(matches_epochs(pairs), status__standing=[Status.RUNNING])
            .update(**writes)
        )

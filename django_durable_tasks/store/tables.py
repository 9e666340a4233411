"""Access to the tables: alias, querysets, SQL statements, transactions and what follows their
COMMIT, and the rows that must exist.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Self, TypeVar

from django.apps import apps as installed
from django.conf import settings
from django.core.management.color import no_style
from django.db import connections, router, transaction
from django.db.models import F, Lookup, Model, QuerySet

from django_durable_tasks import conf, ports
from django_durable_tasks.models import Task
from django_durable_tasks.models.cluster import LONG_EXPIRED, lease_name
from django_durable_tasks.models.fields import DatabaseNow, instant
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.store.connections import cursor
from django_durable_tasks.store.postgresql import text_array, uuid_array

# Access to the tables: database alias, queryset of all tasks, transactions, SQL statements.


M = TypeVar("M", bound=Model)
G = TypeVar("G", bound=GuardedModel)
NOW = DatabaseNow()
_TOGETHER = 100
"""The maximum number of querysets in one UNION."""


def database() -> str:
    """Return the alias of the database that contains the tables."""
    return conf.settings().DATABASE


def unguarded(model: type[G]) -> GuardedQuerySet[G]:
    """Return all rows of a guarded model, for the engine, which may write through it."""
    rows: Any = model._default_manager.using(database())
    queryset: GuardedQuerySet[G] = rows.unguarded()
    return queryset


def tasks() -> TaskQuerySet:
    """Return a queryset of all tasks, without the guard against writes."""
    queryset: TaskQuerySet = Task.objects.using(database()).unguarded()
    return queryset


class _OwnAtomic(transaction.Atomic):
    """A transaction or savepoint that the engine opened."""


def atomic(*, savepoint: bool = True) -> Any:
    """Return a transaction, or a savepoint, on the database that contains the tables.

    Without ``savepoint`` an error inside of another transaction rolls that one back.
    """
    return _OwnAtomic(database(), savepoint=savepoint, durable=False)


def callers_transaction() -> bool:
    """Return whether this thread is in a transaction that the caller opened.

    The engine locks no RUNNING row in such a transaction, because its heartbeat and its ending
    would wait for the caller's commit. The transactions of Django's TestCase do not count, as for
    Django's ``durable=True``.
    """
    connection = connections[database()]
    if not connection.in_atomic_block:
        return not connection.get_autocommit()
    blocks = connection.atomic_blocks
    return not connection.commit_on_exit or any(
        not (isinstance(block, _OwnAtomic) or getattr(block, "_from_testcase", False))
        for block in blocks
    )


def locked_for_change(queryset: QuerySet[M], *, skip_locked: bool = False) -> QuerySet[M]:
    """Return the queryset with row locks: FOR NO KEY UPDATE if the database has it, so that rows
    that refer to the locked ones can be inserted meanwhile. With ``skip_locked`` rows that other
    transactions have locked are left out.
    """
    no_key = connections[database()].features.has_select_for_no_key_update
    return queryset.select_for_update(no_key=no_key, skip_locked=skip_locked)


class _InArray(Lookup):
    """The condition that a column is one of the elements of an array, given as its text."""

    prepare_rhs = False
    array_type = "uuid[]"

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """Return the condition and its parameters, for PostgreSQL."""
        column, parameters = self.process_lhs(compiler, connection)
        return f"{column} = ANY(%s::{self.array_type})", (*parameters, self.rhs)


class _InTexts(_InArray):
    array_type = "text[]"


def with_ids(queryset: QuerySet[M], column: str, ids: Collection[uuid.UUID]) -> QuerySet[M]:
    """Return the rows whose column is one of these ids.

    On PostgreSQL they are one parameter. An IN list takes several microseconds per id to build.
    """
    if connections[database()].vendor != "postgresql":
        return queryset.filter(**{f"{column}__in": list(ids)})
    return queryset.filter(_InArray(F(column), uuid_array(ids)))


def with_texts(queryset: QuerySet[M], column: str, texts: Collection[str]) -> QuerySet[M]:
    """Return the rows whose column is one of these texts; one parameter, as for ``with_ids``."""
    if connections[database()].vendor != "postgresql":
        return queryset.filter(**{f"{column}__in": list(texts)})
    return queryset.filter(_InTexts(F(column), text_array(texts)))


def count(sql: str, parameters: dict[str, Any]) -> int:
    """Execute a statement and return its row count."""
    with cursor() as sql_cursor:
        sql_cursor.execute(sql, parameters)
        return int(sql_cursor.rowcount)


def read(sql: str, parameters: dict[str, Any], *, binary: bool = False) -> list[tuple[Any, ...]]:
    """Execute a statement and return its rows. ``binary``: in the binary format, if possible."""
    with cursor(binary=binary) as sql_cursor:
        sql_cursor.execute(sql, parameters)
        rows = list(sql_cursor.fetchall())
    if settings.USE_TZ:
        return rows
    # Django has removed the zones of the times.
    connection = connections[database()]
    return [
        tuple(instant(value, connection) if isinstance(value, datetime) else value for value in row)
        for row in rows
    ]


def first_of_each(
    querysets: Iterable[tuple[TaskQuerySet, int]], columns: Sequence[str]
) -> list[Any]:
    """Return ``columns`` of the first rows of each queryset, in the order of the queryset.

    ``querysets``: querysets, each with the maximum number of its rows. One statement contains up to
    100 of them. SQLite does not support LIMIT inside a UNION. There each queryset is one statement,
    which needs no network round trip.
    """
    limited = [queryset.values_list(*columns)[:number] for queryset, number in querysets]
    if not connections[database()].features.supports_slicing_ordering_in_compound:
        return [row for queryset in limited for row in queryset]
    rows: list[Any] = []
    for start in range(0, len(limited), _TOGETHER):
        first, *further = limited[start : start + _TOGETHER]
        rows += first.union(*further, all=True) if further else first
    return rows


# Numbers of rows that are counted up to a bound, so that a count does not read a whole backlog.


class BoundedCount(int):
    """A number of rows, and whether it is exact. Otherwise there may be more rows, and its text has
    a plus sign. A sum is exact if all its numbers are.

    Write it with ``%s`` or in an f-string: ``%d`` has no plus sign.
    """

    is_exact: bool

    def __new__(cls, number: int, is_exact: bool = True) -> Self:
        """Create the number."""
        count = super().__new__(cls, number)
        count.is_exact = is_exact
        return count

    @classmethod
    def of(cls, queryset: QuerySet[Any], most: int) -> Self:
        """Count the rows of a queryset, at most ``most``."""
        number = queryset.order_by().values("pk")[: most + 1].count()
        return cls(min(number, most), number <= most)

    def __add__(self, other: int) -> BoundedCount:
        """Add a number."""
        return BoundedCount(int(self) + int(other), self.is_exact and is_exact(other))

    __radd__ = __add__

    def __str__(self) -> str:
        """Return the number with the plus sign."""
        return format(self)

    def __format__(self, layout: str) -> str:
        """Return the number in this layout with the plus sign."""
        return f"{int(self):{layout}}{'' if self.is_exact else '+'}"


def is_exact(number: int) -> bool:
    """Return whether there are no more rows than this number."""
    return not isinstance(number, BoundedCount) or number.is_exact


# Creates the rows that must always exist: default tenant, leader's lease, lock row of limits.
#
# ``apps.py`` connects it to ``post_migrate``, so that the rows also exist after a flush.


def write_first_rows(*, using: str, apps: Any = installed, **_: Any) -> None:
    """Create the rows that the migrations insert, unless they exist; a receiver of
    ``post_migrate``.
    """
    try:
        tenants, leases = (
            apps.get_model("django_durable_tasks", name) for name in ("Tenant", "SchedulerLease")
        )
    except LookupError:
        return  # migrated to a state without these tables
    if using != conf.settings().DATABASE or not router.allow_migrate_model(using, tenants):
        return
    leases.objects.using(using).get_or_create(
        name=lease_name(), defaults={"expires_at": LONG_EXPIRED}
    )
    with suppress(LookupError):  # migrated to a state without limits
        apps.get_model("django_durable_tasks", "LimitBucket").objects.using(using).get_or_create(
            scope=""
        )
    if tenants.objects.using(using).get_or_create(
        id=1, defaults={"slug": "default", "name": "Default"}
    )[1]:
        with connections[using].cursor() as cursor:
            for reset in connections[using].ops.sequence_reset_sql(no_style(), [tenants]):
                cursor.execute(reset)


# On-commit hooks that collect what a transaction did and act on all of it after the COMMIT.
#
# Each transaction, and each open savepoint in it, has one hook of a kind, so that a rollback to
# the savepoint also removes what was collected in it.


H = TypeVar("H", bound="CommitHook")


class CommitHook:
    """A hook of the current transaction; subclasses collect values and define ``act``."""

    def __init__(self) -> None:
        self.savepoints: frozenset[str] | None = None
        """The savepoints that were open at its registration; None if it was not registered."""
        self.called = False

    def __call__(self) -> None:
        # A test may run the hooks although its transaction continues. What follows needs a new
        # hook.
        self.called = True
        self.act()

    def act(self) -> None:
        """Act on what was collected, after the COMMIT."""
        raise NotImplementedError


def in_atomic_block() -> bool:
    """Return whether this thread is in a transaction of ``atomic()``."""
    return bool(connections[database()].in_atomic_block)


def hooks(kind: type[H]) -> Iterator[H]:
    """Yield the hooks of this kind that the current transaction will call, the newest first."""
    for _, hook, *_ in reversed(connections[database()].run_on_commit):
        if isinstance(hook, kind):
            yield hook


def hook_of_transaction(
    kind: type[H], create: Callable[[], H], *, any_savepoint: bool = False
) -> H:
    """Return the hook of the current transaction and savepoint; register a new one if there is
    none.

    With ``any_savepoint`` the hook of another savepoint is used too. This is for hooks that may act
    on something that was rolled back.

    Directly in the transaction of a test each call registers a hook of its own, because
    ``captureOnCommitCallbacks`` calls only those that were registered in its block.
    """
    connection: Any = connections[database()]
    savepoints = frozenset(connection.savepoint_ids)
    if not (connection.atomic_blocks and connection.atomic_blocks[-1]._from_testcase):
        for hook in hooks(kind):
            if not hook.called and (any_savepoint or hook.savepoints == savepoints):
                return hook
    hook = create()
    hook.savepoints = savepoints
    transaction.on_commit(hook, using=database(), robust=True)
    return hook


# Publishes messages when the transaction commits, by one on-commit hook per transaction.
#
# ``tasks/enqueue.py`` and ``dependencies/edit.py`` call it.


# Tasks of one transaction that are published at its COMMIT. The caller waits until they are sent.
FAST_PATH_MAX = 100


class _PublishHook(CommitHook):
    """Publishes all messages added in a transaction or savepoint."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[TaskMessage] = []
        self.batches: dict[tuple[str, str], int] = {}
        self.created: set[uuid.UUID] = set()

    def act(self) -> None:
        if self.messages:
            ports.publish(self.messages)
        if self.batches:
            ports.publish_batches(self.batches)


def _hook() -> _PublishHook:
    return hook_of_transaction(_PublishHook, _PublishHook)


def messages_so_far() -> int:
    """Return how many messages will be published when the current transaction commits."""
    return sum(len(hook.messages) for hook in hooks(_PublishHook))


def publish_after_commit(messages: Sequence[TaskMessage]) -> None:
    """Publish these messages after the COMMIT, or at once if there is no transaction."""
    if not in_atomic_block():
        ports.publish(messages)
        return
    _hook().messages.extend(messages)


def start_batch_after_commit(queue: str, name: str, priority: int) -> None:
    """Publish a batch message of this queue and task name after the COMMIT if none is outstanding,
    or at once if there is no transaction.
    """
    if not in_atomic_block():
        ports.publish_batches({(queue, name): priority})
        return
    batches = _hook().batches
    batches[queue, name] = max(priority, batches.get((queue, name), 0))


def remember_until_commit(task_id: uuid.UUID) -> None:
    """Record that this task was created in the current transaction, if there is one."""
    if in_atomic_block():
        _hook().created.add(task_id)


def created_so_far() -> int:
    """Return how many tasks the current transaction has created."""
    return sum(len(hook.created) for hook in hooks(_PublishHook)) if in_atomic_block() else 0


def is_uncommitted(task_id: uuid.UUID) -> bool:
    """Return whether this task was created in the current transaction of this thread."""
    return in_atomic_block() and any(task_id in hook.created for hook in hooks(_PublishHook))

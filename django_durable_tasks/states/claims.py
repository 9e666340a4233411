"""The transitions before a run: claim, republish, return, and waits for limits, with their
messages.
"""

from __future__ import annotations

import functools
import json
import logging
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import Case, F, Q, SmallIntegerField, Value, When
from django.db.models.functions import Coalesce, Least

from django_durable_tasks import conf
from django_durable_tasks.choices import Status
from django_durable_tasks.models import DEFAULT_TENANT_ID, Task
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.models.tasks import NEVER, TaskQuerySet
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.states.demand import UNSERVED_AFTER, QueueDemand
from django_durable_tasks.states.guarded_update import (
    PAGES,
    Pair,
    announce,
    first_locked,
    locked,
    matches_epochs,
    move,
)
from django_durable_tasks.store.clock import after, aware
from django_durable_tasks.store.dialects import POSTGRESQL, sql, verb
from django_durable_tasks.store.errors import retry_on_deadlock
from django_durable_tasks.store.postgresql import number_array, text_array
from django_durable_tasks.store.tables import NOW, atomic, first_of_each, read, tasks
from django_durable_tasks.task_values import NewTask, Run, sentry_headers

# The rows that the statements of claims, starts and releases return, one type per column list.
#
# The fields of a type are the columns in the order of the statements in ``db/sql``; the ORM forms
# read ``_fields``.


class ClaimedTask(NamedTuple):
    """A task to publish; ``waiting_for_limit`` is its value before the claim.

    ``options`` is JSON text or the decoded value, depending on the driver.
    """

    id: uuid.UUID
    epoch: int
    publish_count: int
    name: str
    queue: str
    priority: int
    options: Any
    idempotency_key: str | None
    run_at: datetime
    expires_at: datetime | None
    overlap_key: str | None
    waiting_for_limit: str | None
    tenant_id: int
    limit_key: str | None
    weight: int
    ready_at: datetime | None

    @property
    def order(self) -> tuple[int, datetime, int]:
        """Return the key by which tasks are published: priority, since when it is due, id.

        The id is compared as a number, because UUID compares in Python, which is slow.
        """
        return -self.priority, self.ready_at or self.run_at, self.id.int


class Unstarted(NamedTuple):
    """What the row of a task that was not started shows."""

    status: str
    epoch: int
    queue: str
    has_expired: bool
    is_paused: bool


class BlockedDependent(NamedTuple):
    """A dependent of an ended task, with the unresolved ending events of the ended task."""

    unresolved: int
    queue: str
    is_due: bool
    ending_events: list[int]
    name: str
    tenant_id: int


def claimed_tasks(queryset: TaskQuerySet) -> list[ClaimedTask]:
    """Read these tasks for publishing, in the order of the queryset."""
    return [ClaimedTask._make(row) for row in queryset.values_list(*ClaimedTask._fields)]


RUN_COLUMNS = ("id", *("attempts" if name == "attempt" else name for name in Run._fields[1:-1]))
"""The columns of the fields of a run, in their order. ``queued_at`` falls back to ``created_at``.
"""
_RUN_VALUES = [
    Coalesce("queued_at", "created_at") if name == "queued_at" else name for name in RUN_COLUMNS
]

_JSON_PLACES = tuple(map(RUN_COLUMNS.index, ("args", "kwargs", "options")))
_TIME_PLACES = tuple(
    map(RUN_COLUMNS.index, ("started_at", "run_at", "ready_at", "queued_at", "fire_time"))
)
_OPTIONS, _KEY = map(RUN_COLUMNS.index, ("options", "idempotency_key"))


def run_of(values: Sequence[Any]) -> Run:
    """Return the run of a row with RUN_COLUMNS.

    JSON columns are text or decoded values, depending on the driver. Times of MariaDB and SQLite
    may be naive; they are in UTC.
    """
    row = list(values)
    for place in _JSON_PLACES:
        if isinstance(row[place], str):
            row[place] = json.loads(row[place])
    for place in _TIME_PLACES:
        if row[place] is not None:
            row[place] = aware(row[place])
    row[_OPTIONS] = row[_OPTIONS] or {}
    row[_KEY] = row[_KEY] or str(row[0])
    return Run(*row)


def started_runs(queryset: TaskQuerySet) -> list[Run]:
    """Read the runs of these RUNNING tasks, in the order of the queryset."""
    return [run_of(row) for row in queryset.values_list(*_RUN_VALUES)]


@functools.cache
def returning_row() -> str:
    """Return the clause that makes a statement return the whole row of a task, for ``row_of``."""
    return f"RETURNING {', '.join(str(field.column) for field in Task._meta.concrete_fields)}"


def row_of(values: Sequence[Any]) -> Task:
    """Return the task of the columns of ``returning_row``, as a query of the ORM would."""
    alias = conf.settings().DATABASE
    converted, (names, converters) = list(values), _names_and_converters()
    for index, convert in converters:
        converted[index] = convert(converted[index], None, connections[alias])
    return Task.from_db(alias, names, converted)


@functools.cache
def _names_and_converters() -> tuple[list[str], list[tuple[int, Any]]]:
    """Return the names of the columns, and the indexes of those whose fields convert the value of
    the driver.
    """
    fields = Task._meta.concrete_fields
    converters = enumerate(getattr(field, "from_db_value", None) for field in fields)
    return [field.attname for field in fields], [
        (index, convert) for index, convert in converters if convert is not None
    ]


# Makes tasks that a limit refuses wait, and makes them due again.
#
# A task that waits for a limit is PENDING, its ``due_at`` is NEVER, ``ready_at`` is the time since
# which it is due, and ``waiting_for_limit`` is the scope without capacity. ``limits/``
# calls these functions. None of them waits for a locked row, except ``make_claimed_wait``, whose
# rows the caller has locked, and ``repair_limit_wait``.


_WAS_DUE: Any = Least(Coalesce("ready_at", NOW), NOW)
"""Since when a waiting task is due: not its ``run_at``, because a replay, a retry or a task that
was BLOCKED is due long after it. The clock may have been set back since then.
"""


def make_claimed_wait(
    scopes: Mapping[uuid.UUID, str], epochs: Mapping[uuid.UUID, int] | None = None
) -> int:
    """QUEUED to PENDING for tasks that this process has just claimed: make them wait for these
    scopes. ``epochs``: only tasks in these epochs, by id.
    """
    pairs = locked(tasks().filter(pk__in=list(scopes), status=Status.QUEUED)) if scopes else []
    if epochs is not None:
        pairs = [(task_id, epoch) for task_id, epoch in pairs if epochs.get(task_id) == epoch]
    writes = {
        # A claim wrote it. A task that was published when it was created or released has none.
        "ready_at": Coalesce("ready_at", NOW),
        "due_at": NEVER,
        "waiting_for_limit": _by_scope(scopes),
        "node": None,
        "publish_count": 0,
    }
    return move("return_to_pending", pairs, Status.PENDING, **writes)


def make_due_wait(scopes: Mapping[uuid.UUID, str], now: datetime) -> int:
    """Make PENDING tasks that are due at ``now`` wait for these scopes; return how many.

    Rows that other transactions have locked are skipped.
    """
    if not scopes:
        return 0
    with atomic():
        due = tasks().filter(pk__in=list(scopes), status=Status.PENDING, due_at__lte=now)
        pairs = locked(due, len(scopes))
        rows = tasks().filter(matches_epochs(pairs), status__standing=[Status.PENDING])
        # ready_at first: MySQL and MariaDB evaluate the assignments from left to right.
        writes = {"ready_at": F("due_at"), "due_at": NEVER, "waiting_for_limit": _by_scope(scopes)}
        return rows.update(**writes, updated_at=NOW) if pairs else 0


def release_waiting(queryset: TaskQuerySet, limit: int) -> int:
    """Make at most ``limit`` waiting tasks due again; return how many.

    ``due_at`` becomes the time since which the task is due. Rows that other transactions
    have locked are skipped. ``waiting_for_limit`` is kept until the claim, so that the capacity
    stays reserved for these tasks.
    """
    return _write_waiting(queryset, limit, due_at=_WAS_DUE)


def _write_waiting(queryset: TaskQuerySet, limit: int, **writes: Any) -> int:
    with atomic():
        waiting = queryset.filter(
            status=Status.PENDING, waiting_for_limit__isnull=False, due_at__gte=NEVER
        )
        pairs = locked(waiting, limit)
        rows = tasks().filter(
            matches_epochs(pairs),
            status__standing=[Status.PENDING],
            waiting_for_limit__isnull=False,
        )
        return rows.update(**writes, updated_at=NOW) if pairs else 0


def change_waiting_limit(scopes: Mapping[uuid.UUID, str]) -> int:
    """Change the scopes for which these tasks wait; return how many.

    Rows that other transactions have locked are skipped.
    """
    if not scopes:
        return 0
    waiting = tasks().filter(pk__in=list(scopes))
    return _write_waiting(waiting, len(scopes), waiting_for_limit=_by_scope(scopes))


def repair_limit_wait(queryset: TaskQuerySet) -> int:
    """Repair inconsistent limit waits; return how many tasks changed.

    PENDING tasks whose ``due_at`` is NEVER, but that wait for no limit or overlap key, become due
    again. ``waiting_for_limit`` is cleared for tasks that are not PENDING.
    """
    with atomic():
        rows = tasks().filter(matches_epochs(locked(queryset)))
        unnamed = rows.filter(
            status__standing=[Status.PENDING],
            due_at__gte=NEVER,
            waiting_for_limit=None,
            overlap_key=None,
        )
        number = unnamed.update(due_at=_WAS_DUE, updated_at=NOW)
        not_waiting = rows.exclude(status=Status.PENDING).filter(waiting_for_limit__isnull=False)
        return number + not_waiting.update(waiting_for_limit=None, updated_at=NOW)


def age(queryset: TaskQuerySet, limit: int) -> int:
    """Raise the priority of PENDING tasks by one, to at most 9; ``priority_boost`` counts this."""
    with atomic():
        pairs = locked(queryset.filter(status=Status.PENDING, priority__lt=9), limit)
        rows = tasks().filter(
            matches_epochs(pairs), status__standing=[Status.PENDING], priority__lt=9
        )
        more = {
            name: F(name) + Value(1, SmallIntegerField()) for name in ("priority", "priority_boost")
        }
        return rows.update(**more, updated_at=NOW) if pairs else 0


def _by_scope(scopes: Mapping[uuid.UUID, str]) -> Case | Value:
    by_scope: dict[str, list[uuid.UUID]] = {}
    for task_id, scope in scopes.items():
        by_scope.setdefault(scope, []).append(task_id)
    if len(by_scope) == 1:
        return Value(next(iter(by_scope)))
    whens = (When(pk__in=ids, then=Value(scope)) for scope, ids in by_scope.items())
    return Case(*whens, default=None)


logger = logging.getLogger("django_durable_tasks.scheduler")


@verb
def claim(
    demands: Sequence[QueueDemand],
    now: datetime,
    limit: int,
    node: uuid.UUID,
    wait: float,
    shards: Collection[int] | None = None,
) -> list[ClaimedTask]:
    """PENDING to QUEUED for due tasks of these queues, in each queue those of the highest priority
    first.

    At most ``limit`` tasks are claimed, from the queues in the order of ``demands``. ``wait``: the
    seconds after which a task is republished unless it has started. ``shards``: only tasks of
    these shards, and tasks of any shard that have been due for UNSERVED_AFTER seconds. Either all
    demands name a tenant or none does.
    """
    due = tasks().due_alone(now).order_by("due_at")
    if shards is not None:
        late = now - timedelta(seconds=UNSERVED_AFTER)
        due = due.filter(Q(shard_key__in=sorted(shards)) | Q(due_at__lte=late))
    return _claim_locked(partial(_locked_due, due, demands, now, limit), node, wait)


@claim.on(POSTGRESQL)
def _claim_in_one_statement(
    demands: Sequence[QueueDemand],
    now: datetime,
    limit: int,
    node: uuid.UUID,
    wait: float,
    shards: Collection[int] | None = None,
) -> list[ClaimedTask]:
    tenants = [demand.tenant_id for demand in demands if demand.tenant_id is not None]
    late = now - timedelta(seconds=UNSERVED_AFTER)
    parameters: dict[str, Any] = {"now": now, "limit": limit, "node": node, "wait": wait}
    parameters |= {"late": late, "tenants": number_array(tenants)} if tenants else {"late": late}
    parameters["queues"] = text_array(demand.queue for demand in demands)
    parameters["limits"] = number_array(demand.limit for demand in demands)
    parameters["leasts"] = number_array(demand.least for demand in demands)
    parameters["levels"] = number_array(demand.levels for demand in demands)
    parameters["shards"] = None if shards is None else sorted(shards)
    return _claimed_by("claim_of_tenants" if tenants else "claim", parameters)


@retry_on_deadlock
def _claim_locked(
    lock: Callable[[], Sequence[Pair]], node: uuid.UUID, wait: float
) -> list[ClaimedTask]:
    """Claim the tasks that ``lock`` locks, in one transaction.

    InnoDB may wait for a row in spite of SKIP LOCKED, so two claims may deadlock.
    """
    # ready_at first: MySQL and MariaDB evaluate the assignments from left to right.
    writes: dict[str, Any] = {
        "ready_at": F("due_at"),
        "queued_at": DatabaseNow(),
        "node": node,
        "due_at": after(wait),
        "publish_count": F("publish_count") + 1,
    }
    with atomic():
        pairs = lock()
        move("claim", pairs, Status.QUEUED, **writes)
        claimed = claimed_tasks(tasks().filter(pk__in=[task_id for task_id, _ in pairs]))
        waited = [task.id for task in claimed if task.waiting_for_limit is not None]
        if waited:
            queued = tasks().filter(pk__in=waited, status__standing=[Status.QUEUED])
            queued.update(waiting_for_limit=None)
    return claimed


def _locked_due(
    due: TaskQuerySet, demands: Sequence[QueueDemand], now: datetime, limit: int
) -> list[Pair]:
    """Lock at most ``limit`` of these rows; skip rows that other transactions have locked."""
    pairs, seen = list[Pair](), list[uuid.UUID]()
    for _ in range(PAGES):
        page = _due_of(due.exclude(pk__in=seen) if seen else due, demands, limit - len(pairs))
        locked_pairs = (
            locked(tasks().pending().filter(pk__in=list(page), due_at__lte=now), len(page))
            if page
            else []
        )
        pairs += locked_pairs
        if len(locked_pairs) == len(page):
            break
        seen += page
        numbers = Counter(page[task_id] for task_id, _ in locked_pairs)
        demands = [
            demand._replace(limit=demand.limit - numbers[_part(demand)])
            for demand in demands
            if demand.limit > numbers[_part(demand)]
        ]
    return pairs


_Part = tuple[str, int | None]


def _part(demand: QueueDemand) -> _Part:
    return demand.queue, demand.tenant_id


def _due_of(
    due: TaskQuerySet, demands: Sequence[QueueDemand], limit: int
) -> dict[uuid.UUID, _Part]:
    """Return at most ``limit`` of these rows with the queues and tenants of their demands, by one
    short scan for each demand and priority.

    A statement contains many scans.
    """
    if not demands:
        return {}
    scans = [
        (
            (due if demand.tenant_id is None else due.filter(tenant_id=demand.tenant_id))
            .filter(queue=demand.queue, priority=priority)
            .annotate(demand=Value(number)),
            demand.limit,
        )
        for number, demand in enumerate(demands)
        for priority in demand.priorities
    ]
    rows_of_demands: list[list[tuple[int, uuid.UUID]]] = [[] for _ in demands]
    for task_id, number, priority in first_of_each(scans, ("pk", "demand", "priority")):
        rows_of_demands[number].append((-priority, task_id))
    # Sorted by priority only: the rows of one priority are already in the order of their scan.
    ids = [
        (row[1], _part(demand))
        for demand, rows in zip(demands, rows_of_demands, strict=True)
        for row in sorted(rows, key=itemgetter(0))[: demand.limit]
    ]
    return dict(ids[:limit])


@verb
def due_tenants(
    demands: Sequence[QueueDemand], now: datetime, pasts: Mapping[str, int], limit: int
) -> dict[str, list[int]]:
    """Return the tenants other than the default one with due tasks in each of these queues, at most
    ``limit`` per queue, with an id above that of ``pasts``.
    """
    due = tasks().due_alone(now).order_by("tenant_id").distinct()
    scans = [
        (
            due.filter(
                queue=demand.queue, tenant_id__gt=max(DEFAULT_TENANT_ID, pasts.get(demand.queue, 0))
            ).annotate(demanded_queue=Value(demand.queue)),
            limit,
        )
        for demand in demands
    ]
    return _by_queue(first_of_each(scans, ("demanded_queue", "tenant_id")))


@due_tenants.on(POSTGRESQL)
def _due_tenants_in_one_statement(
    demands: Sequence[QueueDemand], now: datetime, pasts: Mapping[str, int], limit: int
) -> dict[str, list[int]]:
    queues = [demand.queue for demand in demands]
    parameters = {"queues": text_array(queues), "now": now, "limit": limit}
    parameters["pasts"] = number_array(
        max(DEFAULT_TENANT_ID, pasts.get(queue, 0)) for queue in queues
    )
    return _by_queue(read(sql("due_tenants"), parameters))


def _by_queue(rows: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    tenants: dict[str, list[int]] = {}
    for queue, tenant_id in sorted(rows):
        tenants.setdefault(queue, []).append(tenant_id)
    return tenants


def _claimed_by(name: str, parameters: dict[str, Any]) -> list[ClaimedTask]:
    """Execute the statement of this name, which claims tasks."""
    claimed = [ClaimedTask._make(row) for row in read(sql(name), parameters, binary=True)]
    announce("claim", Status.QUEUED, [task.id for task in claimed])
    return claimed


@verb
def claim_these(
    ids: Sequence[uuid.UUID], node: uuid.UUID, wait: float, *, waiting: bool = False
) -> list[ClaimedTask]:
    """PENDING to QUEUED for those of these tasks that are due by the database's clock.

    Tasks that run in batches are left out. ``waiting``: those that wait for a limit or were
    released by it, also tasks that run in batches.
    """
    queryset = tasks().filter(pk__in=list(ids))
    if waiting:
        release_waiting(queryset, len(ids))
    due = (
        queryset.pending().filter(waiting_for_limit__isnull=False)
        if waiting
        else queryset.published_alone()
    ).filter(due_at__lte=NOW)
    return _claim_locked(partial(locked, due, len(ids)), node, wait)


@claim_these.on(POSTGRESQL)
def _claim_these_in_one_statement(
    ids: Sequence[uuid.UUID], node: uuid.UUID, wait: float, *, waiting: bool = False
) -> list[ClaimedTask]:
    parameters = {"ids": list(ids), "node": node, "wait": wait, "never": NEVER}
    return _claimed_by("claim_these", parameters | {"waiting": waiting})


def locked_pending(queryset: TaskQuerySet, limit: int) -> list[uuid.UUID]:
    """Lock at most ``limit`` PENDING rows of the queryset and return them in its order.

    Rows that other transactions have locked are skipped.
    """
    return [task_id for task_id, _ in first_locked(queryset.filter(status=Status.PENDING), limit)]


def republish(
    queryset: TaskQuerySet, limit: int, first: float, longest: float
) -> list[ClaimedTask]:
    """Count one more message of QUEUED tasks and return the tasks.

    Status and epoch do not change, so that whichever copy of the message arrives first starts the
    task. The time until the next message starts at ``first`` seconds and doubles up to ``longest``.
    """
    with atomic():
        pairs = locked(queryset.filter(status=Status.QUEUED), limit)
        steps = [(sent, after(min(first * 2**sent, longest))) for sent in range(8)]
        later = Case(
            *(When(publish_count=sent, then=step) for sent, step in steps), default=after(longest)
        )
        queued = tasks().filter(matches_epochs(pairs), status__standing=[Status.QUEUED])
        queued.update(due_at=later, publish_count=F("publish_count") + 1)
        return claimed_tasks(tasks().filter(pk__in=[task_id for task_id, _ in pairs]))


def not_published(messages: Sequence[tuple[uuid.UUID, int, int]], wait: float) -> int:
    """Undo what ``republish`` wrote for messages that the broker did not accept.

    ``messages`` contains ids, epochs and message numbers. The tasks stay QUEUED and are due again
    in ``wait`` seconds.
    """
    by_number: dict[tuple[int, int], list[uuid.UUID]] = defaultdict(list)
    for task_id, epoch, number in sorted(messages):
        by_number[epoch, number].append(task_id)
    guard = Q(pk__in=[])
    for (epoch, number), ids in by_number.items():
        guard |= Q(pk__in=ids, epoch=epoch, publish_count=number)
    with atomic():
        locked(tasks().filter(pk__in=[task_id for task_id, *_ in messages], status=Status.QUEUED))
        unchanged = tasks().filter(guard, status__standing=[Status.QUEUED])
        return unchanged.update(due_at=after(wait), publish_count=F("publish_count") - 1)


WAS_READY = Coalesce(F("ready_at"), DatabaseNow())
"""When a QUEUED task was due before its claim; now if it was published without a claim."""


def return_to_pending(
    queryset: TaskQuerySet,
    again: float | datetime | Coalesce,
    epochs: dict[uuid.UUID, int] | None = None,
) -> int:
    """QUEUED to PENDING. No failure is counted.

    ``again``: when the tasks are due, as an instant, as an expression or as seconds from now.
    ``epochs``: only tasks in these epochs, by id.
    """
    with atomic():
        pairs = locked(queryset.filter(status=Status.QUEUED))
        if epochs is not None:
            pairs = [(task_id, epoch) for task_id, epoch in pairs if epochs.get(task_id) == epoch]
        due_at = after(again) if isinstance(again, int | float) else again
        return move(
            "return_to_pending", pairs, Status.PENDING, due_at=due_at, node=None, publish_count=0
        )


def messages_for(queued: Iterable[ClaimedTask] | Iterable[NewTask]) -> list[TaskMessage]:
    """Return the messages of these QUEUED tasks, in their order."""
    messages = []
    for task in queued:
        overrides = _overrides(task.id, task.options)
        messages.append(
            TaskMessage(
                task_id=task.id,
                epoch=task.epoch,
                number=task.publish_count,
                name=task.name,
                queue=task.queue,
                priority=task.priority,
                timeout=overrides.get("timeout"),
                soft_timeout=overrides.get("soft_timeout"),
                idempotency_key=task.idempotency_key,
                headers=sentry_headers(overrides),
            )
        )
    return messages


def _overrides(task_id: uuid.UUID, options: Any) -> Mapping[str, Any]:
    """Return the options that the task overrides; none if they cannot be read, so that one task
    does not stop a batch.
    """
    try:
        overrides = json.loads(options) if isinstance(options, str) else options
    except ValueError:
        overrides = options
    if overrides is None or isinstance(overrides, dict):
        return overrides or {}
    logger.error(
        "The options of task %s are not a JSON object (%.100r); it is published without them.",
        task_id,
        overrides,
    )
    return {}

"""Claims due tasks for publishing, republishes them, and returns them to PENDING."""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from django.db.models import F

from django_durable_tasks import conf, process_state
from django_durable_tasks.limits import admission, config, overlap, release
from django_durable_tasks.limits.backpressure import paused_queues
from django_durable_tasks.limits.scopes import scope_of_worker, shared
from django_durable_tasks.models import QueueControl
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.states import claims, endings, runs
from django_durable_tasks.states.claims import ClaimedTask
from django_durable_tasks.states.demand import ALL_LEVELS, QueueDemand, priorities_of
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.errors import retry_on_deadlock
from django_durable_tasks.store.tables import database
from django_durable_tasks.task_values import Run, new_task_id, sentry_headers

# Schedulers call these functions and publish the messages that they return. A claim is committed
# before its messages are published.


logger = logging.getLogger("django_durable_tasks.scheduler")

_PASSES = 4
_AHEAD = 200
"""The maximum number of refused tasks that one pass makes wait, which takes about 40 ms. The next
claim continues, so that tasks of others do not wait until a whole backlog is processed.
"""
_OF_FULL_SHARES = 200
"""The same for tasks of shares that were full at the last claim, which takes about 30 ms."""
_OF_NAME = 2_000
"""The tasks of a name without a worker that one claim or one refused message makes wait: a window,
so that few of them are published and refused.
"""
_SEARCH = 1.0
"""Seconds that a worker searches behind tasks that limits refuse, about 6,000 of one tenant."""
_HEADS = 50
"""The maximum number of queues in which one pass reads the tasks behind refused ones."""
_TOGETHER = 500
"""The maximum number of tenants that get a turn in one claim."""
_LOOK_EVERY = timedelta(seconds=0.1)
"""The pause between looks for tenants that the claims of a queue do not reach. A look takes about a
fifth of the time of a claim. It is not a number of claims: how often a scheduler claims depends on
the window of the queue, and a new tenant would wait for that many refills.
"""


class TenantTurns:
    """Which tenants of a queue this process claimed last, and when it looks for others again.

    ``arrived``: the tenants of the tasks that were claimed last in order of arrival. ``past``: the
    tenant after which the next look begins, if one look did not return all. ``looked_at``: when a
    look found no tenant that was not reached. ``full``: the shares that refused several tasks and
    may have more due ones.
    """

    def __init__(self) -> None:
        self.arrived: dict[str, set[int]] = {}
        self.past: dict[str, int] = {}
        self.looked_at: dict[str, datetime] = {}
        self.full: set[str] = set()

    def missing(
        self, demands: Sequence[QueueDemand], now: datetime, cut: Collection[str]
    ) -> list[QueueDemand]:
        """Return a demand for each tenant with due tasks that the last claim in order of arrival
        did not reach, in each queue an equal part of its demand.

        While there are none, claims look for them every _LOOK_EVERY, but in queues of ``cut``, from
        which nothing else is claimed, each time.
        """
        demands = [
            demand
            for demand in demands
            if demand.queue not in self.looked_at
            or demand.queue in cut
            or abs(now - self.looked_at[demand.queue]) >= _LOOK_EVERY
        ]
        due = claims.due_tenants(demands, now, self.past, _TOGETHER) if demands else {}
        tenant_demands = list[QueueDemand]()
        for demand in demands:
            tenants, reached = due.get(demand.queue, []), self.arrived.get(demand.queue, set())
            missing = [tenant for tenant in tenants if tenant not in reached]
            if len(missing) > demand.limit:
                self.past[demand.queue] = missing[demand.limit - 1]
            else:
                self.past[demand.queue] = tenants[-1] if len(tenants) == _TOGETHER else 0
            if not missing and len(tenants) < _TOGETHER:
                self.looked_at[demand.queue] = now
            limit = max(1, demand.limit // (len(missing) + 1))
            tenant_demands += [
                demand._replace(limit=limit, tenant_id=tenant) for tenant in missing[: demand.limit]
            ]
        return tenant_demands

    def record(self, demands: Sequence[QueueDemand], claimed: Sequence[ClaimedTask]) -> None:
        """Record what a claim in order of arrival returned."""
        for demand in demands:
            self.arrived[demand.queue] = set()
        for task in claimed:
            self.arrived.setdefault(task.queue, set()).add(task.tenant_id)

    def make_full_wait(self, now: datetime) -> set[str]:
        """Make due tasks of full shares wait; return the queues of shares that may have more."""
        if self.full:
            self.full = admission.make_shares_wait(self.full, now, _OF_FULL_SHARES)
        return {queue for queue, _ in filter(None, map(shared, self.full))}


class Claimed(NamedTuple):
    """The messages to publish after a claim, and how many due tasks of each queue were claimed.

    ``taken`` also counts the tasks that are not published because they expired, or because a limit
    or an overlap policy refused them. ``cut`` are the queues in which the next claim has to
    continue, because only a part of the tasks of a tenant without free places was made to wait.
    """

    messages: list[TaskMessage]
    taken: Counter[str]
    cut: Collection[str] = ()


def coming(
    queues: Collection[str],
    now: datetime,
    until: datetime,
    limit: int,
    shards: Collection[int] | None = None,
    levels: int = ALL_LEVELS,
) -> list[tuple[Any, ...]]:
    """Return the tasks of these queues that become due after ``now`` and by ``until``, in order.

    Each has its due time, queue, id and shard. ``levels``: only these priorities, as bits.
    """
    queryset = tables.with_texts(
        tables.tasks().coming(now, until, priorities_of(levels)), "queue", sorted(queues)
    )
    if shards is not None:
        queryset = queryset.filter(shard_key__in=sorted(shards))
    return list(queryset.values_list("due_at", "queue", "pk", "shard_key")[:limit])


def claim_these(ids: Sequence[uuid.UUID], now: datetime, node: uuid.UUID) -> list[TaskMessage]:
    """Claim those of these tasks that are due by the database's clock; return their messages.

    The messages have the order in which they are to be published. Tasks that a limit refuses are
    made to wait in the same transaction.
    """
    limit_config = config.limits_in_force()
    claim = partial(claims.claim_these, ids, node, conf.settings().REPUBLISH_AFTER)
    if limit_config.empty:
        rows = _with_worker(limit_config, in_publishing_order(claim(), now), now)
    else:
        rows = _claim_these_within_limits(limit_config, claim, now)
    return claims.messages_for(overlap.admitted(rows))


@retry_on_deadlock
def _claim_these_within_limits(
    limit_config: config.LimitConfig, claim: Callable[[], list[ClaimedTask]], now: datetime
) -> list[ClaimedTask]:
    with tables.atomic():
        gate = admission.LimitAdmission(limit_config)
        rows = gate.admit_claimed(in_publishing_order(claim(), now))
        gate.close()
    return rows


def parted(demands: Sequence[QueueDemand]) -> list[list[QueueDemand]]:
    """Divide these queues into groups that are claimed together.

    Queues without a limit on the whole queue form one group, so that their claim does not wait for
    the lock of limits. Queues with such a limit form another group. A queue whose capacity is
    shared between tenants is claimed separately.
    """
    limit_config = config.limits_in_force()
    free, bound, alone = list[QueueDemand](), list[QueueDemand](), list[list[QueueDemand]]()
    for demand in demands:
        if not demand.least and limit_config.takes_turns(demand.queue):
            alone.append([demand])
        else:
            (bound if limit_config.wide(demand.queue) else free).append(demand)
    return [group for group in (free, bound, *alone) if group]


def claim_of(
    demands: Sequence[QueueDemand],
    now: datetime,
    limit: int,
    node: uuid.UUID,
    shards: Collection[int] | None = None,
) -> Claimed:
    """Claim due tasks of the queues of one group; return at most ``limit`` messages in order.

    The number of statements does not depend on the number of queues. Tasks that a limit refuses are
    made to wait in the same transaction, and the tasks behind them are claimed instead.
    """
    node_and_wait = (node, conf.settings().REPUBLISH_AFTER)
    limit_config = config.limits_in_force()
    if limit_config.empty:
        due = claims.claim(demands, now, limit, *node_and_wait, shards)
        rows = _with_worker(limit_config, in_publishing_order(due, now), now)
        return Claimed(
            claims.messages_for(overlap.admitted(rows)), Counter(task.queue for task in due)
        )
    cut = process_state.of(TenantTurns).make_full_wait(now)
    admitted, taken = _claim_within_limits(limit_config, demands, now, limit, node, shards, cut)
    return Claimed(claims.messages_for(overlap.admitted(admitted)), taken, cut)


def claim_some(
    demands: Sequence[QueueDemand], now: datetime, limit: int, node: uuid.UUID
) -> list[TaskMessage]:
    """Claim as ``claim_of`` does, again while limits refuse every task, for at most _SEARCH
    seconds. For a caller that does not claim in a loop of its own.
    """
    ends_at = time.monotonic() + _SEARCH
    while True:
        claimed = claim_of(demands, now, limit, node)
        if claimed.messages or not (claimed.taken or claimed.cut) or time.monotonic() > ends_at:
            return claimed.messages


def take(
    demands: Sequence[QueueDemand],
    now: datetime,
    limit: int,
    node: uuid.UUID,
    leases: Mapping[str, float],
) -> list[tuple[TaskMessage, Run | None]]:
    """Claim due tasks of the queues of one group as ``claim_of`` does, and start them in this
    process; return at most ``limit`` of them in order.

    ``leases``: the seconds by task name. A task of another name is not started: it stays QUEUED,
    like one that is refused at its start, and is returned without a run. The caller opens its run
    as for a message, or it is republished.
    """
    limit_config = config.limits_in_force()
    if limit_config.may_bind(("", demand.queue) for demand in demands):
        paused = paused_queues()
        demands = [demand for demand in demands if demand.queue not in paused]
        claimed = claim_some(demands, now, limit, node) if demands else []
        return _started(claimed, node, leases)
    taken, claimed = _take_together(limit_config, demands, now, limit, node, leases)
    taken.started.sort(key=lambda start: (-start[1], start[0].ready_at or start[0].run_at))
    return [
        *((_message_of(run, priority, taken), run) for run, priority in taken.started),
        *_started(claimed, node, leases),
    ]


@retry_on_deadlock
def _take_together(
    limit_config: config.LimitConfig,
    demands: Sequence[QueueDemand],
    now: datetime,
    limit: int,
    node: uuid.UUID,
    leases: Mapping[str, float],
) -> tuple[runs.Taken, list[TaskMessage]]:
    """Claim and start due tasks in one statement; return what it took, and the messages of those
    that it only claimed. Of those that have limits of their own, these are the admitted ones.
    """
    free = {
        name: lease for name, lease in leases.items() if not limit_config.may_bind([(name, "")])
    }
    wait = conf.settings().REPUBLISH_AFTER
    # A statement alone commits itself, which saves two round trips for each take.
    with nullcontext() if limit_config.empty else tables.atomic():
        taken = runs.take_alone(demands, now, limit, node, wait, free)
        claimed = taken.claimed
        if claimed:
            with tables.atomic():
                gate = admission.LimitAdmission(limit_config)
                admitted = gate.admit_claimed(in_publishing_order(claimed, now))
                if len(admitted) < len(claimed):
                    gate.clear_heads(sorted({task.queue for task in claimed}), now, _AHEAD)
                gate.close()
            claimed = admitted
    return taken, claims.messages_for(overlap.admitted(claimed)) if claimed else []


def _started(
    messages: Sequence[TaskMessage], node: uuid.UUID, leases: Mapping[str, float]
) -> list[tuple[TaskMessage, Run | None]]:
    """Start these claimed tasks; return them with their runs."""
    starts = [
        runs.ClaimedStart(message.task_id, message.epoch, uuid.uuid4(), leases[message.name])
        for message in messages
        if message.name in leases
    ]
    start = retry_on_deadlock(runs.start_claimed)
    by_task = {run.task_id: run for run in start(starts, node)} if starts else {}
    return [(message, by_task.get(message.task_id)) for message in messages]


def runs_of_node(node: uuid.UUID, but: Collection[uuid.UUID]) -> list[Run]:
    """Return the runs of a node that do not belong to batches, without these tasks."""
    running = tables.tasks().running().filter(node=node, in_batch=False)
    return claims.started_runs(running.exclude(pk__in=list(but)))


def _message_of(run: Run, priority: int, taken: runs.Taken) -> TaskMessage:
    return TaskMessage(
        task_id=run.task_id,
        epoch=run.epoch - 1,
        number=taken.publish_count,
        name=run.name,
        queue=run.queue,
        priority=priority,
        timeout=run.options.get("timeout"),
        soft_timeout=run.options.get("soft_timeout"),
        idempotency_key=run.idempotency_key,
        headers=sentry_headers(run.options),
    )


@retry_on_deadlock
def _with_worker(
    limit_config: config.LimitConfig, claimed: list[ClaimedTask], now: datetime
) -> list[ClaimedTask]:
    """Return the claimed tasks whose names a worker of their queue has registered. Make the others
    wait, and with them the next due tasks of their queues, so that the next claim reads those
    behind them.
    """
    idle = {task.queue for task in claimed if limit_config.lacks_worker(task.name, task.queue)}
    if not idle:
        return claimed
    with tables.atomic():
        gate = admission.LimitAdmission(limit_config)
        rows = gate.admit_claimed(claimed)
        gate.clear_heads(sorted(idle), now, _OF_NAME)
    return rows


@retry_on_deadlock
def _claim_within_limits(
    limit_config: config.LimitConfig,
    demands: Sequence[QueueDemand],
    now: datetime,
    limit: int,
    node: uuid.UUID,
    shards: Collection[int] | None,
    cut: Collection[str],
) -> tuple[list[ClaimedTask], Counter[str]]:
    """Claim tasks that their limits admit, in one transaction. Also return how many tasks of each
    queue were claimed before the limits were checked. ``cut``: queues whose first tasks in order of
    arrival would be refused.
    """
    node_and_wait = (node, conf.settings().REPUBLISH_AFTER)
    turns, taken = None, Counter[str]()
    if not demands[0].least and limit_config.takes_turns(demands[0].queue):
        # The tenants of this queue, which is claimed separately, share it by turns.
        turns = release.select_round_robin(limit_config, demands[0].queue, now, _TOGETHER)

    def act(current: Sequence[QueueDemand], number: int) -> list[ClaimedTask]:
        rows: Sequence[ClaimedTask]
        if turns is None:
            rows = _due(limit_config, current, now, number, node, shards, cut)
        else:
            ids = [turns.pop(0) for _ in range(min(number, current[0].limit, len(turns)))]
            claimed = claims.claim_these(ids, *node_and_wait) if ids else []
            rows = sorted(claimed, key=attrgetter("order"))
        taken.update(task.queue for task in rows)
        return _in_time(rows, now)

    admitted, remaining = list[ClaimedTask](), list(demands)
    with tables.atomic():
        gate = admission.LimitAdmission(limit_config, [demand.queue for demand in demands])
        for _ in range(_PASSES):
            current, number = gate.free(remaining, limit - len(admitted))
            rows = act(current, number) if current and number else []
            fit = gate.admit_claimed(rows)
            admitted += fit
            if len(fit) == len(rows) or gate.full_shares:
                break
            remaining = _remaining(remaining, rows, fit)
            gate.clear_heads([demand.queue for demand in remaining], now, _AHEAD)
        gate.close()
    process_state.of(TenantTurns).full |= gate.full_shares
    return admitted, taken


def _due(
    limit_config: config.LimitConfig,
    demands: Sequence[QueueDemand],
    now: datetime,
    limit: int,
    node: uuid.UUID,
    shards: Collection[int] | None,
    cut: Collection[str],
) -> list[ClaimedTask]:
    """Claim due tasks; return them in publishing order. Tasks of tenants that the last claim in
    order of arrival did not reach come first, in a part of the demand. From queues of ``cut`` only
    these are claimed.
    """
    wait, first, all_demands = conf.settings().REPUBLISH_AFTER, list[ClaimedTask](), demands
    turns = process_state.of(TenantTurns) if limit_config.tenants else None
    if turns is not None and (tenant_demands := turns.missing(demands, now, cut)):
        first = claims.claim(tenant_demands, now, limit, node, wait, shards)
        taken = Counter(task.queue for task in first)
        remaining = [
            demand._replace(limit=demand.limit - taken[demand.queue]) for demand in demands
        ]
        demands = [demand for demand in remaining if demand.limit > 0]
    number, demands = limit - len(first), [demand for demand in demands if demand.queue not in cut]
    in_order = claims.claim(demands, now, number, node, wait, shards) if demands and number else []
    if turns is not None:
        # Also the queues whose demand was used up: all their tenants are looked for again.
        turns.record([demand for demand in all_demands if demand.queue not in cut], in_order)
    return sorted(first, key=attrgetter("order")) + sorted(in_order, key=attrgetter("order"))


def _remaining(
    demands: Sequence[QueueDemand], rows: Sequence[ClaimedTask], fit: Sequence[ClaimedTask]
) -> list[QueueDemand]:
    """Return the demands that remain for queues in which tasks were refused.

    The next tasks of these queues may fit.
    """
    claimed, fitting = (Counter(task.queue for task in tasks) for tasks in (rows, fit))
    return [
        demand._replace(limit=demand.limit - fitting[demand.queue])
        for demand in demands
        if claimed[demand.queue] > fitting[demand.queue] and demand.limit > fitting[demand.queue]
    ][:_HEADS]


def in_publishing_order(claimed: Sequence[ClaimedTask], now: datetime) -> list[ClaimedTask]:
    """Return the claimed tasks that may still start, in order; set the others to EXPIRED."""
    # Databases do not guarantee the order in which an UPDATE returns its rows.
    return sorted(_in_time(claimed, now), key=attrgetter("order"))


def _in_time(claimed: Sequence[ClaimedTask], now: datetime) -> list[ClaimedTask]:
    """Return the tasks that may still start; set the others to EXPIRED.

    Expiry is checked when a task is claimed, so that no job has to read tasks that are not due.
    """
    late = {task.id for task in claimed if task.expires_at is not None and task.expires_at <= now}
    if late:
        endings.expire(tables.tasks().filter(pk__in=late), len(late))
    return [task for task in claimed if task.id not in late]


def republish(
    queryset: TaskQuerySet, now: datetime, limit: int, longest: float | None = None
) -> list[TaskMessage]:
    """Count one more message of QUEUED tasks that have not started; return the messages.

    Each may be republished again after REPUBLISH_AFTER; with ``longest`` after a time that doubles
    with each message up to this number of seconds. Their overlap keys are checked again, because
    the process that claimed them may have terminated before its check.
    """
    first = conf.settings().REPUBLISH_AFTER
    rows = claims.republish(queryset, limit, first, first if longest is None else longest)
    return claims.messages_for(overlap.admitted(_in_time(rows, now)))


def republish_all(queryset: TaskQuerySet, batch: int) -> Iterator[list[TaskMessage]]:
    """Republish all existing QUEUED tasks of the queryset; yield the messages of each batch.

    A batch is committed before it is yielded. Used after a broker has lost its messages. Tasks that
    are created meanwhile are left out, because they are published anyway.
    """
    queued = queryset.queued().filter(pk__lte=new_task_id()).order_by("pk")
    page = list(queued.values_list("pk", flat=True)[:batch])
    while page:
        yield republish(tables.tasks().filter(pk__in=page), database_now(), batch)
        page = list(queued.filter(pk__gt=page[-1]).values_list("pk", flat=True)[:batch])


def return_to_pending(messages: Sequence[TaskMessage], delay: float = 0.0) -> int:
    """Return claimed tasks to PENDING whose messages the broker did not accept; return how many.

    They are due in ``delay`` seconds. Tasks that have left the epoch of their message do not
    change.
    """
    epochs = {message.task_id: message.epoch for message in messages}
    return claims.return_to_pending(tables.tasks().filter(pk__in=list(epochs)), delay, epochs)


def expire_queued(queue: str, now: datetime, limit: int) -> int:
    """Set published tasks of a queue to EXPIRED that have waited for REPUBLISH_AFTER and may no
    longer start; return how many. Without a worker their messages would wait for ever.
    """
    late = tables.tasks().republish_due(now).filter(queue=queue, expires_at__lte=now)
    return endings.expire(late, limit)


def return_left_out(queue: str, now: datetime, limit: int) -> int:
    """Return tasks of a queue without a worker to PENDING that use places of limits which tasks of
    other queues wait for, REPUBLISH_AFTER after they were published; return how many.
    """
    limit_config = config.limits_in_force()
    columns = ("pk", "epoch", "name", "tenant_id", "limit_key")
    # All of them, which are a window at most: the others stay, and would be read again each time.
    rows = tables.tasks().republish_due(now).filter(queue=queue).values_list(*columns)
    shared = ((pk, epoch) for pk, epoch, *task in rows if limit_config.shared_by(*task))
    epochs = dict(islice(shared, limit))
    tasks = tables.tasks().filter(pk__in=list(epochs))
    # They are claimed in their old order when the queue has a worker.
    return claims.return_to_pending(tasks, claims.WAS_READY, epochs) if epochs else 0


def not_published(messages: Sequence[TaskMessage], delay: float = 0.0) -> int:
    """Undo the counting of repeated messages that the broker did not accept.

    The tasks are due for republishing in ``delay`` seconds. They stay QUEUED in their epoch,
    because an earlier copy of the message may still start them.
    """
    return claims.not_published(
        [(message.task_id, message.epoch, message.number) for message in messages], delay
    )


def return_unknown_task(
    task_id: uuid.UUID, epoch: int, queues: Collection[str] = (), delay: float | None = None
) -> int:
    """Return a task to PENDING that is not registered in this worker; no failure is counted.

    If another worker of its queue has registered it, it is due again in ``delay`` seconds, by
    default ``conf.unknown_task_delay``. Otherwise it waits until one registers it. The other
    published tasks of its name in its queue then wait too, so that they leave the window of the
    queue. ``queues``: only a task of one of these queues.
    """
    queryset = tables.tasks().queued().filter(pk=task_id, epoch=epoch)
    row = queryset.values_list("name", "queue").first()
    if row is None or (queues and row[1] not in queues):
        return 0
    name, queue = row
    if not config.limits_in_force().lacks_worker(name, queue):
        wait = conf.unknown_task_delay() if delay is None else delay
        return claims.return_to_pending(queryset, wait, {task_id: epoch})
    published = tables.tasks().queued().filter(queue=queue, name=name)
    with tables.atomic():
        epochs = dict(published.values_list("pk", "epoch")[:_OF_NAME])
        return claims.make_claimed_wait(dict.fromkeys(epochs, scope_of_worker(name, queue)), epochs)


# Counts messages that were consumed from a queue other than that of their task.


def count_misrouted(name: str, consumed_from: str) -> None:
    """Count a message of a task in queue ``name`` that was consumed from ``consumed_from``."""
    QueueControl.objects.using(database()).bulk_create(
        [QueueControl(name=name)], ignore_conflicts=True
    )
    QueueControl.objects.using(database()).filter(name=name).update(
        misrouted=F("misrouted") + 1, misrouted_at=DatabaseNow(), misrouted_from=consumed_from[:200]
    )

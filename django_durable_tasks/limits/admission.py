"""Applies limits at the claim: tasks that exceed a limit wait for its scope."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Q

from django_durable_tasks.choices import Status
from django_durable_tasks.limits import backpressure, waitlist
from django_durable_tasks.limits import scopes as limits_scopes
from django_durable_tasks.limits.config import LimitConfig
from django_durable_tasks.limits.waitlist import Usage
from django_durable_tasks.models import DEFAULT_TENANT_ID, LimitBucket
from django_durable_tasks.states import claims as claim_transitions
from django_durable_tasks.states.claims import ClaimedTask
from django_durable_tasks.states.demand import QueueDemand
from django_durable_tasks.store import tables
from django_durable_tasks.store.dialects import POSTGRESQL, sql, verb
from django_durable_tasks.store.postgresql import text_array

# Admits claimed tasks that no limit but the fair shares of their tenants can refuse.
#
# The tasks of a queue are admitted together if each tenant stays within its share. Only the tasks
# of other queues are judged one by one, by ``admission``.


class ShareAdmission:
    """Admits whole queues in one claim, inside its transaction; ``capacity`` is that of the claim.

    The tasks of a queue are counted once. Shares of the window need no lock. Customers may have
    half of the processes of a queue, so a claim with tasks of theirs takes the lock of limits.
    """

    def __init__(self, limit_config: LimitConfig, capacity: limits_scopes.Capacity) -> None:
        self._limit_config, self._capacity = limit_config, capacity
        self._usage, self._counted = Usage(), set[str]()

    def exceeding(self, claimed: Sequence[ClaimedTask]) -> set[str]:
        """Return the queues in which a tenant exceeds its share with these tasks. For the other
        queues the tasks are counted as admitted.
        """
        claims: dict[str, Counter[int]] = {}
        selected: Counter[tuple[str, int]] = Counter()
        for task in claimed:
            claims.setdefault(task.queue, Counter())[task.tenant_id] += 1
            waited = task.waiting_for_limit
            if waited is not None and is_selected(
                waited, task.queue, task.tenant_id, self._limit_config
            ):
                selected[task.queue, task.tenant_id] += 1
        self._count_queues(claims)
        queues = set[str]()
        for queue, numbers in claims.items():
            # A task that was selected among those that wait for the share is not refused by it.
            demand = {
                tenant: number - selected[queue, tenant] for tenant, number in numbers.items()
            }
            if not self._take(queue, {tenant: n for tenant, n in demand.items() if n}, numbers):
                queues.add(queue)
        return queues

    def _count_queues(self, claims: dict[str, Counter[int]]) -> None:
        """Count the QUEUED tasks of queues that are not counted yet, without these claims."""
        new = [queue for queue in claims if queue not in self._counted]
        self._counted.update(new)
        if any(
            backpressure.places_of_customer(queue, tenant_id, self._limit_config) is not None
            for queue in new
            for tenant_id in claims[queue]
        ):
            waitlist.lock_limits()
        for queue, tenant_id, queued, number in under_way_of(new) if new else ():
            self._usage.queued[queue][tenant_id] = queued
            self._usage.of_tenants[queue][tenant_id] = number
        for queue in new:
            self._usage.queued[queue].subtract(claims[queue])
            self._usage.of_tenants[queue].subtract(claims[queue])

    def _take(self, queue: str, numbers: dict[int, int], owners: Collection[int]) -> bool:
        """Use the shares of these tenants if they are sufficient; return whether they were."""
        capacity, tenants = self._capacity, self._usage.tenants(queue) | set(owners)
        free: dict[str, int] = {}
        for tenant, number in numbers.items():
            scope = limits_scopes.scope_of_share(queue, tenant)
            remaining = capacity.places.get(scope)
            if remaining is None:
                remaining = free_of_share((queue, tenant), self._limit_config, self._usage, tenants)
            if remaining < number or scope in capacity.closed:
                return False
            free[scope] = remaining - number
        capacity.places.update(free)
        capacity.known.update(free)
        return True


def is_selected(waited: str, queue: str, tenant_id: int, current: LimitConfig) -> bool:
    """Return whether a task that waited for this scope was selected by its share, so that the share
    does not refuse it. Not a task of a customer: its number of processes is checked by each claim.
    """
    return (
        waited == limits_scopes.scope_of_share(queue, tenant_id)
        and backpressure.places_of_customer(queue, tenant_id, current) is None
    )


@verb
def under_way_of(queues: Sequence[str]) -> list[tuple[str, int, int, int]]:
    """Return the number of QUEUED tasks, and of QUEUED and RUNNING tasks, of these queues by queue
    and tenant; one statement.
    """
    statuses = [Status.QUEUED, Status.RUNNING]
    rows = tables.tasks().filter(queue__in=queues, status__in=statuses).order_by()
    numbers = {"queued": Count("pk", filter=Q(status=Status.QUEUED)), "number": Count("pk")}
    return list(rows.values_list("queue", "tenant_id").annotate(**numbers))


@under_way_of.on(POSTGRESQL)
def _under_way_in_one_statement(queues: Sequence[str]) -> list[tuple[str, int, int, int]]:
    return tables.read(sql("under_way_of"), {"queues": text_array(queues)})


def free_of_share(
    share: tuple[str, int], current: LimitConfig, usage: Usage, tenants: set[int]
) -> int:
    """Return how many more tasks of a queue one of these tenants may have QUEUED.

    If the whole queue has a concurrency limit, the share is a part of it and counts RUNNING tasks
    too. Otherwise it is a part of the window, and for a customer at most half of the processes.
    """
    queue, tenant_id = share
    wide = [most for scope in current.wide(queue) if (most := current.of(scope).places) is not None]
    if wide:
        return limits_scopes.share_of(min(wide), len(tenants)) - usage.of_tenants[queue][tenant_id]
    free = (
        limits_scopes.share_of(
            max(backpressure.window_of(queue), usage.window(queue)), len(tenants)
        )
        - usage.queued[queue][tenant_id]
    )
    places = backpressure.places_of_customer(queue, tenant_id, current)
    return free if places is None else min(free, places - usage.of_tenants[queue][tenant_id])


# Counting, claiming and recording the waits are one transaction. If a limit other than a fair
# share applies, the transaction first locks the row of limits, so that the limited claims of all
# nodes are serial and each one counts what the others committed (READ COMMITTED). A transaction
# that has this lock never waits for a task: locked tasks are skipped. Tasks without a limit need
# no lock.


_BACKLOG = 5
"""Tasks of a share that one claim refuses, from which on its other due tasks are made to wait. The
few tasks of a tenant that only waits for its last one stay due.
"""
_SHARES = 20
"""The shares whose due tasks are made to wait together: ten index scans each."""
_COLUMNS = (
    *("pk", "name", "queue", "tenant_id", "limit_key"),
    *("weight", "priority", "waiting_for_limit", "due_at"),
)


@dataclass(frozen=True, slots=True)
class _Bound:
    """A claimed or due task, the scopes that may refuse it, and the share of its tenant, if any."""

    task_id: uuid.UUID
    task: Any
    request: limits_scopes.AdmissionRequest
    share: str | None
    has_turn: bool

    @property
    def scopes(self) -> Sequence[str]:
        """The scopes that may refuse the task."""
        return self.request.scopes


class LimitAdmission:
    """The admission of one claim, inside its transaction; used only if limits can apply."""

    def __init__(self, limit_config: LimitConfig, queues: Iterable[str] = ()) -> None:
        self._limit_config = limit_config
        self._wide = {scope for queue in queues for scope in limit_config.wide(queue)}
        self._capacity, self._buckets = limits_scopes.Capacity(), dict[str, limits_scopes.Bucket]()
        self._shares = ShareAdmission(limit_config, self._capacity)
        self._usage: Usage | None = None
        self._now: datetime | None = None
        self._shares_waiting: dict[str, bool] = {}
        self._heads_read: set[str] = set()
        # The shares that refused several tasks.
        self.full_shares: set[str] = set()
        if self._wide:
            self._count_usage(())
            self._open({scope: limit_config.of(scope) for scope in sorted(self._wide)})
            self._reserve_for_heavy(self._wide)

    def count_usage(self) -> tuple[Usage, datetime]:
        """Lock the limits; return the usage and the time for which the others are admitted.

        For a caller that selects tasks itself before it claims them.
        """
        self._count_usage(())
        if self._usage is None or self._now is None:
            raise AssertionError("The lock of limits was not taken.")
        return self._usage, self._now

    def free(self, demands: Sequence[QueueDemand], limit: int) -> tuple[list[QueueDemand], int]:
        """Reduce the demand of each queue, and the total ``limit``, to what the limits of whole
        queues admit.
        """
        if not self._wide:
            return list(demands), limit
        reduced = [
            demand.at_most(self._at_most(demand.limit, limits_scopes.scope_of_queue(demand.queue)))
            for demand in demands
        ]
        return [demand for demand in reduced if demand.limit > 0], self._at_most(
            limit, limits_scopes.GLOBAL
        )

    def _at_most(self, number: int, scope: str) -> int:
        remaining = self._capacity.left(scope) if scope in self._wide else None
        return number if remaining is None else max(0, min(number, remaining))

    def admit_claimed(
        self, claimed: Sequence[ClaimedTask], *, in_turn: bool = False
    ) -> list[ClaimedTask]:
        """Return the claimed tasks that are admitted, in their order, and make the others wait.

        ``in_turn``: they are the first of their waitlists, so no capacity of these is reserved.
        """
        idle = self._limit_config.without_worker(
            (task.id, task.name, task.queue) for task in claimed
        )
        if idle:
            epochs = {task.id: task.epoch for task in claimed}
            claim_transitions.make_claimed_wait(idle, epochs)
            claimed = [task for task in claimed if task.id not in idle]
        if not self._limit_config.may_bind({(task.name, task.queue) for task in claimed}):
            return list(claimed)
        judged = claimed
        if self._limit_config.has_only_shares(claimed):
            exceeding = self._shares.exceeding(claimed)
            judged = [task for task in claimed if task.queue in exceeding]
        refused = self._refused(
            [self._bound(task.id, task, task.ready_at) for task in judged],
            turns={task.id: task.waiting_for_limit for task in judged} if in_turn else None,
        )
        claim_transitions.make_claimed_wait(refused)
        return [task for task in claimed if task.id not in refused]

    def admit(self, ids: Sequence[uuid.UUID], now: datetime) -> list[uuid.UUID]:
        """Return the due tasks that are admitted, in their order, and make the others wait."""
        bound = self._read(ids)
        refused = self._refused(
            [bound[task_id] for task_id in ids if task_id in bound], claimed=False
        )
        claim_transitions.make_due_wait(refused, now)
        return [task_id for task_id in ids if task_id in bound and task_id not in refused]

    def clear_heads(self, queues: Sequence[str], now: datetime, limit: int) -> int:
        """Make those of the next due tasks wait that a limit would refuse, or whose name no worker
        has, so that the next claim reads the tasks behind them.
        """
        ids = next_due(queues, now, limit)
        rows = tables.tasks().filter(pk__in=ids).values_list("pk", "name", "queue")
        idle = self._limit_config.without_worker(rows)
        number = claim_transitions.make_due_wait(idle, now)
        return number + self.refuse([task_id for task_id in ids if task_id not in idle], now)

    def refuse(self, ids: Sequence[uuid.UUID], now: datetime) -> int:
        """Make those of these due tasks wait that a limit would refuse; return how many. The
        others use no capacity.
        """
        full = {
            row.task_id: scope
            for row in self._read(ids).values()
            for scope in row.scopes
            if scope not in self._wide and self._capacity.refuses(scope, row.request)
        }
        return claim_transitions.make_due_wait(full, now)

    def is_full(self, name: str, queue: str) -> bool:
        """Return whether a limit of the whole task or of its whole queue admits no further task."""
        scopes = (*self._limit_config.wide(queue), limits_scopes.scope_of_task(name))
        remaining = (self._capacity.left(scope) for scope in scopes)
        return any(number is not None and number <= 0 for number in remaining)

    def close(self) -> None:
        """Write the buckets whose tokens were used."""
        rows = [
            LimitBucket(
                scope=scope,
                tokens=self._capacity.tokens[scope],
                refilled_at=self._buckets[scope].at,
            )
            for scope in sorted(self._capacity.spent)
        ]
        if rows:
            waitlist.write_buckets(rows)

    def _refused(
        self,
        bound: Sequence[_Bound],
        *,
        claimed: bool = True,
        turns: Mapping[uuid.UUID, str | None] | None = None,
    ) -> dict[uuid.UUID, str]:
        """Judge these tasks in their order; return the scope for which each refused task waits.

        ``turns``: the waitlist of each task, if it is the first one there.
        """
        if not any(row.scopes for row in bound):
            return {}
        # Whether a limit other than a share of a window can refuse any of these tasks.
        strict = any(
            limits_scopes.shared(scope) is None
            or backpressure.places_of_customer(
                row.task.queue, row.task.tenant_id, self._limit_config
            )
            is not None
            for row in bound
            for scope in row.scopes
        )
        self._count_usage(bound if claimed else (), strict=strict)
        names: dict[str, set[str]] = {}
        for row in bound:
            for scope in row.scopes:
                names.setdefault(scope, set()).add(row.task.name)
        # If the limits of tasks differ, the strictest applies.
        allowed = {scope: self._limit_config.among(scope, names[scope]) for scope in sorted(names)}
        self._open(allowed, bound)
        turns = turns or {}
        self._reserve_for_heavy(
            {scope for row in bound for scope in row.scopes if scope != turns.get(row.task_id)}
        )
        refused = {
            row.task_id: row.share
            for row in bound
            if row.share is not None and self._waits_for_its_share(row)
        }
        answers = limits_scopes.admitted(
            [row.request for row in bound if row.task_id not in refused], self._capacity
        )
        for row in bound:
            if row.task_id in answers:
                scope, queue = answers[row.task_id], row.task.queue
                # If the queue serves tenants round-robin, the task waits for its tenant's share.
                if (
                    row.share is not None
                    and scope in self._limit_config.wide(queue)
                    and self._limit_config.takes_turns(queue)
                ):
                    scope = row.share
                refused[row.task_id] = scope
        waits = Counter(
            row.share
            for row in bound
            if row.share is not None
            and refused.get(row.task_id) == row.share
            and self._limit_config.shares_processes(row.task.queue, row.task.tenant_id)
        )
        self.full_shares.update(share for share, number in waits.items() if number >= _BACKLOG)
        return refused

    def _waits_for_its_share(self, row: _Bound) -> bool:
        """Return whether the queue serves tenants round-robin, other tasks wait, and this one has
        not had its turn.
        """
        queue = row.task.queue
        if row.has_turn or not self._limit_config.takes_turns(queue):
            return False
        if queue not in self._shares_waiting:
            self._shares_waiting[queue] = bool(waiting_shares(queue, 10))
        return self._shares_waiting[queue]

    def _read(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, _Bound]:
        """Read these tasks with the scopes that may refuse them."""
        rows = tables.tasks().filter(pk__in=ids).values_list(*_COLUMNS, named=True)
        return {row.pk: self._bound(row.pk, row, row.due_at) for row in rows}

    def _bound(self, task_id: uuid.UUID, task: Any, due_since: datetime | None) -> _Bound:
        """Return a task with the scopes that may refuse it.

        ``task``: a ClaimedTask, or a row with the same columns. Its ``waiting_for_limit`` is the
        scope for which it waited before the claim.
        """
        config, queue, tenant_id = self._limit_config, task.queue, task.tenant_id
        scopes = [*config.wide(queue), *config.narrow(task.name, tenant_id, task.limit_key)]
        share = limits_scopes.scope_of_share(queue, tenant_id) if config.tenants else None
        # Its turn has come, but a customer's part of the processes may be in use again.
        has_turn = share is not None and task.waiting_for_limit == share
        if share is not None and not (has_turn and is_selected(share, queue, tenant_id, config)):
            scopes.append(share)
        request = waitlist.admission_request(
            task_id, scopes, task.weight, (task.priority, due_since)
        )
        return _Bound(task_id, task, request, share, has_turn)

    def _count_usage(self, excluded: Sequence[_Bound], *, strict: bool = True) -> None:
        """Count the usage once, without the tasks ``excluded``.

        If ``strict``, which means that a limit other than a share can refuse, this takes the lock
        of limits.
        """
        if self._usage is not None and (self._now is not None or not strict):
            return
        if strict:
            self._now = waitlist.lock_limits()
        self._usage = waitlist.count_usage(running=strict)
        for row in excluded:
            self._usage.add(row.task, sign=-1)

    def _open(
        self, scopes: Mapping[str, limits_scopes.Allowance], bound: Sequence[_Bound] = ()
    ) -> None:
        """Compute the free capacity of these scopes, unless it is computed already."""
        new = {
            scope: allowed for scope, allowed in scopes.items() if scope not in self._capacity.known
        }
        usage = self._usage
        if usage is None:
            return
        self._buckets |= waitlist.add_scopes(self._capacity, new, usage, self._now)
        owners: dict[str, set[int]] = {}
        for row in bound:
            owners.setdefault(row.task.queue, set()).add(row.task.tenant_id)
        for scope in new:
            share = limits_scopes.shared(scope)
            if share is not None:
                tenants = usage.tenants(share[0]) | owners.get(share[0], set())
                self._capacity.places[scope] = free_of_share(
                    share, self._limit_config, usage, tenants
                )

    def _reserve_for_heavy(self, scopes: Collection[str]) -> None:
        """Reserve capacity in each scope for its most urgent waiting task, if that is heavier than
        1.

        Lighter tasks then leave the capacity that it needs. Nothing is reserved for a task that
        could not be released anyway, because its queue is paused or full or another limit refuses
        it.
        """
        new = sorted(
            scope
            for scope in scopes
            if scope not in self._heads_read and limits_scopes.shared(scope) is None
        )
        self._heads_read.update(new)
        if self._now is None or not new:
            return
        heads = waitlist.eligible(
            dict.fromkeys(new, 0), lambda _: 1, self._is_eligible, released_too=True
        )
        for row in {row.waiting_for_limit: row for row in reversed(heads)}.values():
            if row.weight == 1:
                continue
            limited = [
                *self._limit_config.wide(row.queue),
                *self._limit_config.narrow(row.name, row.tenant_id, row.limit_key),
            ]
            self._open({scope: self._limit_config.among(scope, [row.name]) for scope in limited})
            request = waitlist.admission_request(
                row.pk, limited, row.weight, (row.priority, row.ready_at)
            )
            if not any(
                self._capacity.refuses(scope, request)
                for scope in limited
                if scope != row.waiting_for_limit
            ):
                self._capacity.ahead[row.waiting_for_limit] = request

    def _is_eligible(self, row: waitlist.WaitingTask) -> bool:
        """Return whether the task has not expired, its queue admits it, and its weight is within
        the whole limit.
        """
        if row.expires_at is not None and self._now is not None and row.expires_at <= self._now:
            return False
        if row.weight > self._capacity.heaviest.get(row.waiting_for_limit, row.weight):
            return False
        if self._usage is None or row.queue in self._usage.paused:
            return False
        if backpressure.is_left_out(row.queue):
            return False
        full = self._usage.window(row.queue) >= backpressure.window_of(row.queue)
        return not full or row.priority >= waitlist.URGENT


def make_shares_wait(shares: Collection[str], now: datetime, limit: int) -> set[str]:
    """Make the next due tasks of these shares of customers wait, about ``limit`` in equal parts;
    return the shares that may have more.

    For shares that have just refused several tasks: they admit a number of tasks whatever their
    weight, so they refuse the next ones too. Needs no lock of limits. The ends of their runs hand
    their places over; if the last one ended meanwhile, a scheduler releases the tasks, at the
    latest after POLL.
    """
    scans, due = list[tuple[Any, int]](), tables.tasks().due_alone(now).order_by("due_at")
    # The condition of the index, and no tasks that were released a moment ago.
    due = due.filter(tenant__gt=DEFAULT_TENANT_ID, waiting_for_limit__isnull=True)
    chosen = sorted(shares)[:_SHARES]
    part = max(1, limit // max(1, len(chosen)))
    for queue, tenant_id in filter(None, map(limits_scopes.shared, chosen)):
        of_tenant = due.filter(queue=queue, tenant_id=tenant_id)
        scans += [(of_tenant.filter(priority=level), part) for level in range(9, -1, -1)]
    rows = tables.first_of_each(scans, ("pk", "queue", "tenant_id")) if scans else []
    waits = {pk: limits_scopes.scope_of_share(queue, tenant_id) for pk, queue, tenant_id in rows}
    claim_transitions.make_due_wait(waits, now)
    numbers = Counter(waits.values())
    return {*shares} - {share for share in chosen if numbers[share] < part}


def next_due(queues: Sequence[str], now: datetime, limit: int) -> list[uuid.UUID]:
    """Return the next due tasks of these queues by priority, at most ``limit`` in equal parts per
    queue.
    """
    due, per_queue = tables.tasks().due_alone(now).order_by("due_at"), max(1, limit // len(queues))
    # One short index scan per priority; a single ORDER BY would sort all due tasks.
    scans = [
        (due.filter(queue=queue, priority=level), per_queue)
        for queue in queues
        for level in range(9, -1, -1)
    ]
    rows = tables.first_of_each(scans, ("pk", "priority", "due_at"))
    return [row[0] for row in sorted(rows, key=lambda row: (-row[1], row[2]))[:limit]]


def waiting_shares(queue: str, most: int, past: str = "") -> list[str]:
    """Return at most ``most`` shares of a queue with waiting tasks, starting after ``past``."""
    shares: list[str] = []
    for start in dict.fromkeys(
        (past or limits_scopes.before_shares(queue), limits_scopes.before_shares(queue))
    ):
        scopes = waitlist.scopes_after(start, most) if len(shares) < most else []
        shares += [
            scope
            for scope in scopes
            if (limits_scopes.shared(scope) or ("",))[0] == queue and scope not in shares
        ]
    return shares[:most]

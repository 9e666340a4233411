"""Re-queues waiting tasks once their limit has free capacity, and raises the priority of old
ones.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django_durable_tasks import process_state
from django_durable_tasks.limits import admission, backpressure, waitlist
from django_durable_tasks.limits import scopes as limits_scopes
from django_durable_tasks.limits.admission import free_of_share
from django_durable_tasks.limits.backpressure import heads
from django_durable_tasks.limits.config import LimitConfig, limits_in_force
from django_durable_tasks.limits.scopes import AdmissionRequest, Allowance, Capacity
from django_durable_tasks.limits.waitlist import Usage, WaitingTask
from django_durable_tasks.states import claims, endings
from django_durable_tasks.store import tables

# Computes the free capacity of scopes for one round of release, and which waiting tasks it may
# admit.
#
# Called by the release below.


_WIDE_SHARE = 1_000_000_000
AHEAD = 2_000
"""The maximum number of due tasks that are read or counted per queue."""
SEPARATOR = "\n"
"""Separates a scope from the index of an allowance, if tasks declare different limits for one key.
No scope contains a newline.
"""


class FreeCapacity:
    """The free capacity of the scopes in one round of release."""

    def __init__(
        self, current: LimitConfig, usage: Usage, now: datetime, selected: Mapping[str, int]
    ) -> None:
        self._limit_config, self._usage, self._now, self._selected = current, usage, now, selected
        self.capacity = Capacity()
        self._differing: list[Allowance] = []

    def open(self, scopes: Collection[str]) -> None:
        """Compute the free capacity of these scopes and of the queues whose tenants share them."""
        sharing: dict[str, set[int]] = {}
        for queue, tenant in filter(None, map(limits_scopes.shared, scopes)):
            sharing.setdefault(queue, set()).add(tenant)
        wide = {scope for queue in sharing for scope in self._limit_config.wide(queue)}
        allowed = {
            scope: self._limit_config.common_limits(scope)
            for scope in {*scopes, *wide}
            if limits_scopes.shared(scope) is None
        }
        self._allow(
            {scope: allowance for scope, allowance in allowed.items() if allowance is not None}
        )
        if sharing and self._limit_config.tenants:
            self._divide(sharing)

    def _allow(self, allowed: Mapping[str, Allowance], mark: str = "") -> None:
        waitlist.add_scopes(self.capacity, allowed, self._usage, self._now, mark)

    def _divide(self, sharing: Mapping[str, set[int]]) -> None:
        """Divide the capacity of shared queues between their tenants; due tasks come first, or get
        half of the window.

        Due tasks may belong to tenants without waiting tasks. If only one tenant waits, it gets all
        of a limited queue, but a customer not more than its part of the processes: the claim would
        refuse the others, and they would be released and refused for ever. Half of a window is
        enough to keep every worker busy.
        """
        due = tables.tasks().due_alone(self._now)
        queries = [
            (due.filter(queue=queue), self._relevant_due(queue))
            for queue in sharing
            if queue not in self._selected
        ]
        due_counts = Counter(queue for (queue,) in tables.first_of_each(queries, ("queue",)))
        due_counts.update(self._selected)
        places, tokens = self.capacity.places, self.capacity.tokens
        for queue, tenants in sharing.items():
            number, wide = due_counts[queue], self._limit_config.wide(queue)
            turns, window = self._limit_config.takes_turns(queue), self._window(queue)
            if number and not turns:
                window //= 2
            places[limits_scopes.scope_of_window(queue)] = window
            for scope in wide if turns else ():
                if scope in places:
                    places[scope] -= number
                if scope in tokens:
                    tokens[scope] = min(tokens[scope], self.capacity.rates[scope].holds()) - number
            only_tenant = len(tenants) == 1 and not number and bool(wide)
            all_tenants = self._usage.tenants(queue) | tenants
            each = _WIDE_SHARE if turns else -(-window // len(tenants))
            for tenant in tenants:
                fair = free_of_share((queue, tenant), self._limit_config, self._usage, all_tenants)
                scope = limits_scopes.scope_of_share(queue, tenant)
                customer_places = backpressure.places_of_customer(queue, tenant, self._limit_config)
                is_whole = only_tenant and customer_places is None
                places[scope] = _WIDE_SHARE if is_whole else min(fair, each)

    def _relevant_due(self, queue: str) -> int:
        """Return how many due tasks of a queue have to be read: more than the capacity are not
        needed.
        """
        capacities = [
            capacity
            for scope in self._limit_config.wide(queue)
            if (capacity := self.capacity.left(scope)) is not None
        ]
        return max(1, min([AHEAD, *capacities])) if self._limit_config.takes_turns(queue) else 1

    def _is_closed(self, queue: str) -> bool:
        """Return whether the queue is paused, or has no worker that could start its tasks while
        those of other queues wait for the same limits.
        """
        return queue in self._usage.paused or backpressure.is_left_out(queue)

    def _window(self, queue: str) -> int:
        return max(0, backpressure.window_of(queue) - self._usage.window(queue))

    def order(self, scopes: Collection[str], last_share: Mapping[str, str]) -> list[str]:
        """Return the scopes in round-robin order. ``last_share``: the share of each queue that was
        served last.
        """
        queues = sorted(
            {share[0] for scope in scopes if (share := limits_scopes.shared(scope)) is not None}
        )
        shares = []
        for queue in queues:
            of_queue = [
                scope for scope in scopes if (limits_scopes.shared(scope) or ("",))[0] == queue
            ]
            shares += limits_scopes.rotate_after(of_queue, last_share.get(queue, ""))
        return [*(scope for scope in scopes if limits_scopes.shared(scope) is None), *shares]

    def number(self, scope: str, limit: int) -> int:
        """Return how many tasks of weight 1 a scope admits; ``limit`` if the scope is
        not limited.
        """
        capacity = self.capacity.left(scope)
        return limit if capacity is None else capacity

    def only_endings_free(
        self, scope: str, waiting: Mapping[str, Sequence[AdmissionRequest]]
    ) -> bool:
        """Return whether a concurrency limit without capacity, or a customer's part of the
        processes, is all that its tasks wait for.

        ``waiting``: the tasks of each scope that their queues admit.
        """
        rows = waiting.get(scope, ())
        limited = rows[0].scopes[0] if rows else scope
        share = limits_scopes.shared(limited)
        if share is not None:
            places = backpressure.places_of_customer(*share, self._limit_config)
            return places is not None and places <= self._usage.of_tenants[share[0]][share[1]]
        remaining = None if limited in self.capacity.tokens else self.capacity.left(limited)
        return remaining is not None and remaining < (rows[0].weight if rows else 1)

    def least_of(self, scope: str) -> int | None:
        """Return the lowest priority of the waiting tasks of a scope that may be released now, or
        None if it has no capacity.
        """
        share = limits_scopes.shared(scope)
        if self.number(scope, 1) <= 0 or (share is not None and self._is_closed(share[0])):
            return None
        return 0 if share is None or self._window(share[0]) else waitlist.URGENT

    def takes(self, row: WaitingTask) -> bool:
        """Return whether the task's queue admits it now and its weight does not exceed the whole
        limit.
        """
        if self._is_closed(row.queue) or (
            row.priority < waitlist.URGENT and not self._window(row.queue)
        ):
            return False
        heaviest = self._limit_config.among(row.waiting_for_limit, [row.name]).heaviest
        return heaviest is None or row.weight <= heaviest

    def bind(self, rows: Iterable[WaitingTask]) -> None:
        """Compute the free capacity of all limits of these tasks.

        Executes one statement, and one for each key for which tasks declare different limits. The
        allowance of one task is therefore not applied to another task in the same waitlist.
        """
        new: dict[str, dict[str, Allowance]] = {}
        for row in rows:
            self.capacity.places.setdefault(
                limits_scopes.scope_of_window(row.queue), self._window(row.queue)
            )
            for scope in (row.waiting_for_limit, *self._narrow(row)):
                marked = self._marked(scope, row.name)
                if marked not in self.capacity.known and limits_scopes.shared(scope) is None:
                    mark = marked.removeprefix(scope)
                    new.setdefault(mark, {})[scope] = self._limit_config.among(scope, [row.name])
        for mark, allowed in new.items():
            self._allow(allowed, mark)

    def request(self, row: WaitingTask) -> AdmissionRequest:
        """Return the task with all scopes whose capacity it uses when it is released."""
        wide = (
            self._limit_config.wide(row.queue)
            if limits_scopes.shared(row.waiting_for_limit) is not None
            else []
        )
        other_scopes = [
            self._marked(scope, row.name)
            for scope in self._narrow(row)
            if scope != row.waiting_for_limit
        ]
        if row.priority < waitlist.URGENT:
            other_scopes.append(limits_scopes.scope_of_window(row.queue))
        return waitlist.admission_request(
            row.pk,
            [self._marked(row.waiting_for_limit, row.name), *wide],
            row.weight,
            (row.priority, row.ready_at),
            other_scopes,
        )

    def _narrow(self, row: WaitingTask) -> list[str]:
        return self._limit_config.narrow(row.name, row.tenant_id, row.limit_key)

    def _marked(self, scope: str, name: str) -> str:
        """Return the scope; with a marker for the allowance if tasks declare different limits for
        its key.
        """
        if self._limit_config.common_limits(scope) is not None:
            return scope
        allowed = self._limit_config.among(scope, [name])
        if allowed not in self._differing:
            self._differing.append(allowed)
        return f"{scope}{SEPARATOR}{self._differing.index(allowed)}"


# Re-queues waiting tasks once their limit has capacity, round-robin over scopes.
#
# The number of statements does not depend on the number of tasks. This module only makes tasks
# eligible; the claim enforces the limit. An eligible task keeps the name of its scope until it is
# claimed, so that the capacity that a heavy task waited for stays reserved for it. Called by the
# thread of ``scheduler/loop.py``, by the claim, and by the process of an ended run
# (``tasks/attempts.py``).


_PASSES = 2


class ReleaseTurns:
    """The round-robin position of this process: the next scopes, and the tenant share of each queue
    that was served last. ``pages``: where it reads long waitlists on.

    ``wait_for_endings``: whether, at the last round, every waiting task waited for capacity that
    only the end of a run frees.
    """

    def __init__(self) -> None:
        self.scopes = waitlist.ScopeCursor()
        self.last_share: dict[str, str] = {}
        self.pages = waitlist.Pages()
        self.wait_for_endings = False


def _turns() -> ReleaseTurns:
    return process_state.of(ReleaseTurns)


def release_waiting(now: datetime, limit: int) -> int:
    """Make waiting tasks eligible, round-robin over their scopes, as far as these have capacity;
    return how many.

    If no task waits, it executes one index probe.
    """
    turns = _turns()
    scopes = turns.scopes.next(limit)
    if not scopes:
        turns.wait_for_endings = False
        turns.pages.keep(())
        return 0
    plan = plan_release(scopes, now, limit)
    turns.wait_for_endings = plan.wait_for_endings and len(scopes) < limit
    if len(scopes) < limit:
        turns.pages.keep(scopes)
    return len(_release(plan, limit))


def has_more_pages() -> bool:
    """Return whether the last round of this process read only a part of a waitlist, in which too
    few tasks were eligible.
    """
    return bool(_turns().pages)


def wait_for_endings() -> bool:
    """Return whether, at the last round of this process, every waiting task waited for a
    concurrency limit without capacity.

    The process of an ended run hands such capacity over, so it is not necessary to look often.
    """
    return _turns().wait_for_endings


def select_next(
    waiting: Sequence[WaitingTask], now: datetime, limit: int, usage: Usage, *, reread: bool
) -> list[uuid.UUID]:
    """Return those of these tasks that ``usage`` admits, at most ``limit``.

    ``waiting``: the first tasks of waitlists (``waitlist.heads``). ``reread``: they may have
    changed. The caller claims the tasks. Tasks that have expired are ended.
    """
    scopes = list(dict.fromkeys(row.waiting_for_limit for row in waiting))
    seen = () if reread else waiting
    plan = plan_release(scopes, now, limit, usage=usage, released_too=True, seen=seen)
    _clear(plan, limit)
    return list(plan.rows)


def _release(plan: ReleasePlan, limit: int) -> list[uuid.UUID]:
    _clear(plan, limit)
    if plan.rows:
        claims.release_waiting(tables.tasks().filter(pk__in=list(plan.rows)), limit)
    for scope in plan.rows.values():
        share = limits_scopes.shared(scope)
        if share is not None:
            _turns().last_share[share[0]] = scope
    return [*plan.rows, *plan.late]


def _clear(plan: ReleasePlan, limit: int) -> None:
    """End expired tasks, and move tasks to the waitlist of another scope that refuses them."""
    if plan.late:
        endings.expire(tables.tasks().filter(pk__in=plan.late), limit)
    claims.change_waiting_limit(plan.elsewhere)


def select_round_robin(
    current: LimitConfig, queue: str, now: datetime, limit: int
) -> list[uuid.UUID] | None:
    """Select the due tasks of a queue whose tenants are served round-robin, and make the others
    wait.

    Return the ids of the tasks to claim, or None if no task waits and every due task may be
    claimed. Locks only the tasks that it makes wait.
    """
    shares = set(admission.waiting_shares(queue, limit, _turns().last_share.get(queue, "")))
    rates = {
        scope: rate for scope in current.wide(queue) if (rate := current.of(scope).rate) is not None
    }
    buckets, selected = waitlist.buckets(rates, now), list[uuid.UUID]()
    free = min(
        limits_scopes.whole(min(buckets[scope].tokens, rate.holds()))
        for scope, rate in rates.items()
    )
    for _ in range(_PASSES):
        due = admission.next_due([queue], now, AHEAD)
        if not shares and len(due) <= free:
            return None
        rows = tables.tasks().filter(pk__in=due).values_list("pk", "tenant_id", "waiting_for_limit")
        of = {
            task_id: (limits_scopes.scope_of_share(queue, tenant_id), waiting_for_limit)
            for task_id, tenant_id, waiting_for_limit in rows
        }
        selected = [
            task_id for task_id in due if task_id in of and of[task_id][0] == of[task_id][1]
        ]
        new = {
            task_id: share
            for task_id, (share, waiting_for_limit) in of.items()
            if share != waiting_for_limit
        }
        claims.make_due_wait(new, now)
        shares.update(new.values())
        if len(due) < AHEAD:
            break
    plan = plan_release(sorted(shares), now, limit, {queue: len(selected)})
    return selected + _release(plan, limit)


@dataclass(slots=True)
class ReleasePlan:
    """The result of a scan of waitlists, in round-robin order.

    ``rows`` maps the tasks to release to the scope they waited for. ``elsewhere`` maps tasks whose
    scope has capacity to another scope that has none. ``late`` are the tasks that have expired.
    ``wait_for_endings``: whether only the end of a run can free the capacity for the others.
    """

    rows: dict[uuid.UUID, str] = field(default_factory=dict)
    elsewhere: dict[uuid.UUID, str] = field(default_factory=dict)
    late: list[uuid.UUID] = field(default_factory=list)
    wait_for_endings: bool = False


def plan_release(
    scopes: Collection[str],
    now: datetime,
    limit: int,
    selected: Mapping[str, int] | None = None,
    *,
    usage: Usage | None = None,
    released_too: bool = False,
    seen: Sequence[WaitingTask] = (),
) -> ReleasePlan:
    """Return at most ``limit`` tasks that wait for these scopes and that their limits and queues
    admit now.

    ``selected`` is the number of tasks per queue that were selected but not claimed yet. If a queue
    is missing in it, its due tasks are counted instead. ``usage``: the usage, if the caller has
    counted it. ``released_too``: also tasks that were released and are not claimed yet. ``seen``:
    the first tasks of these waitlists, if the caller has read them.
    """
    current = limits_in_force()
    free = FreeCapacity(current, usage or waitlist.count_usage(), now, selected or {})
    free.open(scopes)
    waitlists = {
        scope: least
        for scope in free.order(scopes, _turns().last_share)
        if (least := free.least_of(scope)) is not None
    }
    most = max(1, 4 * limit // len(waitlists)) if waitlists else 0
    rows = waitlist.eligible(
        waitlists,
        lambda scope: min(limit, most, free.number(scope, limit)),
        free.takes,
        released_too=released_too,
        seen=seen,
        pages=_turns().pages,
    )
    late = {row.pk for row in rows if row.expires_at is not None and row.expires_at <= now}
    of: dict[Hashable, WaitingTask] = {row.pk: row for row in rows if row.pk not in late}
    free.bind(of.values())
    waiting: dict[str, list[AdmissionRequest]] = {scope: [] for scope in waitlists}
    for row in of.values():
        waiting[row.waiting_for_limit].append(free.request(row))
    chosen, elsewhere = limits_scopes.select_releasable(waiting, free.capacity, limit)
    # The first scope that refused a task, for which it can wait. A window is none of these: it has
    # capacity again soon.
    window = limits_scopes.scope_of_window("")
    blocked = {
        of[task_id].pk: lasting[0].partition(SEPARATOR)[0]
        for task_id, full in elsewhere.items()
        if (lasting := [scope for scope in full if not scope.startswith(window)])
    }
    return ReleasePlan(
        {of[task_id].pk: of[task_id].waiting_for_limit for task_id in chosen},
        blocked,
        list(late),
        not current.has_wide and all(free.only_endings_free(scope, waiting) for scope in scopes),
    )


def allowed(scope: str, current: LimitConfig) -> Allowance:
    """Return the allowance of a scope.

    If tasks declare different limits for a key, the most urgent waiting task decides.
    """
    common = current.common_limits(scope)
    if common is not None:
        return common
    name: Any = tables.tasks().waiting_for_scope(scope).values_list("name", flat=True).first()
    return current.among(scope, [] if name is None else [name])


# Raises the priority of tasks that have waited for PRIORITY_AGING seconds, so that urgent tasks do
# not starve them.
#
# Called by the maintenance job ``age_priorities``.


_HIGHEST = 9
_SCOPES = 500
"""At most this many scopes are processed per call; the next call continues after them."""


class AgingCursor(waitlist.ScopeCursor):
    """The scopes that the next run raises."""


def age(now: datetime, wait: float, limit: int) -> int:
    """Execute all ``steps``; return how many tasks were raised."""
    return sum(aging_steps(now, wait, limit))


def aging_steps(now: datetime, wait: float, limit: int) -> Iterator[int]:
    """Raise by one the priority of tasks that have been due or waiting for a limit for ``wait``
    seconds. Yield how many were raised after each transaction.

    Start it once per ``wait`` seconds. Each step raises at most ``limit`` due tasks of one priority
    of a queue, the oldest first, or at most ``limit`` waiting tasks of one priority. The next pass
    raises the others. ``priority_boost`` counts the raises. The number of steps grows with the
    number of queues with late tasks, so the caller may pause between two steps.
    """
    since = now - timedelta(seconds=wait)
    late = [queue for queue, head in heads().items() if head <= since]
    scopes = process_state.of(AgingCursor).next(_SCOPES)
    each = -(-limit // max(1, len(scopes)))
    # Start with the highest priority, so that a task that was just raised is not raised again.
    for priority in range(_HIGHEST - 1, -1, -1):
        level = tables.tasks().published_alone().filter(priority=priority)
        for queue in late:
            yield claims.age(level.filter(queue=queue, due_at__lte=since).order_by("due_at"), limit)
        if not scopes:
            continue
        # The oldest waiting tasks of each scope, of which at most ``limit`` are read.
        of_priority = tables.tasks().filter(priority=priority)
        oldest = [
            (of_priority.waiting_for_scope(scope).order_by("ready_at", "id"), each)
            for scope in scopes
        ]
        ids = [
            task_id
            for task_id, ready_at in tables.first_of_each(oldest, ("pk", "ready_at"))
            if ready_at is None or ready_at <= since
        ]
        yield claims.age(tables.tasks().filter(pk__in=ids), len(ids)) if ids else 0

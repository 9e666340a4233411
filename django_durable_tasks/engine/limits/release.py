"""Re-queues waiting tasks once their limit has capacity, round-robin over scopes.

The number of statements does not depend on the number of tasks. This module only makes tasks
eligible; the claim enforces the limit. An eligible task keeps the name of its scope until it is
claimed, so that the capacity that a heavy task waited for stays reserved for it. Called by the
thread of ``scheduler/releasing.py`` and by the claim.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django_durable_tasks import process_state
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.limits import admission, backpressure, usage, waitlist
from django_durable_tasks.engine.limits.config import LimitConfig, limits_in_force
from django_durable_tasks.engine.limits.usage import Usage
from django_durable_tasks.engine.limits.waitlist import WaitingTask
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.rules.limits import admission as limit_admission
from django_durable_tasks.rules.limits import options as rules
from django_durable_tasks.rules.limits.admission import AdmissionRequest, Capacity
from django_durable_tasks.rules.limits.options import Allowance

_WIDE_SHARE = 1_000_000_000
_PASSES, _AHEAD = 2, 2_000

_SEPARATOR = "\n"
"""Separates a scope from the index of an allowance, if tasks declare different limits for one key.
No scope contains a newline.
"""


class ReleaseTurns:
    """The round-robin position of this process: the next scopes, and the tenant share of each queue
    that was served last.
    """

    def __init__(self) -> None:
        self.scopes = waitlist.ScopeCursor()
        self.last_share: dict[str, str] = {}


def _turns() -> ReleaseTurns:
    return process_state.of(ReleaseTurns)


def release_waiting(now: datetime, limit: int) -> int:
    """Make waiting tasks eligible, round-robin over their scopes, as far as these have capacity;
    return how many.

    If no task waits, it executes one index probe.
    """
    scopes = _turns().scopes.next(limit)
    return len(_release(scopes, now, limit)) if scopes else 0


def _release(
    scopes: Sequence[str], now: datetime, limit: int, given: Mapping[str, int] | None = None
) -> list[uuid.UUID]:
    found = plan_release(scopes, now, limit, given)
    if found.late:
        transitions.expire(tables.tasks().filter(pk__in=found.late), limit)
    transitions.change_waiting_limit(found.elsewhere)
    if found.rows:
        transitions.release_waiting(tables.tasks().filter(pk__in=list(found.rows)), limit)
    for scope in found.rows.values():
        share = rules.shared(scope)
        if share is not None:
            _turns().last_share[share[0]] = scope
    return [*found.rows, *found.late]


def select_round_robin(
    current: LimitConfig, queue: str, now: datetime, limit: int
) -> list[uuid.UUID] | None:
    """Select the due tasks of a queue whose tenants are served round-robin, and make the others
    wait.

    Return the ids of the tasks to claim, or None if no task waits and every due task may be
    claimed. Locks only the tasks that it makes wait.
    """
    shares = set(admission.waiting_shares(queue, limit, _turns().last_share.get(queue, "")))
    free, given = _tokens(current, queue, now), list[uuid.UUID]()
    for _ in range(_PASSES):
        due = admission.next_due([queue], now, _AHEAD)
        if not shares and len(due) <= free:
            return None
        rows = tables.tasks().filter(pk__in=due).values_list("pk", "tenant_id", "waiting_for_limit")
        of = {
            task_id: (rules.of_share(queue, tenant_id), waiting_for_limit)
            for task_id, tenant_id, waiting_for_limit in rows
        }
        given = [task_id for task_id in due if task_id in of and of[task_id][0] == of[task_id][1]]
        new = {
            task_id: share
            for task_id, (share, waiting_for_limit) in of.items()
            if share != waiting_for_limit
        }
        transitions.make_due_wait(new, now)
        shares.update(new.values())
        if len(due) < _AHEAD:
            break
    return given + _release(sorted(shares), now, limit, {queue: len(given)})


def _tokens(current: LimitConfig, queue: str, now: datetime) -> int:
    rates = {
        scope: rate for scope in current.wide(queue) if (rate := current.of(scope).rate) is not None
    }
    found = usage.buckets(rates, now)
    return min(rules.whole(min(found[scope].tokens, rate.holds())) for scope, rate in rates.items())


@dataclass(slots=True)
class ReleasePlan:
    """The result of a scan of waitlists, in round-robin order.

    ``rows`` maps the tasks to release to the scope they waited for. ``elsewhere`` maps tasks whose
    scope has capacity to another scope that has none. ``late`` are the tasks that have expired.
    """

    rows: dict[uuid.UUID, str] = field(default_factory=dict)
    elsewhere: dict[uuid.UUID, str] = field(default_factory=dict)
    late: list[uuid.UUID] = field(default_factory=list)


def plan_release(
    scopes: Collection[str], now: datetime, limit: int, given: Mapping[str, int] | None = None
) -> ReleasePlan:
    """Return at most ``limit`` tasks that wait for these scopes and that their limits and queues
    admit now.

    ``given`` is the number of tasks per queue that were selected but not claimed yet. If a queue is
    missing in it, its due tasks are counted instead.
    """
    current, found = limits_in_force(), usage.count()
    free = _FreeCapacity(current, found, now, backpressure.paused_queues(), given or {})
    free.open(scopes)
    waitlists = {
        scope: tasks
        for scope in free.order(scopes)
        if (tasks := free.waitlist_of(scope)) is not None
    }
    most = max(1, 4 * limit // len(waitlists)) if waitlists else 0
    rows = waitlist.eligible(
        waitlists, lambda scope: min(limit, most, free.number(scope, limit)), free.takes
    )
    late = {row.pk for row in rows if row.expires_at is not None and row.expires_at <= now}
    of: dict[Hashable, WaitingTask] = {row.pk: row for row in rows if row.pk not in late}
    free.bind(of.values())
    waiting: dict[str, list[AdmissionRequest]] = {scope: [] for scope in waitlists}
    for row in of.values():
        waiting[row.waiting_for_limit].append(free.request(row))
    chosen, elsewhere = limit_admission.select_releasable(waiting, free.capacity, limit)
    blocked = {
        of[task_id].pk: scope
        for task_id, full in elsewhere.items()
        if (scope := _waiting_scope(full)) is not None
    }
    return ReleasePlan(
        {of[task_id].pk: of[task_id].waiting_for_limit for task_id in chosen}, blocked, list(late)
    )


def _waiting_scope(full: Sequence[str]) -> str | None:
    """Return the first scope for which a task can wait; not a window, which has capacity again
    soon.
    """
    return next(
        (
            scope.partition(_SEPARATOR)[0]
            for scope in full
            if not scope.startswith(rules.of_window(""))
        ),
        None,
    )


class _FreeCapacity:
    """The free capacity of the scopes in one round of release."""

    def __init__(
        self,
        current: LimitConfig,
        found: Usage,
        now: datetime,
        paused: Collection[str],
        given: Mapping[str, int],
    ) -> None:
        self._limit_config, self._found, self._now, self._paused, self._given = (
            current,
            found,
            now,
            paused,
            given,
        )
        self.capacity = Capacity()
        self._differing: list[Allowance] = []

    def open(self, scopes: Collection[str]) -> None:
        """Compute the free capacity of these scopes and of the queues whose tenants share them."""
        sharing: dict[str, set[int]] = {}
        for queue, tenant in filter(None, map(rules.shared, scopes)):
            sharing.setdefault(queue, set()).add(tenant)
        wide = {scope for queue in sharing for scope in self._limit_config.wide(queue)}
        allowed = {
            scope: self._limit_config.common_limits(scope)
            for scope in {*scopes, *wide}
            if rules.shared(scope) is None
        }
        self._allow({scope: one for scope, one in allowed.items() if one is not None})
        if sharing and self._limit_config.tenants:
            self._divide(sharing)

    def _allow(self, allowed: Mapping[str, Allowance], mark: str = "") -> None:
        usage.add_scopes(self.capacity, allowed, self._found, self._now, mark)

    def _divide(self, sharing: Mapping[str, set[int]]) -> None:
        """Divide the capacity of shared queues between their tenants; due tasks come first, or get
        half of the window.

        Due tasks may belong to tenants without waiting tasks. If only one tenant waits, it gets all
        of a limited queue. Half of a window is enough to keep every worker busy.
        """
        due = tables.tasks().due_alone(self._now)
        queries = {queue: due.filter(queue=queue) for queue in sharing if queue not in self._given}
        due_counts = Counter(
            row[0] for row in waitlist.first(queries, self._relevant_due, ("queue",))
        ) + Counter(self._given)
        for queue, tenants in sharing.items():
            number, wide, turns = (
                due_counts[queue],
                self._limit_config.wide(queue),
                self._limit_config.takes_turns(queue),
            )
            window = self._window(queue)
            self.capacity.places[rules.of_window(queue)] = (
                window // 2 if number and not turns else window
            )
            for scope in wide if turns else ():
                self._take(scope, number)
            only_tenant = len(tenants) == 1 and not number and bool(wide)
            all_tenants = self._found.tenants(queue) | tenants
            for tenant in tenants:
                scope = rules.of_share(queue, tenant)
                fair = admission.free_of_share(
                    (queue, tenant), self._limit_config, self._found, all_tenants
                )
                each = (
                    _WIDE_SHARE
                    if turns
                    else -(-self.capacity.places[rules.of_window(queue)] // len(tenants))
                )
                self.capacity.places[scope] = _WIDE_SHARE if only_tenant else min(fair, each)

    def _relevant_due(self, queue: str) -> int:
        """Return how many due tasks of a queue have to be read: more than the capacity are not
        needed.
        """
        left = [
            capacity
            for scope in self._limit_config.wide(queue)
            if (capacity := self.capacity.left(scope)) is not None
        ]
        return max(1, min([_AHEAD, *left])) if self._limit_config.takes_turns(queue) else 1

    def _take(self, scope: str, number: int) -> None:
        if scope in self.capacity.places:
            self.capacity.places[scope] -= number
        if scope in self.capacity.tokens:
            self.capacity.tokens[scope] = (
                min(self.capacity.tokens[scope], self.capacity.rates[scope].holds()) - number
            )

    def _window(self, queue: str) -> int:
        return max(0, backpressure.window_of(queue) - self._found.window(queue))

    def order(self, scopes: Collection[str]) -> list[str]:
        """Return the scopes in round-robin order."""
        queues = sorted(
            {share[0] for scope in scopes if (share := rules.shared(scope)) is not None}
        )
        shares = []
        for queue in queues:
            own = [scope for scope in scopes if (rules.shared(scope) or ("",))[0] == queue]
            shares += limit_admission.rotate_after(own, _turns().last_share.get(queue, ""))
        return [*(scope for scope in scopes if rules.shared(scope) is None), *shares]

    def number(self, scope: str, limit: int) -> int:
        """Return how many tasks of weight 1 a scope admits; ``limit`` if the scope is
        not limited.
        """
        capacity = self.capacity.left(scope)
        return limit if capacity is None else capacity

    def waitlist_of(self, scope: str) -> TaskQuerySet | None:
        """Return the waiting tasks of a scope that may be released now, or None if it has no
        capacity.
        """
        if self.number(scope, 1) <= 0 or (rules.shared(scope) or ("",))[0] in self._paused:
            return None
        waiting, share = tables.tasks().waiting_for_scope(scope), rules.shared(scope)
        return (
            waiting
            if share is None or self._window(share[0])
            else waiting.filter(priority__gte=waitlist.URGENT)
        )

    def takes(self, row: WaitingTask) -> bool:
        """Return whether the task's queue admits it now and its weight does not exceed the whole
        limit.
        """
        if row.queue in self._paused or (
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
            self.capacity.places.setdefault(rules.of_window(row.queue), self._window(row.queue))
            for scope in (row.waiting_for_limit, *self._narrow(row)):
                marked = self._marked(scope, row.name)
                if marked not in self.capacity.known and rules.shared(scope) is None:
                    mark = marked.removeprefix(scope)
                    new.setdefault(mark, {})[scope] = self._limit_config.among(scope, [row.name])
        for mark, allowed in new.items():
            self._allow(allowed, mark)

    def request(self, row: WaitingTask) -> AdmissionRequest:
        """Return the task with all scopes whose capacity it uses when it is released."""
        wide = (
            self._limit_config.wide(row.queue)
            if rules.shared(row.waiting_for_limit) is not None
            else []
        )
        others = [
            self._marked(scope, row.name)
            for scope in self._narrow(row)
            if scope != row.waiting_for_limit
        ]
        others += [] if row.priority >= waitlist.URGENT else [rules.of_window(row.queue)]
        return waitlist.admission_request(
            row.pk,
            [self._marked(row.waiting_for_limit, row.name), *wide],
            row.weight,
            row.priority,
            others,
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
        return f"{scope}{_SEPARATOR}{self._differing.index(allowed)}"


def allowed(scope: str, current: LimitConfig) -> Allowance:
    """Return the allowance of a scope.

    If tasks declare different limits for a key, the most urgent waiting task decides.
    """
    common = current.common_limits(scope)
    if common is not None:
        return common
    name: Any = tables.tasks().waiting_for_scope(scope).values_list("name", flat=True).first()
    return current.among(scope, [] if name is None else [name])

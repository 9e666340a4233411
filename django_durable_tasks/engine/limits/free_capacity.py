"""Computes the free capacity of scopes for one round of release, and which waiting tasks it may
admit.

Called by ``release``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.limits import backpressure, usage, waitlist
from django_durable_tasks.engine.limits.config import LimitConfig
from django_durable_tasks.engine.limits.shares import free_of_share
from django_durable_tasks.engine.limits.usage import Usage
from django_durable_tasks.engine.limits.waitlist import WaitingTask
from django_durable_tasks.rules.limits import admission as limit_admission
from django_durable_tasks.rules.limits import options as rules
from django_durable_tasks.rules.limits.admission import AdmissionRequest, Capacity
from django_durable_tasks.rules.limits.options import Allowance

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
        self, current: LimitConfig, found: Usage, now: datetime, given: Mapping[str, int]
    ) -> None:
        self._limit_config, self._found, self._now, self._given = current, found, now, given
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
                fair = free_of_share((queue, tenant), self._limit_config, self._found, all_tenants)
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
        return max(1, min([AHEAD, *left])) if self._limit_config.takes_turns(queue) else 1

    def _take(self, scope: str, number: int) -> None:
        if scope in self.capacity.places:
            self.capacity.places[scope] -= number
        if scope in self.capacity.tokens:
            self.capacity.tokens[scope] = (
                min(self.capacity.tokens[scope], self.capacity.rates[scope].holds()) - number
            )

    def _is_closed(self, queue: str) -> bool:
        """Return whether the queue is paused, or has no worker that could start its tasks while
        those of other queues wait for the same limits.
        """
        return queue in self._found.paused or backpressure.is_left_out(queue)

    def _window(self, queue: str) -> int:
        return max(0, backpressure.window_of(queue) - self._found.window(queue))

    def order(self, scopes: Collection[str], last_share: Mapping[str, str]) -> list[str]:
        """Return the scopes in round-robin order. ``last_share``: the share of each queue that was
        served last.
        """
        queues = sorted(
            {share[0] for scope in scopes if (share := rules.shared(scope)) is not None}
        )
        shares = []
        for queue in queues:
            own = [scope for scope in scopes if (rules.shared(scope) or ("",))[0] == queue]
            shares += limit_admission.rotate_after(own, last_share.get(queue, ""))
        return [*(scope for scope in scopes if rules.shared(scope) is None), *shares]

    def number(self, scope: str, limit: int) -> int:
        """Return how many tasks of weight 1 a scope admits; ``limit`` if the scope is
        not limited.
        """
        capacity = self.capacity.left(scope)
        return limit if capacity is None else capacity

    def only_endings_free(
        self, scope: str, waiting: Mapping[str, Sequence[AdmissionRequest]]
    ) -> bool:
        """Return whether a concurrency limit without capacity is all that its tasks wait for.

        ``waiting``: the tasks of each scope that their queues admit.
        """
        rows = waiting.get(scope, ())
        limited = rows[0].scopes[0] if rows else scope
        left = None if limited in self.capacity.tokens else self.capacity.left(limited)
        return (
            left is not None
            and rules.shared(scope) is None
            and left < (rows[0].weight if rows else 1)
        )

    def least_of(self, scope: str) -> int | None:
        """Return the lowest priority of the waiting tasks of a scope that may be released now, or
        None if it has no capacity.
        """
        share = rules.shared(scope)
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
            (row.priority, row.ready_at),
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
        return f"{scope}{SEPARATOR}{self._differing.index(allowed)}"

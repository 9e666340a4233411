"""Re-queues tasks that wait for a limit once it has capacity, round-robin over scopes, in a
constant number of statements.

This only makes tasks eligible. The claim enforces the limit. An eligible task keeps the name of its
scope until it is claimed, so that capacity for a heavy task stays reserved and the round-robin
order is kept.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.limits import admission, backpressure, waitlist
from django_durable_tasks.engine.limits import usage as holding
from django_durable_tasks.engine.limits.config import Book, book
from django_durable_tasks.engine.limits.usage import Holders
from django_durable_tasks.engine.limits.waitlist import Waiting
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.rules.limits import admission as limit_admission
from django_durable_tasks.rules.limits import options as rules
from django_durable_tasks.rules.limits.admission import Asking, Room
from django_durable_tasks.rules.limits.options import Allowance

_WIDE_SHARE = 1_000_000_000
_PASSES, _AHEAD = 2, 2_000

_walk = waitlist.Walk()
_MARK = "\n"
"""Separates a scope from the number of its limits, if tasks have different limits for a key. No
scope contains it.
"""
_last_turn: dict[str, str] = {}
"""The tenant share of each queue that this process served last."""


def let_go(now: datetime, limit: int) -> int:
    """Make waiting tasks eligible, round-robin over scopes, as far as these have capacity; return
    how many.

    Called in every dispatch round. Costs one probe if no task waits.
    """
    scopes = _walk.next(limit)
    return len(_let_go(scopes, now, limit)) if scopes else 0


def _let_go(
    scopes: Sequence[str], now: datetime, limit: int, given: Mapping[str, int] | None = None
) -> list[uuid.UUID]:
    found = going(scopes, now, limit, given)
    if found.late:
        transitions.expire(tables.tasks().filter(pk__in=found.late), limit)
    transitions.park_elsewhere(found.elsewhere)
    if found.rows:
        transitions.let_go(tables.tasks().filter(pk__in=list(found.rows)), limit)
    for scope in found.rows.values():
        share = rules.shared(scope)
        if share is not None:
            _last_turn[share[0]] = scope
    return [*found.rows, *found.late]


def line_up(current: Book, queue: str, now: datetime, limit: int) -> list[uuid.UUID] | None:
    """If tenants are served round-robin: set due tasks to wait for their share, and return the
    tasks whose turn it is.

    Returns None if no task waits and all due tasks may run. Locks only the rows that it changes.
    """
    shares = set(admission.shares_in_line(queue, limit, _last_turn.get(queue, "")))
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
        transitions.park_due(new, now)
        shares.update(new.values())
        if len(due) < _AHEAD:
            break
    return given + _let_go(sorted(shares), now, limit, {queue: len(given)})


def _tokens(current: Book, queue: str, now: datetime) -> int:
    rates = {
        scope: rate for scope in current.wide(queue) if (rate := current.of(scope).rate) is not None
    }
    found = holding.buckets(rates, now)
    return min(rules.whole(min(found[scope].tokens, rate.holds())) for scope, rate in rates.items())


@dataclass(slots=True)
class Going:
    """Tasks that may run, with the scope they waited for, in their order. ``late`` have expired.

    ``elsewhere`` are tasks whose scope has capacity but another limit has none, with that limit.
    """

    rows: dict[uuid.UUID, str] = field(default_factory=dict)
    elsewhere: dict[uuid.UUID, str] = field(default_factory=dict)
    late: list[uuid.UUID] = field(default_factory=list)


def going(
    scopes: Collection[str], now: datetime, limit: int, given: Mapping[str, int] | None = None
) -> Going:
    """Return at most ``limit`` tasks of these waitlists for which there is capacity and a queue.

    ``given`` is the number of tasks per queue that are eligible and not claimed. For other queues
    all due tasks count as eligible.
    """
    current, found = book(), holding.holders()
    judge = _Judge(current, found, now, backpressure.paused_queues(), given or {})
    judge.open(scopes)
    asked = {
        scope: line for scope in judge.order(scopes) if (line := judge.line(scope)) is not None
    }
    most = max(1, 4 * limit // len(asked)) if asked else 0
    rows = waitlist.able(
        asked, lambda scope: min(limit, most, judge.number(scope, limit)), judge.takes
    )
    late = {row.pk for row in rows if row.expires_at is not None and row.expires_at <= now}
    of: dict[Hashable, Waiting] = {row.pk: row for row in rows if row.pk not in late}
    judge.bind(of.values())
    waiting: dict[str, list[Asking]] = {scope: [] for scope in asked}
    for row in of.values():
        waiting[row.waiting_for_limit].append(judge.asking(row))
    chosen, elsewhere = limit_admission.going(waiting, judge.room, limit)
    held_up = {
        of[task_id].pk: scope
        for task_id, full in elsewhere.items()
        if (scope := _named(full)) is not None
    }
    return Going(
        {of[task_id].pk: of[task_id].waiting_for_limit for task_id in chosen}, held_up, list(late)
    )


def _named(full: Sequence[str]) -> str | None:
    """Return the first of these scopes for which a task may wait. The window of a queue is not one,
    because its capacity returns at once.
    """
    return next(
        (scope.partition(_MARK)[0] for scope in full if not scope.startswith(rules.of_window(""))),
        None,
    )


class _Judge:
    """The capacity in one round of releases."""

    def __init__(
        self,
        current: Book,
        found: Holders,
        now: datetime,
        paused: Collection[str],
        given: Mapping[str, int],
    ) -> None:
        self._book, self._found, self._now, self._paused, self._given = (
            current,
            found,
            now,
            paused,
            given,
        )
        self.room = Room()
        self._differing: list[Allowance] = []

    def open(self, scopes: Collection[str]) -> None:
        """Read the capacity of these scopes and of queues with several tenants."""
        sharing: dict[str, set[int]] = {}
        for queue, tenant in filter(None, map(rules.shared, scopes)):
            sharing.setdefault(queue, set()).add(tenant)
        wide = {scope for queue in sharing for scope in self._book.wide(queue)}
        allowed = {
            scope: self._book.by_anybody(scope)
            for scope in {*scopes, *wide}
            if rules.shared(scope) is None
        }
        self._allow({scope: one for scope, one in allowed.items() if one is not None})
        if sharing and self._book.tenants:
            self._part(sharing)

    def _allow(self, allowed: Mapping[str, Allowance], mark: str = "") -> None:
        rates = {scope: one.rate for scope, one in allowed.items() if one.rate is not None}
        self.room.rates |= {scope + mark: rate for scope, rate in rates.items()}
        fresh = holding.buckets(rates, self._now)
        self.room.tokens |= {scope + mark: bucket.tokens for scope, bucket in fresh.items()}
        for scope, one in allowed.items():
            self.room.known.add(scope + mark)
            if one.places is not None:
                self.room.places[scope + mark] = one.places - self._found.under_way[scope]
            if one.heaviest is not None:
                self.room.heaviest[scope + mark] = one.heaviest

    def _part(self, sharing: Mapping[str, set[int]]) -> None:
        """Divide the capacity of shared queues. Due tasks are served first, or have half of the
        window.

        The due tasks may belong to tenants without waiting tasks. A single waiting tenant has the
        whole capacity of a limited queue. Of a window, half is enough to keep every worker busy.
        """
        due = tables.tasks().due(self._now).order_by()
        asked = {queue: due.filter(queue=queue) for queue in sharing if queue not in self._given}
        there = Counter(row[0] for row in waitlist.first(asked, self._turns, ("queue",))) + Counter(
            self._given
        )
        for queue, tenants in sharing.items():
            number, wide, turns = (
                there[queue],
                self._book.wide(queue),
                self._book.takes_turns(queue),
            )
            window = self._window(queue)
            self.room.places[rules.of_window(queue)] = (
                window // 2 if number and not turns else window
            )
            for scope in wide if turns else ():
                self._take(scope, number)
            alone = len(tenants) == 1 and not number and bool(wide)
            everybody = self._found.tenants(queue) | tenants
            for tenant in tenants:
                scope = rules.of_share(queue, tenant)
                fair = admission.free_of_share((queue, tenant), self._book, self._found, everybody)
                each = (
                    _WIDE_SHARE
                    if turns
                    else -(-self.room.places[rules.of_window(queue)] // len(tenants))
                )
                self.room.places[scope] = _WIDE_SHARE if alone else min(fair, each)

    def _turns(self, queue: str) -> int:
        """Return how many due tasks of a queue have to be counted."""
        left = [
            room for scope in self._book.wide(queue) if (room := self.room.left(scope)) is not None
        ]
        return max(1, min([_AHEAD, *left])) if self._book.takes_turns(queue) else 1

    def _take(self, scope: str, number: int) -> None:
        if scope in self.room.places:
            self.room.places[scope] -= number
        if scope in self.room.tokens:
            self.room.tokens[scope] = (
                min(self.room.tokens[scope], self.room.rates[scope].holds()) - number
            )

    def _window(self, queue: str) -> int:
        return max(0, backpressure.window_of(queue) - self._found.window(queue))

    def order(self, scopes: Collection[str]) -> list[str]:
        """Return the scopes in the round-robin order."""
        queues = sorted(
            {share[0] for scope in scopes if (share := rules.shared(scope)) is not None}
        )
        shares = []
        for queue in queues:
            mine = [scope for scope in scopes if (rules.shared(scope) or ("",))[0] == queue]
            shares += limit_admission.from_turn(mine, _last_turn.get(queue, ""))
        return [*(scope for scope in scopes if rules.shared(scope) is None), *shares]

    def number(self, scope: str, limit: int) -> int:
        """Return for how many tasks of weight 1 a scope has capacity; ``limit`` if it has no
        limit.
        """
        room = self.room.left(scope)
        return limit if room is None else room

    def line(self, scope: str) -> TaskQuerySet | None:
        """Return the query of a waitlist's tasks that a queue can accept; None if there is no
        capacity.
        """
        if self.number(scope, 1) <= 0 or (rules.shared(scope) or ("",))[0] in self._paused:
            return None
        parked, share = tables.tasks().parked_for(scope), rules.shared(scope)
        return (
            parked
            if share is None or self._window(share[0])
            else parked.filter(priority__gte=waitlist.URGENT)
        )

    def takes(self, row: Waiting) -> bool:
        """Return whether the task's queue accepts it and its weight does not exceed the limit it
        waits for.
        """
        if row.queue in self._paused or (
            row.priority < waitlist.URGENT and not self._window(row.queue)
        ):
            return False
        heaviest = self._book.among(row.waiting_for_limit, [row.name]).heaviest
        return heaviest is None or row.weight <= heaviest

    def bind(self, rows: Iterable[Waiting]) -> None:
        """Read the capacity of all limits of these tasks: one query, and one per differing limit of
        a key.

        So the limits of one task do not affect others on the same waitlist.
        """
        new: dict[str, dict[str, Allowance]] = {}
        for row in rows:
            self.room.places.setdefault(rules.of_window(row.queue), self._window(row.queue))
            for scope in (row.waiting_for_limit, *self._narrow(row)):
                marked = self._marked(scope, row.name)
                if marked not in self.room.known and rules.shared(scope) is None:
                    mark = marked.removeprefix(scope)
                    new.setdefault(mark, {})[scope] = self._book.among(scope, [row.name])
        for mark, allowed in new.items():
            self._allow(allowed, mark)

    def asking(self, row: Waiting) -> Asking:
        """Return the task with all capacity that it uses when it is released."""
        wide = self._book.wide(row.queue) if rules.shared(row.waiting_for_limit) is not None else []
        others = [
            self._marked(scope, row.name)
            for scope in self._narrow(row)
            if scope != row.waiting_for_limit
        ]
        others += [] if row.priority >= waitlist.URGENT else [rules.of_window(row.queue)]
        return waitlist.asking(
            row.pk,
            [self._marked(row.waiting_for_limit, row.name), *wide],
            row.weight,
            row.priority,
            others,
        )

    def _narrow(self, row: Waiting) -> list[str]:
        return self._book.narrow(row.name, row.tenant_id, row.limit_key)

    def _marked(self, scope: str, name: str) -> str:
        """Return the scope, with a number if tasks have different limits for this key."""
        if self._book.by_anybody(scope) is not None:
            return scope
        allowed = self._book.among(scope, [name])
        if allowed not in self._differing:
            self._differing.append(allowed)
        return f"{scope}{_MARK}{self._differing.index(allowed)}"


def allowed(scope: str, current: Book) -> Allowance:
    """Return the limits of a scope. If tasks have different limits for a key, those of its most
    urgent waiting task.
    """
    known = current.by_anybody(scope)
    if known is not None:
        return known
    name: Any = tables.tasks().parked_for(scope).values_list("name", flat=True).first()
    return current.among(scope, [] if name is None else [name])

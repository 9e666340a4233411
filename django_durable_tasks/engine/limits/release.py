"""Re-queue parked tasks once their limit has capacity, round-robin over scopes, in a constant
number of statements.

This only makes tasks eligible; the claim enforces the limit. A task that was made eligible keeps
the name of its scope until it is claimed, so that capacity that a heavy task waited for stays
reserved for it, and a tenant's turn counts.
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
"""No scope has one: what follows tells apart what tasks allow that differ over a key."""
_last_turn: dict[str, str] = {}
"""Of each queue, the share whose turn this process gave last; each scheduler goes its own way
around.
"""


def let_go(now: datetime, limit: int) -> int:
    """Let parked rows go on, by turns of their scopes, as many as these have room for; return how
    many went.

    To be called on every dispatching round: one probe where nothing is parked.
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
    """Where tenants take turns: park what is due and has not got its turn, and return the rows
    whose turn it is.

    None where nobody waits and all that is due may go. It holds no lock but that of the rows it
    parks.
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
    """Rows that may go, each with the scope it waited for, in their order; and those that came too
    late.

    ``elsewhere``: rows for which that scope has room and another has none, with the other.
    """

    rows: dict[uuid.UUID, str] = field(default_factory=dict)
    elsewhere: dict[uuid.UUID, str] = field(default_factory=dict)
    late: list[uuid.UUID] = field(default_factory=list)


def going(
    scopes: Collection[str], now: datetime, limit: int, given: Mapping[str, int] | None = None
) -> Going:
    """Return at most so many rows parked for these scopes that have room, and whose queues take
    them.

    ``given``: how many turns were given in a queue and not taken yet; else all that is due there
    counts as such.
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
    """Return the first of these scopes in which a row may wait: not a window, whose room comes back
    at once.
    """
    return next(
        (scope.partition(_MARK)[0] for scope in full if not scope.startswith(rules.of_window(""))),
        None,
    )


class _Judge:
    """What has room in one round of letting go."""

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
        """Find out what these scopes, and the queues that are shared, have room for."""
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
        """Part the room of shared queues: what is due there goes first, or has half of the window.

        For these may be rows of tenants of whom nobody has heard yet. A tenant for whom nobody else
        waits has all places of a limited queue; of a window half is enough to keep every worker
        busy.
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
        """Return how many due rows of a queue it matters to see."""
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
        """Return the scopes in the order in which they have their turns."""
        queues = sorted(
            {share[0] for scope in scopes if (share := rules.shared(scope)) is not None}
        )
        shares = []
        for queue in queues:
            mine = [scope for scope in scopes if (rules.shared(scope) or ("",))[0] == queue]
            shares += limit_admission.from_turn(mine, _last_turn.get(queue, ""))
        return [*(scope for scope in scopes if rules.shared(scope) is None), *shares]

    def number(self, scope: str, limit: int) -> int:
        """Return how many rows of weight 1 a scope has room for; as many as are asked for where it
        does not say.
        """
        room = self.room.left(scope)
        return limit if room is None else room

    def line(self, scope: str) -> TaskQuerySet | None:
        """Return the rows of a scope's line that some queue takes now; None where none can go."""
        if self.number(scope, 1) <= 0 or (rules.shared(scope) or ("",))[0] in self._paused:
            return None
        parked, share = tables.tasks().parked_for(scope), rules.shared(scope)
        return (
            parked
            if share is None or self._window(share[0])
            else parked.filter(priority__gte=waitlist.URGENT)
        )

    def takes(self, row: Waiting) -> bool:
        """Return whether the row's queue takes it now, and it is not heavier than the whole limit
        it waits for.
        """
        if row.queue in self._paused or (
            row.priority < waitlist.URGENT and not self._window(row.queue)
        ):
            return False
        heaviest = self._book.among(row.waiting_for_limit, [row.name]).heaviest
        return heaviest is None or row.weight <= heaviest

    def bind(self, rows: Iterable[Waiting]) -> None:
        """Find out what all the limits of these rows have room for: a question, and one for each
        key tasks differ on.

        So what one task allows says nothing of another's rows in the same line.
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
        """Return the row with all that it takes room of when it is let go."""
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
        """Return the scope, where tasks differ over a key marked with what this task allows."""
        if self._book.by_anybody(scope) is not None:
            return scope
        allowed = self._book.among(scope, [name])
        if allowed not in self._differing:
            self._differing.append(allowed)
        return f"{scope}{_MARK}{self._differing.index(allowed)}"


def allowed(scope: str, current: Book) -> Allowance:
    """Return what a scope allows; of a key over which tasks differ its most urgent parked task says
    it.
    """
    known = current.by_anybody(scope)
    if known is not None:
        return known
    name: Any = tables.tasks().parked_for(scope).values_list("name", flat=True).first()
    return current.among(scope, [] if name is None else [name])

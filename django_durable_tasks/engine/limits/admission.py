"""Enforces concurrency and rate limits during a claim. A task without capacity waits for the scope
that refused it.

One transaction claims the tasks, counts the usage and sets the refused tasks to wait. If a limit
other than a tenant's fair share can refuse, the transaction first locks the one row of all limits.
So limited claims of all nodes are serial, and each counts what the others have committed (READ
COMMITTED). While it has this lock it does not wait for task rows: locked ones are left out. A claim
without limits takes no lock.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.limits import backpressure, waitlist
from django_durable_tasks.engine.limits import usage as holding
from django_durable_tasks.engine.limits.config import Book
from django_durable_tasks.engine.limits.usage import Holders
from django_durable_tasks.engine.transitions import ClaimedTask
from django_durable_tasks.models import LimitBucket
from django_durable_tasks.rules.limits import admission
from django_durable_tasks.rules.limits import options as rules
from django_durable_tasks.rules.limits.admission import Asking, Room
from django_durable_tasks.rules.limits.options import Allowance, Bucket
from django_durable_tasks.rules.tasks.demands import Demand

_COLUMNS = (
    "pk",
    "name",
    "queue",
    "tenant_id",
    "limit_key",
    "weight",
    "priority",
    "waiting_for_limit",
)


@dataclass(frozen=True, slots=True)
class _Bound:
    """A task that requests admission, with the scopes that may refuse it and the fair share of its
    tenant, if there are several tenants.
    """

    task_id: uuid.UUID
    name: str
    queue: str
    tenant_id: int
    limit_key: str | None
    asking: Asking
    share: str | None
    has_its_turn: bool

    @property
    def scopes(self) -> Sequence[str]:
        """The scopes that may refuse the task."""
        return self.asking.scopes


class Gate:
    """The admission of one claim, inside its transaction. Used for claims of queues and of single
    tasks.
    """

    def __init__(self, book: Book, queues: Iterable[str] = ()) -> None:
        self._book = book
        self._wide = {scope for queue in queues for scope in book.wide(queue)}
        self._room, self._buckets = Room(), dict[str, Bucket]()
        self._holders: Holders | None = None
        self._now: datetime | None = None
        self._lined: dict[str, bool] = {}
        self._headed: set[str] = set()
        self._paused: frozenset[str] | None = None
        if self._wide:
            self._look(())
            self._open({scope: book.of(scope) for scope in sorted(self._wide)})
            self._put_ahead(self._wide)

    def free(self, asked: Sequence[Demand], limit: int) -> tuple[list[Demand], int]:
        """Return these demands, and the joint limit, reduced to the capacity of queue-wide and
        global limits.
        """
        parts = [
            one._replace(limit=self._at_most(one.limit, rules.of_queue(one.queue))) for one in asked
        ]
        return [one for one in parts if one.limit > 0], self._at_most(limit, rules.GLOBAL)

    def _at_most(self, number: int, scope: str) -> int:
        left = self._room.left(scope) if scope in self._wide else None
        return number if left is None else max(0, min(number, left))

    def let_in(self, claimed: Sequence[ClaimedTask]) -> list[ClaimedTask]:
        """Return the claimed tasks that fit, in their order. The others are set to wait for their
        limit.
        """
        if not self._book.may_bind({(task.name, task.queue) for task in claimed}):
            return list(claimed)
        before = {task.id: task.waiting_for_limit for task in claimed}
        bound = self._bound(list(before), before)
        refused = self._refused([bound[task.id] for task in claimed])
        transitions.park_claimed(refused)
        return [task for task in claimed if task.id not in refused]

    def admit(self, ids: Sequence[uuid.UUID], now: datetime) -> list[uuid.UUID]:
        """Return the due tasks that fit, in their order. The others are set to wait for their
        limit, without a claim.
        """
        bound = self._bound(ids)
        refused = self._refused(
            [bound[task_id] for task_id in ids if task_id in bound], claimed=False
        )
        transitions.park_due(refused, now)
        return [task_id for task_id in ids if task_id in bound and task_id not in refused]

    def clear_heads(self, queues: Sequence[str], now: datetime, limit: int) -> int:
        """Set the next due tasks that would be refused as well to wait, so that the next claim sees
        the tasks behind them.
        """
        full = {
            row.task_id: scope
            for row in self._bound(next_due(queues, now, limit)).values()
            for scope in row.scopes
            if scope not in self._wide and self._room.refuses(scope, row.asking)
        }
        return transitions.park_due(full, now)

    def close(self) -> None:
        """Write the tokens that were used."""
        rows = [
            LimitBucket(
                scope=scope, tokens=self._room.tokens[scope], refilled_at=self._buckets[scope].at
            )
            for scope in sorted(self._room.spent)
        ]
        if rows:
            holding.write(rows)

    def _refused(
        self, candidates: Sequence[_Bound], *, claimed: bool = True
    ) -> dict[uuid.UUID, str]:
        """Decide on these tasks in their order; return the scope that each refused one has to wait
        for.
        """
        if not any(row.scopes for row in candidates):
            return {}
        self._look(candidates if claimed else (), strict=_strict(candidates))
        self._open(self._allowed(candidates), candidates)
        self._put_ahead({scope for row in candidates for scope in row.scopes})
        refused = {
            row.task_id: row.share
            for row in candidates
            if row.share is not None and self._waits_behind(row)
        }
        answers = admission.admitted(
            [row.asking for row in candidates if row.task_id not in refused], self._room
        )
        return refused | {
            row.task_id: self._line(row, answers[row.task_id])
            for row in candidates
            if row.task_id in answers
        }

    def _line(self, row: _Bound, scope: str) -> str:
        """Return the scope that a refused task waits for: its tenant's share if tenants are served
        round-robin, else the scope that refused it.
        """
        if (
            row.share is not None
            and scope in self._book.wide(row.queue)
            and self._book.takes_turns(row.queue)
        ):
            return row.share
        return scope

    def _waits_behind(self, row: _Bound) -> bool:
        """Whether tenants are served round-robin in the task's queue, others wait there, and it is
        not this tenant's turn.
        """
        if row.has_its_turn or not self._book.takes_turns(row.queue):
            return False
        if row.queue not in self._lined:
            self._lined[row.queue] = bool(shares_in_line(row.queue, 10))
        return self._lined[row.queue]

    def _bound(
        self, ids: Sequence[uuid.UUID], marks: Mapping[uuid.UUID, str | None] | None = None
    ) -> dict[uuid.UUID, _Bound]:
        """Return these tasks as candidates. ``marks`` contains the scopes they waited for before
        the claim.
        """
        rows, book, found = tables.tasks().filter(pk__in=ids).values_list(*_COLUMNS), self._book, {}
        for task_id, name, queue, tenant_id, key, weight, priority, waiting_for_limit in rows:
            scopes = [*book.wide(queue), *book.narrow(name, tenant_id, key)]
            share = rules.of_share(queue, tenant_id) if book.tenants else None
            turn = share is not None and share == (
                waiting_for_limit if marks is None else marks.get(task_id)
            )
            if share is not None and not turn:
                scopes.append(share)
            asking = waitlist.asking(task_id, scopes, weight, priority)
            found[task_id] = _Bound(task_id, name, queue, tenant_id, key, asking, share, turn)
        return found

    def _allowed(self, candidates: Iterable[_Bound]) -> dict[str, Allowance]:
        """Return the limits of the scopes of these tasks; the strictest if tasks differ."""
        names: dict[str, set[str]] = {}
        for row in candidates:
            for scope in row.scopes:
                names.setdefault(scope, set()).add(row.name)
        return {scope: self._book.among(scope, names[scope]) for scope in sorted(names)}

    def _look(self, own: Sequence[_Bound], *, strict: bool = True) -> None:
        """Count the usage once, without these tasks. If a limit other than a share can refuse,
        count it under the lock.
        """
        if self._holders is not None and (self._now is not None or not strict):
            return
        if strict:
            holding.hold_lock()
            self._now = database_now()
        found = holding.holders(running=strict)
        for row in own:
            found.leave_out(row.name, row.queue, row.tenant_id, row.limit_key, row.asking.weight)
        self._holders = found

    def _open(self, scopes: Mapping[str, Allowance], own: Sequence[_Bound] = ()) -> None:
        """Read the free capacity of these scopes unless it is known."""
        new = {scope: allowed for scope, allowed in scopes.items() if scope not in self._room.known}
        self._room.known |= new.keys()
        rates = {scope: allowed.rate for scope, allowed in new.items() if allowed.rate is not None}
        if self._now is not None and rates:
            fresh = holding.buckets(rates, self._now)
            self._buckets |= fresh
            self._room.rates |= rates
            self._room.tokens |= {scope: bucket.tokens for scope, bucket in fresh.items()}
        found = self._holders
        if found is None:
            return
        owners: dict[str, set[int]] = {}
        for row in own:
            owners.setdefault(row.queue, set()).add(row.tenant_id)
        for scope, allowed in new.items():
            share = rules.shared(scope)
            if share is not None:
                everybody = found.tenants(share[0]) | owners.get(share[0], set())
                self._room.places[scope] = free_of_share(share, self._book, found, everybody)
            elif allowed.places is not None:
                self._room.places[scope] = allowed.places - found.under_way[scope]
            if allowed.heaviest is not None:
                self._room.heaviest[scope] = allowed.heaviest

    def _put_ahead(self, scopes: Collection[str]) -> None:
        """Reserve capacity for the next heavy task of each scope, so that lighter ones do not use
        it.

        Not for a task that could not run anyway: its queue is paused or its window full, or another
        limit refuses it.
        """
        new = sorted(
            scope for scope in scopes if scope not in self._headed and rules.shared(scope) is None
        )
        self._headed.update(new)
        if self._now is None or not new:
            return
        asked = {scope: tables.tasks().in_line_for(scope) for scope in new}
        for row in {
            row.waiting_for_limit: row
            for row in reversed(waitlist.able(asked, lambda _: 1, self._could_go))
        }.values():
            if row.weight == 1:
                continue
            others = [
                *self._book.wide(row.queue),
                *self._book.narrow(row.name, row.tenant_id, row.limit_key),
            ]
            self._open({scope: self._book.among(scope, [row.name]) for scope in others})
            asking = waitlist.asking(row.pk, others, row.weight, row.priority)
            if not any(
                self._room.refuses(scope, asking)
                for scope in others
                if scope != row.waiting_for_limit
            ):
                self._room.ahead[row.waiting_for_limit] = asking

    def _could_go(self, row: waitlist.Waiting) -> bool:
        """Return whether the task has not expired, its queue has capacity, and its weight does not
        exceed the limit.
        """
        if row.expires_at is not None and self._now is not None and row.expires_at <= self._now:
            return False
        if row.weight > self._room.heaviest.get(row.waiting_for_limit, row.weight):
            return False
        if self._paused is None:
            self._paused = backpressure.paused_queues()
        full = self._holders is not None and self._holders.window(
            row.queue
        ) >= backpressure.window_of(row.queue)
        return row.queue not in self._paused and (not full or row.priority >= waitlist.URGENT)


def _strict(candidates: Iterable[_Bound]) -> bool:
    return any(rules.shared(scope) is None for row in candidates for scope in row.scopes)


def next_due(queues: Sequence[str], now: datetime, limit: int) -> list[uuid.UUID]:
    """Return at most ``limit`` due tasks of these queues, an equal part of each, the most urgent
    first.
    """
    due, part = tables.tasks().due(now).order_by("due_at"), max(1, limit // len(queues))
    # One short index scan per priority. A single ORDER BY would sort all due tasks.
    scans = [
        (due.filter(queue=queue, priority=level), part)
        for queue in queues
        for level in range(9, -1, -1)
    ]
    rows = tables.first_of_each(scans, ("pk", "priority", "due_at"))
    return [row[0] for row in sorted(rows, key=lambda row: (-row[1], row[2]))[:limit]]


def shares_in_line(queue: str, most: int, past: str = "") -> list[str]:
    """Return at most ``most`` tenant shares of a queue for which tasks wait, those after ``past``
    first.
    """
    found: list[str] = []
    for start in dict.fromkeys((past or rules.before_shares(queue), rules.before_shares(queue))):
        scopes = waitlist.parked_past(start, most) if len(found) < most else []
        found += [
            scope
            for scope in scopes
            if (rules.shared(scope) or ("",))[0] == queue and scope not in found
        ]
    return found[:most]


def free_of_share(share: tuple[str, int], current: Book, found: Holders, tenants: set[int]) -> int:
    """Return how many more tasks one of these tenants may have published in a queue.

    If the queue has a concurrency limit, the share is a part of it and running tasks count too.
    """
    queue, tenant_id = share
    wide = [most for scope in current.wide(queue) if (most := current.of(scope).places) is not None]
    if wide:
        return admission.share_of(min(wide), len(tenants)) - found.of_tenants[queue][tenant_id]
    return (
        admission.share_of(max(backpressure.window_of(queue), found.window(queue)), len(tenants))
        - found.queued[queue][tenant_id]
    )

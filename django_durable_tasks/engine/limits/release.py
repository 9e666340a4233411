"""Re-queues waiting tasks once their limit has capacity, round-robin over scopes.

The number of statements does not depend on the number of tasks. This module only makes tasks
eligible; the claim enforces the limit. An eligible task keeps the name of its scope until it is
claimed, so that the capacity that a heavy task waited for stays reserved for it. Called by the
thread of ``scheduler/releasing.py``, by the claim, and by the process of an ended run
(``engine/tasks/hand_over.py``).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django_durable_tasks import process_state
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.limits import admission, usage, waitlist
from django_durable_tasks.engine.limits.config import LimitConfig, limits_in_force
from django_durable_tasks.engine.limits.free_capacity import AHEAD, SEPARATOR, FreeCapacity
from django_durable_tasks.engine.limits.usage import Usage
from django_durable_tasks.engine.limits.waitlist import WaitingTask
from django_durable_tasks.rules.limits import admission as limit_admission
from django_durable_tasks.rules.limits import options as rules
from django_durable_tasks.rules.limits.admission import AdmissionRequest
from django_durable_tasks.rules.limits.options import Allowance

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
    waiting: Sequence[WaitingTask], now: datetime, limit: int, found: Usage, *, reread: bool
) -> list[uuid.UUID]:
    """Return those of these tasks that the usage ``found`` admits, at most ``limit``.

    ``waiting``: the first tasks of waitlists (``waitlist.heads``). ``reread``: they may have
    changed. The caller claims the tasks. Tasks that have expired are ended.
    """
    scopes = list(dict.fromkeys(row.waiting_for_limit for row in waiting))
    seen = () if reread else waiting
    plan = plan_release(scopes, now, limit, found=found, released_too=True, seen=seen)
    _clear(plan, limit)
    return list(plan.rows)


def _release(plan: ReleasePlan, limit: int) -> list[uuid.UUID]:
    _clear(plan, limit)
    if plan.rows:
        transitions.release_waiting(tables.tasks().filter(pk__in=list(plan.rows)), limit)
    for scope in plan.rows.values():
        share = rules.shared(scope)
        if share is not None:
            _turns().last_share[share[0]] = scope
    return [*plan.rows, *plan.late]


def _clear(plan: ReleasePlan, limit: int) -> None:
    """End expired tasks, and move tasks to the waitlist of another scope that refuses them."""
    if plan.late:
        transitions.expire(tables.tasks().filter(pk__in=plan.late), limit)
    transitions.change_waiting_limit(plan.elsewhere)


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
        due = admission.next_due([queue], now, AHEAD)
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
        if len(due) < AHEAD:
            break
    plan = plan_release(sorted(shares), now, limit, {queue: len(given)})
    return given + _release(plan, limit)


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
    given: Mapping[str, int] | None = None,
    *,
    found: Usage | None = None,
    released_too: bool = False,
    seen: Sequence[WaitingTask] = (),
) -> ReleasePlan:
    """Return at most ``limit`` tasks that wait for these scopes and that their limits and queues
    admit now.

    ``given`` is the number of tasks per queue that were selected but not claimed yet. If a queue is
    missing in it, its due tasks are counted instead. ``found``: the usage, if the caller has
    counted it. ``released_too``: also tasks that were released and are not claimed yet. ``seen``:
    the first tasks of these waitlists, if the caller has read them.
    """
    current = limits_in_force()
    free = FreeCapacity(current, found or usage.count(), now, given or {})
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
    chosen, elsewhere = limit_admission.select_releasable(waiting, free.capacity, limit)
    blocked = {
        of[task_id].pk: scope
        for task_id, full in elsewhere.items()
        if (scope := _waiting_scope(full)) is not None
    }
    return ReleasePlan(
        {of[task_id].pk: of[task_id].waiting_for_limit for task_id in chosen},
        blocked,
        list(late),
        not current.has_wide and all(free.only_endings_free(scope, waiting) for scope in scopes),
    )


def _waiting_scope(full: Sequence[str]) -> str | None:
    """Return the first scope for which a task can wait; not a window, which has capacity again
    soon.
    """
    return next(
        (
            scope.partition(SEPARATOR)[0]
            for scope in full
            if not scope.startswith(rules.of_window(""))
        ),
        None,
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

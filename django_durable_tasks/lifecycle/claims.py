"""Due rows are claimed for publishing, handed back, and rung again. Claims commit before anything is published."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.lifecycle import allowances, letting_go, parking, slots, transitions
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.models.task import TaskQuerySet, new_task_id
from django_durable_tasks.ports import Ring

_PRIORITY, _RUN_AT, _EXPIRES_AT = (
    transitions.RING_COLUMNS.index(name) for name in ("priority", "run_at", "expires_at")
)

_PASSES = 4
_AHEAD = 2_000
_TOGETHER = 500
"""Turns of so many tenants are given at once."""


def coming(
    queue: str, now: datetime, until: datetime, limit: int, shards: Collection[int] | None = None,
    past: uuid.UUID | None = None,
) -> list[tuple[Any, ...]]:  # fmt: skip
    """Return which rows of the queue will be due until then, the first first: when, queue, id, priority and shard.

    With ``past`` also those of the instant ``now`` whose ids come after it.
    """
    found = transitions.tasks().coming(now, until, past).filter(queue=queue)
    if shards is not None:
        found = found.filter(shard_key__in=sorted(shards))
    return list(found.values_list("alarm_at", "queue", "pk", "priority", "shard_key")[:limit])


def claim_these(ids: Sequence[uuid.UUID], now: datetime, node: uuid.UUID) -> list[Ring]:
    """Claim those of these rows that are due by the database's clock; return what to publish, the most urgent first.

    What a limit refuses is parked in the same transaction.
    """
    book = allowances.book()
    act = partial(transitions.claim_these, ids, node, conf.settings().RING_AGAIN)
    if book.empty:
        return rings_of(slots.kept(_ordered(act(), now)))
    with transitions.atomic():
        gate = parking.Gate(book)
        rows = gate.let_in(_ordered(act(), now))
        gate.close()
    return rings_of(slots.kept(rows))


def claim(
    queue: str, now: datetime, limit: int, node: uuid.UUID, shards: Collection[int] | None = None, least: int = 0
) -> list[Ring]:
    """Claim at most so many due rows of the queue, the most urgent first; return what to publish, in that order.

    ``shards``: only rows of these, or of any that nobody has served for some seconds; ``least``: of this priority or a
    higher one. What a limit refuses is parked in the same transaction, and of those that it hid others are claimed.
    """
    node_and_wait = (node, conf.settings().RING_AGAIN)

    def act(number: int) -> list[Sequence[Any]]:
        return _ordered(transitions.claim(queue, now, number, *node_and_wait, shards, least), now)

    book = allowances.book()
    if book.empty:
        return rings_of(slots.kept(act(limit)))
    turns = letting_go.line_up(book, queue, now, _TOGETHER) if book.takes_turns(queue) and not least else None

    def act_by_turns(number: int) -> list[Sequence[Any]]:
        ids = [turns.pop(0) for _ in range(min(number, len(turns)))] if turns else []
        return _ordered(transitions.claim_these(ids, *node_and_wait), now) if ids else []

    found: list[Sequence[Any]] = []
    with transitions.atomic():
        gate = parking.Gate(book, queue)
        for _ in range(_PASSES):
            free = gate.free(limit - len(found))
            rows = (act if turns is None else act_by_turns)(free) if free else []
            fit = gate.let_in(rows)
            found += fit
            if len(fit) == len(rows):
                break
            gate.clear_head(queue, now, _AHEAD)
        gate.close()
    return rings_of(slots.kept(found))


def _ordered(rows: Sequence[Sequence[Any]], now: datetime) -> list[Sequence[Any]]:
    # No database promises the order in which an UPDATE returns its rows.
    return sorted(_in_time(rows, now), key=lambda row: (-row[_PRIORITY], row[_RUN_AT], row[0]))


def _in_time(rows: Sequence[Sequence[Any]], now: datetime) -> list[Sequence[Any]]:
    """Return the RING_COLUMNS of rows that may still start; those that came too late expire here.

    Expiry is noticed when a row's turn comes, so that no sweep has to look at rows whose turn has not come.
    """
    late = {row[0] for row in rows if row[_EXPIRES_AT] is not None and row[_EXPIRES_AT] <= now}
    if late:
        transitions.expire(transitions.tasks().filter(pk__in=late), len(late))
    return [row for row in rows if row[0] not in late]


def ring_again(question: TaskQuerySet, now: datetime, limit: int) -> list[Ring]:
    """Set the next alarm of QUEUED rows that nobody started, and return what to publish once more.

    Their slots are looked at again: who claimed them may have died before it looked.
    """
    settings = conf.settings()
    rows = transitions.ring_again(question, limit, settings.RING_AGAIN, settings.RING_AGAIN_MAX)
    return rings_of(slots.kept(_in_time(rows, now)))


def ring_all(question: TaskQuerySet, batch: int) -> Iterator[list[Ring]]:
    """Go once through the QUEUED rows that are there now, in batches; each is yielded after its commit, to be rung.

    For a broker that lost its messages. What is born meanwhile has a message of its own.
    """
    queued = question.queued().filter(pk__lte=new_task_id()).order_by("pk")
    page = list(queued.values_list("pk", flat=True)[:batch])
    while page:
        yield ring_again(transitions.tasks().filter(pk__in=page), database_now(), batch)
        page = list(queued.filter(pk__gt=page[-1]).values_list("pk", flat=True)[:batch])


def hand_back(rings: Sequence[Ring], delay: float = 0.0) -> int:
    """Give claimed rows back that the broker did not take; rows that moved on are left alone."""
    epochs = {ring.task_id: ring.epoch for ring in rings}
    return transitions.hand_back(transitions.tasks().filter(pk__in=list(epochs)), delay, epochs)


def hand_back_unknown(task_id: uuid.UUID, epoch: int) -> int:
    """Give a row back whose task this worker does not know; it waits and is reported, and costs no try."""
    question = transitions.tasks().filter(pk=task_id)
    return transitions.hand_back(question, conf.settings().UNKNOWN_TASK_DELAY, {task_id: epoch})


def rings_of(rows: Iterable[Sequence[Any]]) -> list[Ring]:
    """Return the rings that these RING_COLUMNS describe."""
    rings = []
    for task_id, epoch, number, name, queue, priority, options, key, *_ in rows:
        overrides = (json.loads(options) if isinstance(options, str) else options) or {}
        rings.append(
            Ring(
                task_id,
                epoch,
                number,
                name,
                queue,
                priority,
                overrides.get("timeout"),
                overrides.get("soft_timeout"),
                key,
            )
        )
    return rings

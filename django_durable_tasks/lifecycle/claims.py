"""Due rows are claimed for publishing, handed back, and republished. Claims commit before anything is published."""

from __future__ import annotations

import json
import logging
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from django_durable_tasks import conf
from django_durable_tasks.lifecycle import allowances, letting_go, overlap, parking, transitions
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.models.task import TaskQuerySet, new_task_id
from django_durable_tasks.ports import Ring
from django_durable_tasks.rules.demands import Demand

logger = logging.getLogger("django_durable_tasks.scheduler")
_PRIORITY, _RUN_AT, _EXPIRES_AT, _QUEUE = (
    transitions.RING_COLUMNS.index(name) for name in ("priority", "run_at", "expires_at", "queue")
)

_PASSES = 4
_AHEAD = 2_000
_HEADS = 50
"""Of so many queues the rows behind refused ones are looked at in one claim; the others have their turn later."""
_TOGETHER = 500
"""Turns of so many tenants are given at once."""


class Claimed(NamedTuple):
    """The messages to publish after a claim, and how many due rows of each queue the claim took.

    ``taken`` also counts the rows that are not published: they expired, or a limit or an overlap policy refused them.
    """

    rings: list[Ring]
    taken: Counter[str]


def coming(
    queue: str | Collection[str], now: datetime, until: datetime, limit: int, shards: Collection[int] | None = None,
    past: uuid.UUID | None = None,
) -> list[tuple[Any, ...]]:  # fmt: skip
    """Return which rows of these queues will be due until then, the first first: when, queue, id, priority and shard.

    With ``past`` also those of the instant ``now`` whose ids come after it.
    """
    queues = [queue] if isinstance(queue, str) else sorted(queue)
    found = transitions.tasks().coming(now, until, past).filter(queue__in=queues)
    if shards is not None:
        found = found.filter(shard_key__in=sorted(shards))
    return list(found.values_list("due_at", "queue", "pk", "priority", "shard_key")[:limit])


def claim_these(ids: Sequence[uuid.UUID], now: datetime, node: uuid.UUID) -> list[Ring]:
    """Claim those of these rows that are due by the database's clock; return what to publish, the most urgent first.

    What a limit refuses is parked in the same transaction.
    """
    book = allowances.book()
    act = partial(transitions.claim_these, ids, node, conf.settings().REPUBLISH_AFTER)
    if book.empty:
        return rings_of(overlap.admitted(_ordered(act(), now)))
    with transitions.atomic():
        gate = parking.Gate(book)
        rows = gate.let_in(_ordered(act(), now))
        gate.close()
    return rings_of(overlap.admitted(rows))


def claim(
    queue: str, now: datetime, limit: int, node: uuid.UUID, shards: Collection[int] | None = None, least: int = 0
) -> list[Ring]:
    """Claim at most so many due rows of the queue, the most urgent first; return what to publish, in that order.

    ``shards``: only rows of these, or of any that nobody has served for some seconds; ``least``: of this priority or a
    higher one.
    """
    asked = [Demand(queue, limit, least)]
    return [ring for part in parted(asked) for ring in claim_of(part, now, limit, node, shards).rings]


def parted(asked: Sequence[Demand]) -> list[list[Demand]]:
    """Part these queues into claims that go together: those without a limit of the whole queue, and those with one.

    So a limit of one queue makes no claim of the others wait for the lock of limits. A queue in which tenants take
    turns is claimed alone.
    """
    book = allowances.book()
    free, bound, alone = list[Demand](), list[Demand](), list[list[Demand]]()
    for one in asked:
        if not one.least and book.takes_turns(one.queue):
            alone.append([one])
        else:
            (bound if book.wide(one.queue) else free).append(one)
    return [part for part in (free, bound, *alone) if part]


def claim_of(
    asked: Sequence[Demand], now: datetime, limit: int, node: uuid.UUID, shards: Collection[int] | None = None
) -> Claimed:
    """Claim due rows of the queues of one part; return at most ``limit`` rings to publish, the most urgent first.

    The number of statements does not grow with the queues. What a limit refuses is parked in the same transaction, and
    of those that it hid others are claimed.
    """
    node_and_wait = (node, conf.settings().REPUBLISH_AFTER)
    book = allowances.book()
    if book.empty:
        due = transitions.claim(asked, now, limit, *node_and_wait, shards)
        return Claimed(rings_of(overlap.admitted(_ordered(due, now))), Counter(row[_QUEUE] for row in due))
    turns, taken = _turns(book, asked, now), Counter[str]()

    def act(wanted: Sequence[Demand], number: int) -> list[Sequence[Any]]:
        rows: Sequence[Sequence[Any]]
        if turns is None:
            rows = transitions.claim(wanted, now, number, *node_and_wait, shards)
        else:
            ids = [turns.pop(0) for _ in range(min(number, wanted[0].limit, len(turns)))]
            rows = transitions.claim_these(ids, *node_and_wait) if ids else []
        taken.update(row[_QUEUE] for row in rows)
        return _ordered(rows, now)

    found, left = list[Sequence[Any]](), list(asked)
    with transitions.atomic():
        gate = parking.Gate(book, [one.queue for one in asked])
        for _ in range(_PASSES):
            wanted, number = gate.free(left, limit - len(found))
            rows = act(wanted, number) if wanted and number else []
            fit = gate.let_in(rows)
            found += fit
            if len(fit) == len(rows):
                break
            left = _left(left, rows, fit)
            gate.clear_heads([one.queue for one in left], now, _AHEAD)
        gate.close()
    return Claimed(rings_of(overlap.admitted(found)), taken)


def _turns(book: allowances.Book, asked: Sequence[Demand], now: datetime) -> list[uuid.UUID] | None:
    """Return the rows whose turn it is, None where tenants take no turns."""
    one = asked[0]
    if one.least or not book.takes_turns(one.queue):
        return None
    return letting_go.line_up(book, one.queue, now, _TOGETHER)


def _left(asked: Sequence[Demand], rows: Sequence[Sequence[Any]], fit: Sequence[Sequence[Any]]) -> list[Demand]:
    """Return what is still asked of the queues in which rows were refused: their next rows may fit."""
    there, going = (Counter(row[_QUEUE] for row in some) for some in (rows, fit))
    return [
        one._replace(limit=one.limit - going[one.queue])
        for one in asked
        if there[one.queue] > going[one.queue] and one.limit > going[one.queue]
    ][:_HEADS]


def _ordered(rows: Sequence[Sequence[Any]], now: datetime) -> list[Sequence[Any]]:
    # No database promises the order in which an UPDATE returns its rows. An id is compared by its number: UUID compares
    # in Python, which costs more than all else here.
    return sorted(_in_time(rows, now), key=lambda row: (-row[_PRIORITY], row[_RUN_AT], row[0].int))


def _in_time(rows: Sequence[Sequence[Any]], now: datetime) -> list[Sequence[Any]]:
    """Return the RING_COLUMNS of rows that may still start; those that came too late expire here.

    Expiry is noticed when a row's turn comes, so that no sweep has to look at rows whose turn has not come.
    """
    late = {row[0] for row in rows if row[_EXPIRES_AT] is not None and row[_EXPIRES_AT] <= now}
    if late:
        transitions.expire(transitions.tasks().filter(pk__in=late), len(late))
    return [row for row in rows if row[0] not in late]


def republish(question: TaskQuerySet, now: datetime, limit: int) -> list[Ring]:
    """Set the next ``due_at`` of QUEUED rows that nobody started, and return what to publish once more.

    Their overlap keys are checked again: the process that claimed them may have died before its check.
    """
    settings = conf.settings()
    rows = transitions.republish(question, limit, settings.REPUBLISH_AFTER, settings.REPUBLISH_AFTER_MAX)
    return rings_of(overlap.admitted(_in_time(rows, now)))


def ring_all(question: TaskQuerySet, batch: int) -> Iterator[list[Ring]]:
    """Go once through the QUEUED rows that are there now, in batches; each is yielded after its commit, to be rung.

    For a broker that lost its messages. What is born meanwhile has a message of its own.
    """
    queued = question.queued().filter(pk__lte=new_task_id()).order_by("pk")
    page = list(queued.values_list("pk", flat=True)[:batch])
    while page:
        yield republish(transitions.tasks().filter(pk__in=page), database_now(), batch)
        page = list(queued.filter(pk__gt=page[-1]).values_list("pk", flat=True)[:batch])


def hand_back(rings: Sequence[Ring], delay: float = 0.0) -> int:
    """Give claimed rows back that the broker did not take; rows that moved on are left alone."""
    epochs = {ring.task_id: ring.epoch for ring in rings}
    return transitions.hand_back(transitions.tasks().filter(pk__in=list(epochs)), delay, epochs)


def not_published(rings: Sequence[Ring], delay: float = 0.0) -> int:
    """Undo the count of repeated messages that the broker did not accept; they are due again after ``delay`` seconds.

    The rows stay QUEUED in their epoch: an earlier copy of the message may still start them.
    """
    return transitions.not_published([(ring.task_id, ring.epoch, ring.number) for ring in rings], delay)


def hand_back_unknown(task_id: uuid.UUID, epoch: int, queues: Collection[str] = ()) -> int:
    """Give a row back whose task this worker does not know; it waits and is reported, and costs no try.

    ``queues``: only if it is of one of these.
    """
    question = transitions.tasks().filter(pk=task_id, **({"queue__in": list(queues)} if queues else {}))
    return transitions.hand_back(question, conf.settings().UNKNOWN_TASK_DELAY, {task_id: epoch})


def rings_of(rows: Iterable[Sequence[Any]]) -> list[Ring]:
    """Return the rings that these RING_COLUMNS describe."""
    rings = []
    for task_id, epoch, number, name, queue, priority, options, key, *_ in rows:
        overrides = _overrides(task_id, options)
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


def _overrides(task_id: uuid.UUID, options: Any) -> Mapping[str, Any]:
    """Return the options that a row overrides; none where they cannot be read, so that one row stops no batch."""
    try:
        found = json.loads(options) if isinstance(options, str) else options
    except ValueError:
        found = options
    if found is None or isinstance(found, dict):
        return found or {}
    logger.error("The options of task %s are not a JSON object (%.100r); it is published without them.", task_id, found)
    return {}

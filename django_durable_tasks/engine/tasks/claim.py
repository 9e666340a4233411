"""Due rows are claimed for publishing, handed back, and republished. Claims commit before anything
is published.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from django_durable_tasks import conf
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.limits import admission, config, overlap, release
from django_durable_tasks.engine.transitions import ClaimedTask
from django_durable_tasks.models.task_queries import TaskQuerySet, new_task_id
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.rules.tasks.demands import Demand

logger = logging.getLogger("django_durable_tasks.scheduler")

_PASSES = 4
_AHEAD = 2_000
_HEADS = 50
"""Of so many queues the rows behind refused ones are looked at in one claim; the others have their
turn later.
"""
_TOGETHER = 500
"""Turns of so many tenants are given at once."""


class Claimed(NamedTuple):
    """The messages to publish after a claim, and how many due rows of each queue the claim took.

    ``taken`` also counts the rows that are not published: they expired, or a limit or an overlap
    policy refused them.
    """

    messages: list[TaskMessage]
    taken: Counter[str]


def coming(
    queue: str | Collection[str],
    now: datetime,
    until: datetime,
    limit: int,
    shards: Collection[int] | None = None,
    past: uuid.UUID | None = None,
) -> list[tuple[Any, ...]]:
    """Return which rows of these queues will be due until then, the first first: when, queue, id,
    priority and shard.

    With ``past`` also those of the instant ``now`` whose ids come after it.
    """
    queues = [queue] if isinstance(queue, str) else sorted(queue)
    found = tables.tasks().coming(now, until, past).filter(queue__in=queues)
    if shards is not None:
        found = found.filter(shard_key__in=sorted(shards))
    return list(found.values_list("due_at", "queue", "pk", "priority", "shard_key")[:limit])


def claim_these(ids: Sequence[uuid.UUID], now: datetime, node: uuid.UUID) -> list[TaskMessage]:
    """Claim those of these rows that are due by the database's clock; return what to publish, the
    most urgent first.

    What a limit refuses is parked in the same transaction.
    """
    book = config.book()
    act = partial(transitions.claim_these, ids, node, conf.settings().REPUBLISH_AFTER)
    if book.empty:
        return transitions.messages_for(overlap.admitted(_ordered(act(), now)))
    with tables.atomic():
        gate = admission.Gate(book)
        rows = gate.let_in(_ordered(act(), now))
        gate.close()
    return transitions.messages_for(overlap.admitted(rows))


def claim(
    queue: str,
    now: datetime,
    limit: int,
    node: uuid.UUID,
    shards: Collection[int] | None = None,
    least: int = 0,
) -> list[TaskMessage]:
    """Claim at most so many due rows of the queue, the most urgent first; return what to publish,
    in that order.

    ``shards``: only rows of these, or of any that nobody has served for some seconds; ``least``: of
    this priority or a higher one.
    """
    asked = [Demand(queue, limit, least)]
    return [
        message
        for part in parted(asked)
        for message in claim_of(part, now, limit, node, shards).messages
    ]


def parted(asked: Sequence[Demand]) -> list[list[Demand]]:
    """Part these queues into claims that go together: those without a limit of the whole queue, and
    those with one.

    So a limit of one queue makes no claim of the others wait for the lock of limits. A queue in
    which tenants take turns is claimed alone.
    """
    book = config.book()
    free, bound, alone = list[Demand](), list[Demand](), list[list[Demand]]()
    for one in asked:
        if not one.least and book.takes_turns(one.queue):
            alone.append([one])
        else:
            (bound if book.wide(one.queue) else free).append(one)
    return [part for part in (free, bound, *alone) if part]


def claim_of(
    asked: Sequence[Demand],
    now: datetime,
    limit: int,
    node: uuid.UUID,
    shards: Collection[int] | None = None,
) -> Claimed:
    """Claim due rows of the queues of one part; return at most ``limit`` rings to publish, the most
    urgent first.

    The number of statements does not grow with the queues. What a limit refuses is parked in the
    same transaction, and of those that it hid others are claimed.
    """
    node_and_wait = (node, conf.settings().REPUBLISH_AFTER)
    book = config.book()
    if book.empty:
        due = transitions.claim(asked, now, limit, *node_and_wait, shards)
        return Claimed(
            transitions.messages_for(overlap.admitted(_ordered(due, now))),
            Counter(task.queue for task in due),
        )
    turns, taken = _turns(book, asked, now), Counter[str]()

    def act(wanted: Sequence[Demand], number: int) -> list[ClaimedTask]:
        rows: Sequence[ClaimedTask]
        if turns is None:
            rows = transitions.claim(wanted, now, number, *node_and_wait, shards)
        else:
            ids = [turns.pop(0) for _ in range(min(number, wanted[0].limit, len(turns)))]
            rows = transitions.claim_these(ids, *node_and_wait) if ids else []
        taken.update(task.queue for task in rows)
        return _ordered(rows, now)

    found, left = list[ClaimedTask](), list(asked)
    with tables.atomic():
        gate = admission.Gate(book, [one.queue for one in asked])
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
    return Claimed(transitions.messages_for(overlap.admitted(found)), taken)


def _turns(book: config.Book, asked: Sequence[Demand], now: datetime) -> list[uuid.UUID] | None:
    """Return the rows whose turn it is, None where tenants take no turns."""
    one = asked[0]
    if one.least or not book.takes_turns(one.queue):
        return None
    return release.line_up(book, one.queue, now, _TOGETHER)


def _left(
    asked: Sequence[Demand], rows: Sequence[ClaimedTask], fit: Sequence[ClaimedTask]
) -> list[Demand]:
    """Return what is still asked of the queues in which rows were refused: their next
    rows may fit.
    """
    there, going = (Counter(task.queue for task in some) for some in (rows, fit))
    return [
        one._replace(limit=one.limit - going[one.queue])
        for one in asked
        if there[one.queue] > going[one.queue] and one.limit > going[one.queue]
    ][:_HEADS]


def _ordered(claimed: Sequence[ClaimedTask], now: datetime) -> list[ClaimedTask]:
    # No database promises the order in which an UPDATE returns its rows.
    return sorted(_in_time(claimed, now), key=attrgetter("order"))


def _in_time(claimed: Sequence[ClaimedTask], now: datetime) -> list[ClaimedTask]:
    """Return the tasks that may still start; set the others to EXPIRED.

    Expiry is checked when a task is claimed, so that no job has to read tasks that are not due.
    """
    late = {task.id for task in claimed if task.expires_at is not None and task.expires_at <= now}
    if late:
        transitions.expire(tables.tasks().filter(pk__in=late), len(late))
    return [task for task in claimed if task.id not in late]


def republish(question: TaskQuerySet, now: datetime, limit: int) -> list[TaskMessage]:
    """Set the next ``due_at`` of QUEUED rows that nobody started, and return what to publish once
    more.

    Their overlap keys are checked again: the process that claimed them may have died before its
    check.
    """
    settings = conf.settings()
    rows = transitions.republish(
        question, limit, settings.REPUBLISH_AFTER, settings.REPUBLISH_AFTER_MAX
    )
    return transitions.messages_for(overlap.admitted(_in_time(rows, now)))


def republish_all(question: TaskQuerySet, batch: int) -> Iterator[list[TaskMessage]]:
    """Go once through the QUEUED rows that are there now, in batches; each is yielded after its
    commit, to be rung.

    For a broker that lost its messages. What is born meanwhile has a message of its own.
    """
    queued = question.queued().filter(pk__lte=new_task_id()).order_by("pk")
    page = list(queued.values_list("pk", flat=True)[:batch])
    while page:
        yield republish(tables.tasks().filter(pk__in=page), database_now(), batch)
        page = list(queued.filter(pk__gt=page[-1]).values_list("pk", flat=True)[:batch])


def hand_back(messages: Sequence[TaskMessage], delay: float = 0.0) -> int:
    """Give claimed rows back that the broker did not take; rows that moved on are left alone."""
    epochs = {message.task_id: message.epoch for message in messages}
    return transitions.hand_back(tables.tasks().filter(pk__in=list(epochs)), delay, epochs)


def not_published(messages: Sequence[TaskMessage], delay: float = 0.0) -> int:
    """Undo the count of repeated messages that the broker did not accept; they are due again after
    ``delay`` seconds.

    The rows stay QUEUED in their epoch: an earlier copy of the message may still start them.
    """
    return transitions.not_published(
        [(message.task_id, message.epoch, message.number) for message in messages], delay
    )


def hand_back_unknown(task_id: uuid.UUID, epoch: int, queues: Collection[str] = ()) -> int:
    """Give a row back whose task this worker does not know; it waits and is reported, and costs no
    try.

    ``queues``: only if it is of one of these.
    """
    question = tables.tasks().filter(pk=task_id, **({"queue__in": list(queues)} if queues else {}))
    return transitions.hand_back(question, conf.settings().UNKNOWN_TASK_DELAY, {task_id: epoch})

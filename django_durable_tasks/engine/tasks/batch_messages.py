"""Which batch messages are needed: at most one is outstanding for each queue and task name.

A scheduler records a message and publishes it after the commit. The worker that receives it records
that, starts a batch, and publishes the next message if more tasks are due.

A message that no worker has received is published again after FIRST_WAIT, and then after growing
times, at most REPUBLISH_AFTER if a worker consumes the queue. It may be lost: on Redis the parent
process of a worker reads the next message while its child processes are busy, and the message is
lost if the worker is killed. If it was only late, two messages exist. They have different numbers,
and a worker that receives the older one does not publish a successor, because the newer one is
outstanding. So late messages do not accumulate.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import BooleanField, Case, ExpressionWrapper, F, Max, Min, Q, When

from django_durable_tasks import conf
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.clock import after
from django_durable_tasks.engine.db.statements import statement
from django_durable_tasks.engine.db.tables import NOW
from django_durable_tasks.models import BatchMessage

FIRST_WAIT = 2.0
"""Seconds, at most REPUBLISH_AFTER. A worker with a free process receives a message within
milliseconds, and a process with a batch is free after about 0.2 s.
"""
_AT_ONCE = 500
_DOUBLINGS = 10


class BatchHead(NamedTuple):
    """The tasks of a name in a queue that wait for a batch: when the first one is due, and the
    highest priority of those that are due; None if none is due.
    """

    queue: str
    name: str
    due_at: datetime
    priority: int | None


class ReservedMessage(NamedTuple):
    """A message to publish: its number, and how many were published since a worker received one,
    including this one.
    """

    queue: str
    name: str
    number: int
    publish_count: int


def heads(now: datetime) -> list[BatchHead]:
    """Return the queues and task names with tasks that wait for a batch; a constant number of
    statements for up to 500 of them.
    """
    sql = statement("batch_heads")
    if sql is None:
        return _grouped(now)
    found, past = list[BatchHead](), ("", "")
    while True:
        rows = tables.read(sql, {"queue": past[0], "name": past[1], "limit": _AT_ONCE, "now": now})
        found += [BatchHead._make(row) for row in rows]
        if len(rows) < _AT_ONCE:
            return found
        past = found[-1].queue, found[-1].name


def _grouped(now: datetime) -> list[BatchHead]:
    waiting = tables.tasks().waiting_for_batch().order_by().values_list("queue", "name")
    rows = waiting.annotate(head=Min("due_at"), level=Max("priority", filter=Q(due_at__lte=now)))
    return [
        BatchHead(queue, name, head if head.tzinfo else head.replace(tzinfo=UTC), level)
        for queue, name, head, level in rows
    ]


def reserve(pairs: Sequence[tuple[str, str]], *, consumed: bool = True) -> list[ReservedMessage]:
    """Record a message for each of these queues and task names that has none outstanding; return
    those to publish after the commit.

    ``consumed``: whether workers consume these queues. Without one, the wait for the next message
    grows up to REPUBLISH_AFTER_MAX, and ``publish_again`` is called for the first worker.
    """
    if not pairs:
        return []
    settings, ordered = conf.settings(), sorted(set(pairs))
    first = min(FIRST_WAIT, settings.REPUBLISH_AFTER)
    longest = settings.REPUBLISH_AFTER if consumed else settings.REPUBLISH_AFTER_MAX
    sql = statement("reserve_batch_messages")
    if sql is not None:
        queues, names = (list(column) for column in zip(*ordered, strict=True))
        parameters = {"queues": queues, "names": names, "first": first, "longest": longest}
        return [ReservedMessage._make(row) for row in tables.read(sql, parameters)]
    return _reserve(ordered, first, longest)


def _reserve(
    pairs: Sequence[tuple[str, str]], first: float, longest: float
) -> list[ReservedMessage]:
    rows = BatchMessage.objects.using(tables.database())
    is_free = ExpressionWrapper(Q(due_at=None) | Q(due_at__lte=NOW), BooleanField())
    known = {
        (queue, name): free
        for queue, name, free in rows.filter(_any_of(pairs)).values_list("queue", "name", is_free)
    }
    pairs = [pair for pair in pairs if known.get(pair, True)]
    if not pairs:
        return []  # nothing is written, because each call for a batch looks
    missing = [
        BatchMessage(queue=queue, name=name) for queue, name in pairs if (queue, name) not in known
    ]
    if missing:
        rows.bulk_create(missing, ignore_conflicts=True)
    with tables.atomic():
        free = rows.filter(_any_of(pairs)).filter(Q(due_at=None) | Q(due_at__lte=NOW))
        locked = tables.locked_for_change(free.order_by("pk"), skip_locked=_skips())
        fields = ("pk", "queue", "name", "number", "publish_count")
        found = {
            pk: ReservedMessage(queue, name, number + 1, count + 1)
            for pk, queue, name, number, count in locked.values_list(*fields)
        }
        steps: list[Any] = [
            When(publish_count=number, then=after(min(first * 2**number, longest)))
            for number in range(_DOUBLINGS)
        ]
        rows.filter(pk__in=list(found)).update(
            due_at=Case(*steps, default=after(longest)),
            publish_count=F("publish_count") + 1,
            number=F("number") + 1,
        )
    return sorted(found.values())


def _skips() -> bool:
    return connections[tables.database()].features.has_select_for_update_skip_locked


def _any_of(pairs: Sequence[tuple[str, str]]) -> Q:
    return Q(*(Q(queue=queue, name=name) for queue, name in pairs), _connector=Q.OR)


def received(queue: str, name: str, number: int) -> None:
    """Record that a worker has received the message of this queue, task name and number.

    After an older message than the outstanding one, that one remains outstanding, for at most
    REPUBLISH_AFTER, because a worker consumes the queue.
    """
    sql, longest = statement("receive_batch_message"), conf.settings().REPUBLISH_AFTER
    if sql is not None:
        values = {"queue": queue, "name": name, "number": number, "longest": longest}
        tables.count(sql, values)
        return
    rows = BatchMessage.objects.using(tables.database()).filter(queue=queue, name=name)
    newest = rows.filter(number__lte=number, due_at__isnull=False)
    if not newest.update(due_at=None, publish_count=0):
        latest = after(longest)
        rows.filter(number__gt=number, due_at__gt=latest).update(due_at=latest)


def not_published(pairs: Sequence[tuple[str, str]], delay: float) -> None:
    """Record that the broker did not accept these messages; they are due again in ``delay``
    seconds.
    """
    rows = BatchMessage.objects.using(tables.database()).filter(_any_of(pairs))
    rows.update(due_at=after(delay), publish_count=0)


def shorten_waits(longest: float) -> int:
    """Let outstanding messages be published again in at most ``longest`` seconds; return how many
    waited longer.
    """
    latest = after(longest)
    rows = BatchMessage.objects.using(tables.database()).filter(due_at__gt=after(longest + 1.0))
    return rows.update(due_at=latest)


def publish_again(queue: str | None = None) -> int:
    """Make outstanding messages due now, because the broker may have lost them; return how many."""
    rows = BatchMessage.objects.using(tables.database()).filter(due_at__gt=NOW)
    these = rows if queue is None else rows.filter(queue=queue)
    return these.update(due_at=NOW)

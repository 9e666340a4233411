"""Batches: which messages are needed, and the start and the ending of many tasks together."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.db.models import BooleanField, Case, ExpressionWrapper, F, Max, Min, Q, When

from django_durable_tasks import conf
from django_durable_tasks.limits import admission, config
from django_durable_tasks.models import BatchMessage
from django_durable_tasks.states import batches, claims, endings
from django_durable_tasks.states.batches import Success
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import after, database_now
from django_durable_tasks.store.dialects import POSTGRESQL, sql, verb
from django_durable_tasks.store.errors import retry_on_deadlock
from django_durable_tasks.store.tables import NOW
from django_durable_tasks.task_values import Run, RunLocation
from django_durable_tasks.tasks.attempts import end_runs, succeeded_of

__all__ = ["Success"]


# Which batch messages are needed: at most one is outstanding for each queue and task name.
#
# A scheduler records a message and publishes it after the commit. The worker that receives it
# records that, starts a batch, and publishes the next message if more tasks are due.
#
# A message that no worker has received is published again after FIRST_WAIT, and then after growing
# times, at most REPUBLISH_AFTER if a worker consumes the queue. It may be lost: on Redis the
# parent process of a worker reads the next message while its child processes are busy, and the
# message is lost if the worker is killed. If it was only late, two messages exist. They have
# different numbers, and a worker that receives the older one does not publish a successor, because
# the newer one is outstanding. So late messages do not accumulate.


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


@verb
def batch_heads(now: datetime) -> list[BatchHead]:
    """Return the queues and task names with tasks that wait for a batch; a constant number of
    statements for up to 500 of them.
    """
    waiting = tables.tasks().waiting_for_batch().order_by().values_list("queue", "name")
    rows = waiting.annotate(head=Min("due_at"), level=Max("priority", filter=Q(due_at__lte=now)))
    return [
        BatchHead(queue, name, head if head.tzinfo else head.replace(tzinfo=UTC), level)
        for queue, name, head, level in rows
    ]


@batch_heads.on(POSTGRESQL)
def _batch_heads_by_pages(now: datetime) -> list[BatchHead]:
    heads, past = list[BatchHead](), ("", "")
    while True:
        parameters = {"queue": past[0], "name": past[1], "limit": _AT_ONCE, "now": now}
        rows = tables.read(sql("batch_heads"), parameters)
        heads += [BatchHead._make(row) for row in rows]
        if len(rows) < _AT_ONCE:
            return heads
        past = heads[-1].queue, heads[-1].name


def reserve_messages(
    pairs: Sequence[tuple[str, str]], *, consumed: bool = True
) -> list[ReservedMessage]:
    """Record a message for each of these queues and task names that has none outstanding; return
    those to publish after the commit.

    ``consumed``: whether workers consume these queues. Without one, the wait for the next message
    grows up to ``conf.republish_after_max``, and ``publish_again`` is called for the first worker.
    """
    if not pairs:
        return []
    settings, ordered = conf.settings(), sorted(set(pairs))
    first = min(FIRST_WAIT, settings.REPUBLISH_AFTER)
    longest = settings.REPUBLISH_AFTER if consumed else conf.republish_after_max()
    return _reserve_pairs(ordered, first, longest)


@verb
def _reserve_pairs(
    pairs: Sequence[tuple[str, str]], first: float, longest: float
) -> list[ReservedMessage]:
    rows = BatchMessage.objects.using(tables.database())
    is_free = ExpressionWrapper(Q(due_at=None) | Q(due_at__lte=NOW), BooleanField())
    existing = {
        (queue, name): free
        for queue, name, free in rows.filter(_any_of(pairs)).values_list("queue", "name", is_free)
    }
    pairs = [pair for pair in pairs if existing.get(pair, True)]
    if not pairs:
        return []  # nothing is written, because each call for a batch looks
    missing = [
        BatchMessage(queue=queue, name=name)
        for queue, name in pairs
        if (queue, name) not in existing
    ]
    if missing:
        rows.bulk_create(missing, ignore_conflicts=True)
    with tables.atomic():
        free = rows.filter(_any_of(pairs)).filter(Q(due_at=None) | Q(due_at__lte=NOW))
        locked = tables.locked_for_change(free.order_by("pk"), skip_locked=True)
        fields = ("pk", "queue", "name", "number", "publish_count")
        reserved = {
            pk: ReservedMessage(queue, name, number + 1, count + 1)
            for pk, queue, name, number, count in locked.values_list(*fields)
        }
        steps: list[Any] = [
            When(publish_count=number, then=after(min(first * 2**number, longest)))
            for number in range(_DOUBLINGS)
        ]
        rows.filter(pk__in=list(reserved)).update(
            due_at=Case(*steps, default=after(longest)),
            publish_count=F("publish_count") + 1,
            number=F("number") + 1,
        )
    return sorted(reserved.values())


@_reserve_pairs.on(POSTGRESQL)
def _reserve_in_one_statement(
    pairs: Sequence[tuple[str, str]], first: float, longest: float
) -> list[ReservedMessage]:
    queues, names = (list(column) for column in zip(*pairs, strict=True))
    parameters = {"queues": queues, "names": names, "first": first, "longest": longest}
    rows = tables.read(sql("reserve_batch_messages"), parameters)
    return [ReservedMessage._make(row) for row in rows]


def _any_of(pairs: Sequence[tuple[str, str]]) -> Q:
    return Q(*(Q(queue=queue, name=name) for queue, name in pairs), _connector=Q.OR)


@verb
def message_received(queue: str, name: str, number: int) -> None:
    """Record that a worker has received the message of this queue, task name and number.

    After an older message than the outstanding one, that one remains outstanding, for at most
    REPUBLISH_AFTER, because a worker consumes the queue.
    """
    rows = BatchMessage.objects.using(tables.database()).filter(queue=queue, name=name)
    newest = rows.filter(number__lte=number, due_at__isnull=False)
    if not newest.update(due_at=None, publish_count=0):
        latest = after(conf.settings().REPUBLISH_AFTER)
        rows.filter(number__gt=number, due_at__gt=latest).update(due_at=latest)


@message_received.on(POSTGRESQL)
def _message_received_in_one_statement(queue: str, name: str, number: int) -> None:
    longest = conf.settings().REPUBLISH_AFTER
    values = {"queue": queue, "name": name, "number": number, "longest": longest}
    tables.count(sql("receive_batch_message"), values)


def message_not_published(pairs: Sequence[tuple[str, str]], delay: float) -> None:
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


def publish_messages_again(queue: str | None = None) -> int:
    """Make outstanding messages due now, because the broker may have lost them; return how many."""
    rows = BatchMessage.objects.using(tables.database()).filter(due_at__gt=NOW)
    if queue is not None:
        rows = rows.filter(queue=queue)
    return rows.update(due_at=NOW)


# Starts the tasks of a batch, records their successes together, and returns tasks of it that were
# not called. Workers call these functions.


TOKEN_BYTES = 6
"""Shorter than half of a run id, whose seventh byte contains the version of the UUID."""
_PASSES, _AHEAD = 4, 500
_CANCELLED = Outcome(kind=EndingKind.IGNORED, error="Cancelled before it was called.")


def run_ids_of(message: bytes, number: int) -> list[uuid.UUID]:
    """Return random run ids that begin with the token of this batch message (TOKEN_BYTES).

    The parent process of a worker child finds the runs of a batch by these bytes if the child
    terminates.
    """
    size = 16 - TOKEN_BYTES
    return [uuid.UUID(bytes=message + os.urandom(size), version=4) for _ in range(number)]


def take(queue: str, name: str, run_ids: Sequence[uuid.UUID], place: RunLocation) -> list[Run]:
    """Start due tasks of this name in this queue, at most one for each of ``run_ids``.

    Tasks that a limit refuses wait for its scope from the same transaction, as by a claim.
    """
    limit_config = config.limits_in_force()
    if limit_config.may_bind([(name, queue)]):
        started = _take_within_limits(limit_config, queue, name, run_ids, place)
    else:
        started = batches.take_due(queue, name, run_ids, place.node, place.lease)
    return _with_message(started)


@retry_on_deadlock
def _take_within_limits(
    limit_config: config.LimitConfig,
    queue: str,
    name: str,
    run_ids: Sequence[uuid.UUID],
    place: RunLocation,
) -> list[Run]:
    """Start due tasks that the limits admit.

    If some are refused, the refused ones among the next ``_AHEAD`` due tasks wait too, so that
    tasks of a full scope do not delay those behind them. At most ``_PASSES`` passes.
    """
    with tables.atomic():
        gate = admission.LimitAdmission(limit_config)
        admitted, now = list[uuid.UUID](), database_now()
        for _ in range(_PASSES):
            remaining = len(run_ids) - len(admitted)
            due = batches.due_in_batch(queue, name, remaining, admitted)
            # The rows are locked first, so that no other process spends rate-limit tokens for
            # them. Another process may have started one since it was read. It then runs alone or
            # later.
            still_due = (
                tables.tasks()
                .waiting_for_batch()
                .filter(pk__in=due, queue=queue, name=name, due_at__lte=tables.NOW)
            )
            locked = claims.locked_pending(still_due, len(due))
            fit = gate.admit(sorted(_in_time(locked, now), key=due.index), now)
            admitted += fit
            if len(due) < remaining or len(fit) == remaining or gate.is_full(name, queue):
                break
            gate.refuse(batches.due_in_batch(queue, name, _AHEAD, admitted), now)
        gate.close()
        queryset = tables.tasks().filter(pk__in=admitted)
        return batches.take(queryset, run_ids[: len(admitted)], place.node, place.lease)


def _in_time(ids: Sequence[uuid.UUID], now: datetime) -> list[uuid.UUID]:
    """Return the locked tasks that have not expired; set the others to EXPIRED."""
    late = tables.tasks().filter(pk__in=ids, expires_at__lte=now)
    expired = set(late.values_list("pk", flat=True))
    if expired:
        endings.expire(tables.tasks().filter(pk__in=expired), len(expired))
    return [task_id for task_id in ids if task_id not in expired]


def taken(run_ids: Sequence[uuid.UUID], place: RunLocation) -> list[Run]:
    """Return the runs that were started with these ids.

    Called if the reply of the database to ``take`` was lost.
    """
    queryset = tables.tasks().running().filter(node=place.node, run_id__in=list(run_ids))
    return _with_message(claims.started_runs(queryset.order_by("-priority", "ready_at", "id")))


def _with_message(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with the ids that messages of their own would have had."""
    return [run._replace(celery_id=f"{run.task_id}.{run.epoch - 1}.0") for run in runs]


@retry_on_deadlock
def succeed(successes: Sequence[Success], worker: str) -> set[uuid.UUID]:
    """Record these successes with their log entries; return the run ids of those accepted.

    If the reply to the COMMIT was lost and the call is repeated, the successes are found in the
    log.
    """
    accepted = batches.succeed_many(successes, worker)
    missing = [success.run for success in successes if success.run.run_id not in accepted]
    return accepted | succeeded_of(missing) if missing else accepted


def return_uncalled(runs: Sequence[Run], worker: str) -> int:
    """Return tasks to PENDING that this batch started, but whose functions were not called; return
    how many.

    Tasks whose cancellation was requested are CANCELLED.
    """
    returned = batches.undo_starts(runs)
    if returned < len(runs):
        end_runs(batches.owned(runs), lambda _: _CANCELLED, worker=worker)
    return returned


def end_runs_of_dead_child(message: bytes, node: uuid.UUID, error: str, worker: str) -> int:
    """Mark the runs LOST that a child process of this node started from this batch message and did
    not end; return how many.
    """
    running = tables.tasks().running().filter(node=node).order_by().values_list("pk", "run_id")
    run_ids = {pk: run for pk, run in running if run is not None and run.bytes.startswith(message)}
    if not run_ids:
        return 0
    lost = Outcome(kind=EndingKind.CRASHED, error=error, error_type="WorkerLostError")
    tasks = tables.tasks().filter(
        pk__in=list(run_ids), run_id__in=list(run_ids.values()), node=node
    )
    return len(end_runs(tasks, lambda _: lost, worker=worker))

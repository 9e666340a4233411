"""Claim, publish, hand back: the three beats. The claim commits before anything is published."""

from __future__ import annotations

import logging
import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db import Error

from django_durable_tasks import conf
from django_durable_tasks.celery import publisher
from django_durable_tasks.celery.publisher import NotAccepted
from django_durable_tasks.exceptions import BrokerUnavailable
from django_durable_tasks.lifecycle import claims
from django_durable_tasks.lifecycle.connections import own
from django_durable_tasks.ports import Ring
from django_durable_tasks.rules.demands import Demand

logger = logging.getLogger("django_durable_tasks.broker")


def dispatch(
    queue: str, now: datetime, limit: int, node: uuid.UUID, shards: Collection[int] | None = None, least: int = 0
) -> int:
    """Publish at most so many due rows of a queue, of these shards and from this priority on; return how many it took.

    While the breaker is open nothing is claimed, but for one row now and then that probes the broker; likewise of a
    queue that the broker rejects.
    """
    done = Dispatched()
    dispatch_of(done, [Demand(queue, limit, least)], now, limit, node, shards)
    return done.sent.total()


@dataclass(frozen=True, slots=True)
class Dispatched:
    """How many due rows of each queue a claim took, how many of these were to be published, and were accepted.

    ``cut``: queues that may have more due rows, because the limit of all queues together ended their claim.
    """

    taken: Counter[str] = field(default_factory=Counter)
    claimed: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    cut: set[str] = field(default_factory=set)


def dispatch_of(
    done: Dispatched, asked: Sequence[Demand], now: datetime, limit: int, node: uuid.UUID,
    shards: Collection[int] | None = None,
) -> None:  # fmt: skip
    """Publish due rows of these queues, at most ``limit`` of all together, and count them in ``done``.

    Claims and messages go in batches over many queues; claims that cannot go together share the limit by what is asked
    of them. While the breaker is open nothing is claimed, but for one row now and then that probes the broker; likewise
    of a queue that the broker rejects.
    """
    open_now = [one._replace(limit=number) for one in asked if (number := min(one.limit, room_of(one.queue))) > 0]
    with own():
        parts = claims.parted(open_now)
    wanted = sum(one.limit for one in open_now)
    for part in parts:
        want = sum(one.limit for one in part)
        share = -(-limit * want // wanted)  # rounded up
        wanted -= want
        allowed = share if publisher.breaker.closed() else min(share, room())
        taken = 0
        if allowed > 0:
            with own():
                rings, of_queues = claims.claim_of(part, now, allowed, node, shards)
            taken = of_queues.total()
            done.taken.update(of_queues)
            done.claimed.update(Counter(ring.queue for ring in rings))
            done.sent.update(_send(rings))
        limit = max(0, limit - taken)
        if taken >= share:
            done.cut.update(one.queue for one in part)


def dispatch_these(ids: Sequence[uuid.UUID], now: datetime, node: uuid.UUID) -> int:
    """Publish those of these rows that are due; return how many the broker took, none while the breaker is open."""
    if not publisher.breaker.closed():
        return 0
    with own():
        rings = claims.claim_these(ids, now, node)
    return send(rings)


def room_of(queue: str) -> int:
    """Return how many rows of this queue may be published at once: 0 while it or the broker is away, 1 as a probe."""
    if not publisher.backoff.allows(queue):
        return 0
    return min(room(), 1 if publisher.backoff.knows(queue) else conf.settings().BATCH_SIZE)


def send(rings: Sequence[Ring]) -> int:
    """Publish claimed rows; what the broker does not take is handed back. Return how many it took."""
    return _send(rings).total()


def _send(rings: Sequence[Ring]) -> Counter[str]:
    """Publish claimed rows, hand back what the broker does not take, and return how many it took of each queue."""
    if not rings:
        return Counter()
    refused = _publish(rings)
    if refused:
        with own():
            _hand_back(refused)
    return Counter(ring.queue for ring in rings) - Counter(one.ring.queue for one in refused)


def _publish(rings: Sequence[Ring]) -> Sequence[NotAccepted]:
    """Publish and return what was not accepted, whatever the reason."""
    try:
        return publisher.publish(rings)
    except BrokerUnavailable as error:
        logger.debug("%d messages were not published: %s", len(rings), error)
        return [NotAccepted(ring, 0.0) for ring in rings]
    except Exception:
        if len(rings) > 1:  # one that cannot be published must not hold up the others
            return [refused for ring in rings for refused in _publish([ring])]
        (ring,), again = rings, conf.settings().REPUBLISH_AFTER
        logger.exception(
            "Publishing task %s (%s) to queue %r failed unexpectedly; it is tried again in %g s.", ring.task_id,
            ring.name, ring.queue, again, extra={"task_id": str(ring.task_id), "queue": ring.queue},
        )  # fmt: skip
        return [NotAccepted(ring, again)]


def _hand_back(refused: Iterable[NotAccepted]) -> None:
    by_delay: dict[float, list[Ring]] = defaultdict(list)
    for one in refused:
        by_delay[one.delay].append(one.ring)
    for delay, rings in by_delay.items():
        claims.hand_back(rings, delay)


def ring(rings: Sequence[Ring]) -> None:
    """Publish rows that are QUEUED already; called by schedulers, outside of any transaction."""
    refused = _publish(rings)
    if refused:
        with own():
            _take_back(refused)


def republish(rings: Sequence[Ring]) -> Counter[str]:
    """Publish rows once more for an operator; return how many of which queue the broker rejected.

    Raises BrokerUnavailable if it does not answer.
    """
    try:
        refused = publisher.publish(rings)
    except BrokerUnavailable:
        _take_back([NotAccepted(ring, 0.0) for ring in rings])
        raise
    _take_back(refused)
    return Counter(one.ring.queue for one in refused)


def ring_after_commit(rings: Sequence[Ring]) -> None:
    """Publish rows that were born QUEUED, after their COMMIT; never raises for the broker or the database.

    Works on the caller's connection: what the broker did not accept is PENDING again, and schedulers publish it as
    soon as it can be.
    """
    if publisher.eager():
        for one in rings:
            publisher.run_here(one)
        return
    refused = _publish(rings)
    if not refused:
        return
    try:
        _take_back(refused)
    except Error as error:
        logger.warning(
            "The broker did not accept %d messages, and their tasks could not be returned to PENDING (%s). They are"
            " republished after %g s.", len(refused), type(error).__name__, conf.settings().REPUBLISH_AFTER,
        )  # fmt: skip


def _take_back(refused: Sequence[NotAccepted]) -> None:
    """Undo what was written before the messages were refused: a first one was never out, of others a copy may be."""
    _hand_back(one for one in refused if one.ring.number <= 1)
    by_delay: dict[float, list[Ring]] = defaultdict(list)
    for one in refused:
        if one.ring.number > 1:
            by_delay[one.delay].append(one.ring)
    for delay, rings in by_delay.items():
        claims.not_published(rings, delay)


def queues_backed_off() -> list[str]:
    """Return the queues that the broker rejects and that are not tried again yet."""
    return publisher.backoff.waiting()


def outages() -> int:
    """Return how often this process has lost the broker."""
    return publisher.breaker.outages


def broker_answers() -> bool:
    """Return whether the broker took our last messages."""
    return publisher.breaker.closed()


def rejected_queues() -> dict[str, str]:
    """Return the queues whose messages the broker rejects, with its reason."""
    return publisher.backoff.reasons()


def broker_open(queue: str | None = None) -> bool:
    """Return whether to publish now: the broker took our last messages, or it is time to try it again.

    With ``queue``: and it took the last messages of this queue.
    """
    if queue is not None and not publisher.backoff.allows(queue):
        return False
    return publisher.breaker.closed() or publisher.breaker.may_probe()


def room() -> int:
    """Return how many rows may be published at once: one while the broker is away, as a probe, when it is time."""
    if publisher.breaker.closed():
        return conf.settings().BATCH_SIZE
    return int(publisher.breaker.may_probe())

"""Claim, publish, hand back: the three beats. The claim commits before anything is published."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Sequence
from datetime import datetime

from django_durable_tasks import conf
from django_durable_tasks.celery import publisher
from django_durable_tasks.exceptions import BrokerUnavailable
from django_durable_tasks.lifecycle import claims
from django_durable_tasks.lifecycle.connections import own
from django_durable_tasks.ports import Ring

logger = logging.getLogger("django_durable_tasks.broker")


def dispatch(
    queue: str, now: datetime, limit: int, node: uuid.UUID, shards: Collection[int] | None = None, least: int = 0
) -> int:
    """Publish at most so many due rows of a queue, of these shards and from this priority on; return how many it took.

    While the breaker is open nothing is claimed, but for one row now and then that probes the broker.
    """
    if not publisher.breaker.closed():
        limit = min(limit, int(publisher.breaker.may_probe()))
    if limit <= 0:
        return 0
    with own():
        rings = claims.claim(queue, now, limit, node, shards, least)
    return send(rings)


def dispatch_these(ids: Sequence[uuid.UUID], now: datetime, node: uuid.UUID) -> int:
    """Publish those of these rows that are due; return how many the broker took, none while the breaker is open."""
    if not publisher.breaker.closed():
        return 0
    with own():
        rings = claims.claim_these(ids, now, node)
    return send(rings)


def send(rings: Sequence[Ring]) -> int:
    """Publish claimed rows; what the broker does not take is handed back. Return how many it took."""
    try:
        publisher.publish(rings)
    except BrokerUnavailable:
        return _give_back(rings, 0.0)
    except Exception:
        logger.exception("Rows of queue %r cannot be published as things are; they wait.", rings[0].queue)
        return _give_back(rings, conf.settings().RING_AGAIN)
    return len(rings)


def _give_back(rings: Sequence[Ring], delay: float) -> int:
    with own():
        claims.hand_back(rings, delay)
    return 0


def ring(rings: Sequence[Ring]) -> None:
    """Publish rows once more that stay QUEUED whatever the broker does."""
    publisher.ring(rings)


def broker_open() -> bool:
    """Return whether to publish now: the broker took our last messages, or it is time to try it again."""
    return publisher.breaker.closed() or publisher.breaker.may_probe()

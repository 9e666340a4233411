"""Finds the queue of an exchange and a routing key, which a call may name instead of a queue."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from celery import current_app

from django_durable_tasks import registry
from django_durable_tasks.celery.publishing.routing import queues_reached
from django_durable_tasks.exceptions import InvalidOption

logger = logging.getLogger("django_durable_tasks.calls")


def queue_at(exchange: Any, routing_key: str | None) -> str | None:
    """Return the queue that a message to this address reaches; None unless it is exactly one."""
    found = _queues_at(exchange, routing_key)
    return found[0] if len(found) == 1 else None


def _queues_at(exchange: Any, routing_key: str | None) -> list[str]:
    """Return the queues of this address. Missing parts are those of the default queue, as in
    Celery.
    """
    default = current_app.amqp.queues[current_app.conf.task_default_queue]
    name = getattr(exchange, "name", exchange)
    if name is None or not (name or routing_key):
        name = default.exchange.name
    return queues_reached(name, routing_key or default.routing_key)


def queue_of_options(options: Mapping[str, Any]) -> str | None:
    """Return the queue that these options of a call name.

    Raises InvalidOption if their address is not that of exactly one queue. A call by
    django-celery-beat only logs a warning, because an error would end the schedule in beat.
    """
    exchange, routing_key, queue = (
        options.get(name) for name in ("exchange", "routing_key", "queue")
    )
    if exchange is None and routing_key is None:
        return queue
    found = _queues_at(exchange, routing_key)
    if len(found) == 1:
        return found[0]
    queues = f"the queues {', '.join(sorted(found))} are" if found else "no queue of task_queues is"
    fault = f"exchange={exchange!r}, routing_key={routing_key!r}: {queues} bound to them"
    periodic = (options.get("headers") or {}).get("periodic_task_name")
    if periodic is None:
        raise InvalidOption(f"{fault}; name the queue instead, queue=...")
    logger.warning(
        "Periodic task %r of beat has %s; its queue is used instead, or that of its task.",
        periodic,
        fault,
    )
    return queue


def unreachable_beat_entries() -> dict[str, str]:
    """Return the entries of ``beat_schedule`` whose durable task beat cannot call, with the
    reason.
    """
    found = {}
    for name, entry in (current_app.conf.beat_schedule or {}).items():
        if isinstance(entry, Mapping) and registry.find(str(entry.get("task"))) is not None:
            try:
                queue_of_options(entry.get("options") or {})
            except InvalidOption as fault:
                found[str(name)] = str(fault)
    return found

"""Finds the queue of a call from Celery's routing: routes, routers, exchanges and routing keys."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from celery import current_app
from celery.app.routes import MapRoute
from kombu.common import Broadcast

from django_durable_tasks.exceptions import UnknownQueue

_NO_ARGUMENTS: Mapping[str, Any] = {}


def queue_of(
    name: str,
    queue: str | None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = _NO_ARGUMENTS,
) -> str:
    """Return the queue that Celery's routing gives to a call of this task; raises UnknownQueue.

    ``queue`` is the one that the call or the task names; routes do not change it. Routers that are
    functions are called for every call with its arguments, as in Celery.
    """
    app = current_app._get_current_object()
    if routes_by_arguments(queue):
        return _routed(app, name, args, kwargs)
    return _fixed(app, name, queue)


def routes_by_arguments(queue: str | None) -> bool:
    """Return whether calls that name this queue may be routed by their arguments."""
    return queue is None and not _is_static(current_app._get_current_object())


@functools.lru_cache(maxsize=1_000)
def _fixed(app: Any, name: str, queue: str | None) -> str:
    return _routed(app, name, (), _NO_ARGUMENTS) if queue is None else _known(app, name, queue)


@functools.lru_cache(maxsize=8)
def _is_static(app: Any) -> bool:
    """Return whether the routes are a table without functions. Celery also reads them once."""
    return all(isinstance(route, MapRoute) for route in app.amqp.router.routes)


def forget() -> None:
    """Read the routes again; for tests."""
    _fixed.cache_clear()
    _is_static.cache_clear()


def _known(app: Any, name: str, queue: str) -> str:
    try:
        found = app.amqp.queues[queue]
    except KeyError:
        known = ", ".join(sorted(app.amqp.queues))
        raise UnknownQueue(
            f"queue={queue!r} is not in CELERY_TASK_QUEUES, which has: {known}."
        ) from None
    return _name_of(name, found)


def _name_of(name: str, queue: Any) -> str:
    if isinstance(queue, Broadcast):
        raise UnknownQueue(
            f"{name} is routed to {queue.alias or queue.name!r}, which is a Broadcast: every worker"
            " would get the message, and a durable task runs once. Name another queue."
        )
    return str(getattr(queue, "name", queue))


def _routed(app: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    try:
        route = app.amqp.router.route(
            {}, name, tuple(args), dict(kwargs), task_type=app.tasks.get(name)
        )
    except Exception as error:
        raise UnknownQueue(
            f"CELERY_TASK_ROUTES gives no queue for {name}: a router raised {type(error).__name__}:"
            f" {error}"
        ) from error
    if route.get("queue") is not None:
        return _name_of(name, route["queue"])
    return _bound(app, name, route)


def _bound(app: Any, name: str, route: Mapping[str, Any]) -> str:
    """Return the only queue that a route by exchange and routing key reaches."""
    default = app.amqp.queues[app.conf.task_default_queue]
    exchange, key = route.get("exchange"), route.get("routing_key")
    if exchange is None and (key is None or default.exchange.type == "direct"):
        return str(default.name)
    wanted = default.exchange.name if exchange is None else getattr(exchange, "name", exchange)
    found = queues_reached(wanted, key or "")
    if len(found) != 1:
        queues = (
            f"the queues {', '.join(sorted(found))} are"
            if found
            else "no queue of CELERY_TASK_QUEUES is"
        )
        raise UnknownQueue(
            f"CELERY_TASK_ROUTES sends {name} to exchange {wanted!r} with routing key {key!r}, to"
            f" which {queues} bound. A durable task has one queue: name it in the route."
        )
    return _known(app, name, found[0])


def queues_reached(exchange: str, key: str) -> list[str]:
    """Return the names of the queues that a message to this exchange reaches.

    The default exchange delivers to the queue named by the key. Whether that queue exists is not
    checked.
    """
    if not exchange:
        return [key] if key else []
    return [
        str(queue.name)
        for queue in current_app.amqp.queues.values()
        if _reaches(queue, exchange, key)
    ]


def _reaches(queue: Any, exchange: str, key: str) -> bool:
    bindings: Iterable[Any] = (queue, *(queue.bindings or ()))
    return any(
        bound.exchange is not None
        and bound.exchange.name == exchange
        and _matches(bound.exchange.type, bound, key)
        for bound in bindings
    )


def _matches(kind: str, bound: Any, key: str) -> bool:
    if kind == "fanout":
        return True
    pattern = bound.routing_key or ""
    if kind == "direct":
        return bool(pattern == key)
    return kind == "topic" and _topic(pattern).fullmatch(f".{key}") is not None


@functools.lru_cache(maxsize=1_000)
def _topic(pattern: str) -> re.Pattern[str]:
    """Return a pattern for a dot followed by the key: ``*`` is one word, ``#`` zero or more
    words.
    """
    words = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}
    return re.compile(
        "".join(words.get(word, rf"\.{re.escape(word)}") for word in pattern.split("."))
    )

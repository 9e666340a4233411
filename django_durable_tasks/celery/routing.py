"""Finds the queue of a call, of an exchange and a routing key, and the queues that Celery tasks
use.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from celery import current_app
from celery.app.routes import MapRoute
from kombu.common import Broadcast

from django_durable_tasks import conf, registry
from django_durable_tasks.conf import TENANT
from django_durable_tasks.exceptions import InvalidOption, InvalidTarget, UnknownQueue
from django_durable_tasks.models import Node, NodeKind
from django_durable_tasks.store.tables import database

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
        declared = app.amqp.queues[queue]
    except KeyError:
        names = ", ".join(sorted(app.amqp.queues))
        raise UnknownQueue(
            f"queue={queue!r} is not in CELERY_TASK_QUEUES, which has: {names}.", option="queue"
        ) from None
    return _name_of(name, declared)


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
    target = default.exchange.name if exchange is None else getattr(exchange, "name", exchange)
    names = queues_reached(target, key or "")
    if len(names) != 1:
        queues = (
            f"the queues {', '.join(sorted(names))} are"
            if names
            else "no queue of CELERY_TASK_QUEUES is"
        )
        raise UnknownQueue(
            f"CELERY_TASK_ROUTES sends {name} to exchange {target!r} with routing key {key!r}, to"
            f" which {queues} bound. A durable task has one queue: name it in the route."
        )
    return _known(app, name, names[0])


def queues_reached(exchange: str, key: str) -> list[str]:
    """Return the names of the queues that a message to this exchange reaches.

    The default exchange delivers to the queue named by the key. Whether that queue exists is not
    checked.
    """
    if not exchange:
        return [key] if key else []

    def delivers(bound: Any) -> bool:
        if bound.exchange is None or bound.exchange.name != exchange:
            return False
        kind, pattern = bound.exchange.type, bound.routing_key or ""
        if kind == "direct":
            return bool(pattern == key)
        is_match = kind == "topic" and _topic(pattern).fullmatch(f".{key}")
        return kind == "fanout" or bool(is_match)

    return [
        str(queue.name)
        for queue in current_app.amqp.queues.values()
        if any(map(delivers, (queue, *(queue.bindings or ()))))
    ]


@functools.lru_cache(maxsize=1_000)
def _topic(pattern: str) -> re.Pattern[str]:
    """Return a pattern for a dot followed by the key: ``*`` is one word, ``#`` zero or more
    words.
    """
    words = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}
    return re.compile(
        "".join(words.get(word, rf"\.{re.escape(word)}") for word in pattern.split("."))
    )


# Finds the queue of an exchange and a routing key, which a call may name instead of a queue.


logger = logging.getLogger("django_durable_tasks.calls")


def queue_at(exchange: Any, routing_key: str | None) -> str | None:
    """Return the queue that a message to this address reaches; None unless it is exactly one."""
    names = _queues_at(exchange, routing_key)
    return names[0] if len(names) == 1 else None


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
    names = _queues_at(exchange, routing_key)
    if len(names) == 1:
        return names[0]
    queues = f"the queues {', '.join(sorted(names))} are" if names else "no queue of task_queues is"
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
    faults = {}
    for name, entry in (current_app.conf.beat_schedule or {}).items():
        if isinstance(entry, Mapping) and registry.find(str(entry.get("task"))) is not None:
            try:
                queue_of_options(entry.get("options") or {})
            except InvalidOption as fault:
                faults[str(name)] = str(fault)
    return faults


# The queues that Celery tasks use, to which no message of ``queue_message`` is published.
#
# Such a message starts nothing (``callbacks.tasks`` refuses the headers by which it
# would be a task, and Kombu does not decode its body). A worker would still receive and reject it.


# Kombu's default for Redis, where the messages of a priority are in a key of their own.
_REDIS_SEPARATOR = "\x06\x16"
# Queues and exchanges of remote control, of its replies, of `worker_direct`.
_RESERVED = re.compile(r".*\.pidbox|C\.dq2?|.*\.dq2?", re.DOTALL)


def refuse_task_queues(exchange: str, routing_key: str, tenant: str | None = None) -> None:
    """Raise InvalidTarget if Celery tasks use the queue, or one that the exchange reaches.

    ``tenant``: the slug for which ``{tenant}`` stands in API_QUEUES; None: entries with it are not
    considered. Reads the live workers from the database.
    """
    # Celery declares an exchange with the name of the queue for each queue without one.
    names = {exchange, *queues_reached(exchange, routing_key)} if exchange else {routing_key}
    patterns = api_queue_patterns(tenant)
    for name in sorted(names):
        user = user_of(name, configured_queues(), patterns)
        if user is None:
            # Workers that are draining count too.
            workers = Node.objects.using(database()).alive().filter(kind=NodeKind.WORKER)
            rows = workers.values_list("name", "queues")
            worker = next((worker for worker, queues in rows if name in queues), None)
            user = None if worker is None else f"a queue of the worker {worker}"
        if user is not None:
            place = f"exchange {exchange!r}" if exchange else f"queue {routing_key!r}"
            raise InvalidTarget(
                f"{place} is used for Celery tasks ({user}): create a durable task instead."
            )


def api_queue_patterns(tenant: str | None) -> list[str]:
    """Return the entries of API_QUEUES for this tenant."""
    return [
        entry.replace(TENANT, tenant or "")
        for entry in conf.settings().API_QUEUES
        if tenant is not None or TENANT not in entry
    ]


def user_of(name: str, configured: Mapping[str, str], patterns: Iterable[str]) -> str | None:
    """Return what uses this queue or exchange for tasks; None if nothing does."""
    config = current_app.conf
    if (
        name == config.event_exchange
        or name.startswith(f"{config.event_queue_prefix}.")
        or _RESERVED.fullmatch(name)
    ):
        return "commands and events of workers"
    separator = (config.broker_transport_options or {}).get("sep", _REDIS_SEPARATOR)
    for form in (name, re.sub(f"{re.escape(separator)}[0-9]+$", "", name)):
        if form in configured:
            return configured[form]
        if any(fnmatchcase(form, pattern) for pattern in patterns):
            return "DURABLE_TASKS['API_QUEUES']"
    return None


def configured_queues() -> dict[str, str]:
    """Return the queues that settings and registered tasks name, with what names each."""
    app = current_app._get_current_object()
    sources: dict[str, str] = {}
    durable = map(registry.find, registry.names())
    beat = (app.conf.beat_schedule or {}).values()
    for source, queues in (
        ("CELERY_TASK_QUEUES", (value for pair in app.amqp.queues.items() for value in pair)),
        ("CELERY_TASK_DEFAULT_QUEUE", [app.conf.task_default_queue]),
        ("CELERY_TASK_ROUTES", _routed_queues(app)),
        (
            "CELERY_BEAT_SCHEDULE",
            (_queue_of(entry.get("options")) for entry in beat if isinstance(entry, Mapping)),
        ),
        ("DURABLE_TASKS['HTTP_RETRY_QUEUE']", [conf.settings().HTTP_RETRY_QUEUE]),
        ("DURABLE_TASKS['SCHEDULES']", map(_queue_of, (conf.settings().SCHEDULES or {}).values())),
        ("a task", (getattr(task, "queue", None) for task in app.tasks.values())),
        ("a durable task", (task.options.queue for task in durable if task is not None)),
    ):
        for queue in queues:
            if queue is not None:
                sources.setdefault(str(getattr(queue, "name", queue)), source)
    return sources


def _routed_queues(app: Any) -> Iterator[Any]:
    """Yield the queues of CELERY_TASK_ROUTES. What a function returns is not known."""
    for route in app.amqp.router.routes:
        for table in (getattr(route, "map", {}), getattr(route, "patterns", {})):
            for target in table.values():
                yield target if isinstance(target, str) else _queue_of(target)


def _queue_of(options: Any) -> Any:
    return options.get("queue") if isinstance(options, Mapping) else None

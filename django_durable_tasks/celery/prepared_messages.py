"""The messages of durable tasks: their queue, ids and headers, and the form that Kombu's channels
send.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

from celery import current_app, signals
from celery.app.routes import MapRoute
from kombu.common import Broadcast
from kombu.utils.json import dumps, loads

from django_durable_tasks import conf, registry
from django_durable_tasks.conf import TENANT
from django_durable_tasks.exceptions import InvalidOption, InvalidTarget, UnknownQueue
from django_durable_tasks.models import Node, NodeKind
from django_durable_tasks.option_values import checked_name
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.store.tables import database
from django_durable_tasks.task_values import Run

_NO_ARGUMENTS: Mapping[str, Any] = {}


def queue_of(
    name: str,
    queue: str | None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = _NO_ARGUMENTS,
) -> str:
    """Return the queue that Celery's routing gives to a call of this task; raises UnknownQueue, and
    InvalidOption if a task cannot store its name.

    ``queue`` is the one that the call or the task names; routes do not change it. Routers that are
    functions are called for every call with its arguments, as in Celery.
    """
    app = current_app._get_current_object()
    if routes_by_arguments(queue):
        return checked_name("queue", _routed(app, name, args, kwargs))
    return _fixed(app, name, queue)


def routes_by_arguments(queue: str | None) -> bool:
    """Return whether calls that name this queue may be routed by their arguments."""
    return queue is None and not _is_static(current_app._get_current_object())


@functools.lru_cache(maxsize=1_000)
def _fixed(app: Any, name: str, queue: str | None) -> str:
    found = _routed(app, name, (), _NO_ARGUMENTS) if queue is None else _known(app, name, queue)
    return checked_name("queue", found)


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


# The id and the headers of a message: the task, its epoch and the number of the message.
#
# Arguments are not in the message; the worker reads them from the task's row. The Celery id is
# ``<task id>.<epoch>.<number>``, so each message has its own id, and every Celery signal
# identifies the run.


HEADER = "durable_message"
IDEMPOTENCY_HEADER = "durable_idempotency_key"
BATCH_HEADER = "durable_batch"
CONSUMED_FROM = "durable_consumed_from"
"""The header with the queue from which a worker consumed the message. The worker writes it."""
RUN_HEADER = "durable_run"
"""The header with the ``TakenRun`` of a task that this worker took from the database. Its message
exists in the worker only: no broker can deliver an object of this type.
"""


class TakenRun(NamedTuple):
    """A run that the parent process of a worker started, and when, by the monotonic clock."""

    run: Run
    at: float


_BATCH_ID = re.compile(r"batch\.([0-9a-f]{12})", re.ASCII)
# Other publishers may send any id. Only ids of this form are logged and stored.
_SPELLING = re.compile(
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.([0-9]{1,18})\.[0-9]{1,10}", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """The task and epoch that a message refers to."""

    task_id: uuid.UUID
    epoch: int
    celery_id: str


def celery_id_of(message: TaskMessage) -> str:
    """Return the Celery id of this message."""
    if message.batch_of is not None:
        return f"batch.{message.task_id.hex[-12:]}"
    return f"{message.task_id}.{message.epoch}.{message.number}"


def headers_of(message: TaskMessage) -> dict[str, str]:
    """Return the headers of this package. The idempotency key is informative only."""
    if message.batch_of is not None:
        return {BATCH_HEADER: message.batch_of}
    return {
        HEADER: celery_id_of(message),
        IDEMPOTENCY_HEADER: message.idempotency_key or str(message.task_id),
    }


def parse(celery_id: object) -> Envelope | None:
    """Return the envelope of a Celery id; None if it is not the id of a durable task's message."""
    match = _SPELLING.fullmatch(celery_id) if isinstance(celery_id, str) else None
    return None if match is None else Envelope(uuid.UUID(match[1]), int(match[2]), match[0])


def batch_token(celery_id: object) -> bytes | None:
    """Return the token of a batch message, with which the ids of its runs begin; None for any other
    id.
    """
    match = _BATCH_ID.fullmatch(celery_id) if isinstance(celery_id, str) else None
    return None if match is None else bytes.fromhex(match[1])


def of_request(request: Any) -> Envelope | None:
    """Return the envelope of the current request; None if it is not a message of this package.

    Celery sets a header as an attribute of the request, in eager mode as an entry of ``headers``.
    """
    spelled = getattr(request, HEADER, None) or (getattr(request, "headers", None) or {}).get(
        HEADER
    )
    return parse(spelled)


DEFAULT_EXCHANGE = ""
"""Each queue is bound to it by its name only."""
_BODY = '[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
_BATCH_BODY = '[[], %s, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
_HIDDEN = "<durable>"
_ID_LENGTH = 36
_MAX_TEMPLATES = 1_000
"""If there are this many, all are built again."""


@functools.lru_cache(maxsize=1)
def _origin(pid: int) -> str:
    return f"{pid}@{platform.node()}"


def _headers(message: TaskMessage) -> dict[str, Any]:
    """Return the headers of Celery's message protocol 2 and of this package."""
    celery_id = celery_id_of(message)
    return {
        "lang": "py",
        "task": message.name,
        "id": celery_id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [message.timeout, message.soft_timeout],
        "root_id": celery_id,
        "parent_id": None,
        "argsrepr": _HIDDEN,
        "kwargsrepr": _HIDDEN,
        "origin": _origin(os.getpid()),
        "ignore_result": None,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
        **headers_of(message),
        # Inside of the headers, where Celery reads ``request.headers``.
        **({"headers": dict(message.headers)} if message.headers else {}),
    }


def _body(message: TaskMessage) -> str:
    if message.batch_of is None:
        return _BODY
    named = {"queue": message.queue, "name": message.batch_of, "number": message.epoch}
    arguments: str = dumps(named)
    return _BATCH_BODY % arguments


def prepare(channel: Any, driver: str, message: TaskMessage, queue: Any) -> Any:
    """Return the message for this channel, after the receivers of Celery's signal."""
    # Redis delivers the lowest number first, RabbitMQ the highest.
    priority = redis_priority(message) if driver == "redis" else message.priority
    headers, body = _headers(message), _body(message)
    properties = {"correlation_id": headers["id"], "reply_to": "", "delivery_mode": 2}
    if signals.before_task_publish.receivers:
        signals.before_task_publish.send(
            sender=message.name,
            body=tuple(loads(body)),  # as Celery: (args, kwargs, embed)
            exchange=DEFAULT_EXCHANGE,
            routing_key=queue.name,
            headers=headers,
            properties=properties,
            declare=[queue],
            retry_policy=None,
        )
    return channel.prepare_message(body, priority, "application/json", "utf-8", headers, properties)


def redis_priority(message: TaskMessage) -> int:
    """Return the priority in Redis, where the lowest number is delivered first."""
    return 9 - message.priority


class RedisTexts:
    """The messages of one connection to Redis as JSON texts.

    Messages of one task function with the same priority and time limits differ only in their ids
    and their queue, so the text is a template. Encoding each message takes several times as long.
    """

    def __init__(self) -> None:
        self._templates: dict[tuple[Any, ...], str] = {}

    def __len__(self) -> int:
        return len(self._templates)

    def apply(self, message: TaskMessage) -> bool:
        """Return whether there can be a text: no receiver of Celery's signal may change the
        message, and it is for one task, not for a batch.
        """
        return message.batch_of is None and not signals.before_task_publish.receivers

    def text(self, channel: Any, message: TaskMessage, queue: Any) -> str:
        """Return the text of a message for this queue."""
        kind = (
            *(message.name, message.priority, message.timeout, message.soft_timeout),
            bool(message.headers),
        )
        template = self._templates.get(kind)
        if template is None:
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates[kind] = _template(channel, message, queue)
        celery_id = celery_id_of(message)
        key = message.idempotency_key
        # A random UUID, as Kombu's delivery tags are; faster than by ``uuid``.
        digits = os.urandom(16).hex()
        tag = f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
        return template % {
            "celery_id": f'"{celery_id}"',
            # The task id is the first part of the Celery id. A UUID takes long to format.
            "key": f'"{celery_id[:_ID_LENGTH]}"' if not key else encode_basestring_ascii(key),
            "queue": encode_basestring_ascii(queue.name),
            "tag": f'"{tag}"',
            "headers": dumps(message.headers) if message.headers else "",
        }


def _template(channel: Any, message: TaskMessage, queue: Any) -> str:
    """Return the JSON text of such a message with placeholders for what differs."""
    name, key = uuid.uuid4().hex, uuid.uuid4().hex
    headers = {"mark": uuid.uuid4().hex} if message.headers else None
    marked = replace(message, task_id=uuid.uuid4(), idempotency_key=key, headers=headers)
    prepared = prepare(channel, "redis", marked, queue)
    channel._inplace_augment_message(prepared, DEFAULT_EXCHANGE, name)
    places = {
        "celery_id": celery_id_of(marked),
        "key": key,
        "queue": name,
        "tag": prepared["properties"]["delivery_tag"],
    }
    text: str = dumps(prepared).replace("%", "%%")
    for place, mark in places.items():
        text = text.replace(f'"{mark}"', f"%({place})s")
    if headers:
        text = text.replace(dumps(headers), "%(headers)s")
    return text


def queue_names_of(headers: Any) -> tuple[str, ...]:
    """Return the names of the queue from which this was consumed: its own name, then its aliases.
    Empty if unknown.

    ``headers`` are those of a message, or a request, which has them as attributes.
    """
    queue = (
        headers.get(CONSUMED_FROM)
        if isinstance(headers, dict)
        else getattr(headers, CONSUMED_FROM, None)
    )
    if not isinstance(queue, str):
        return ()
    aliases = current_app.amqp.queues.aliases
    return queue, *(alias for alias, declared in list(aliases.items()) if declared.name == queue)

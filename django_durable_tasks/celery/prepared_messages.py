"""The messages of durable tasks: ids, headers, and the form that Kombu's channels send."""

from __future__ import annotations

import functools
import os
import platform
import re
import uuid
from dataclasses import dataclass, replace
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

from celery import current_app, signals
from kombu.utils.json import dumps, loads

from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.task_values import Run

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

"""Messages for other programs: their arguments, checked at the call and before each attempt, and
their publishing, with confirmation where the broker has it.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from kombu.serialization import registry as serializers

from django_durable_tasks import conf
from django_durable_tasks.celery.broker_connection import BrokerConnection, borrowed
from django_durable_tasks.celery.routing import refuse_task_queues
from django_durable_tasks.conf import TENANT
from django_durable_tasks.exceptions import (
    BrokerUnavailable,
    InvalidOption,
    InvalidTarget,
    MessageRejected,
    about,
)
from django_durable_tasks.tasks.options import checked_headers

# The most bytes of a name in AMQP, and characters of a content type, to which a charset is added.
_NAME_MAX, _CONTENT_TYPE_MAX = 255, 200
_EXCHANGE = "exchange:"
_SLUG = "[-a-zA-Z0-9_]+"
# C0 without the tab, DEL, C1 and the separators that some programs take for the end of a line.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
# Celery takes a message with the header `task` for a task, and reads the others of its protocol 2.
# Kombu decompresses a body by `compression`.
_OF_CELERY = frozenset(
    (
        "argsrepr",
        "chain",
        "children",
        "chord",
        "clock",
        "compression",
        "eta",
        "expires",
        "group",
        "group_index",
        "id",
        "ignore_result",
        "kwargsrepr",
        "lang",
        "meth",
        "origin",
        "parent_id",
        "replaced_task_nesting",
        "retries",
        "root_id",
        "shadow",
        "stamped_headers",
        "stamps",
        "task",
        "taskset",
        "timelimit",
    )
)
# RabbitMQ also delivers the message to the queues that these headers name, which QUEUE_ALLOW does
# not check.
_OF_RABBITMQ = frozenset(("cc", "bcc"))
_OF_THIS_PACKAGE = "durable"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMessage:
    """A message for another program. Without an exchange it goes to the queue ``routing_key``."""

    exchange: str
    routing_key: str
    body: str
    content_type: str
    headers: Mapping[str, Any]

    @property
    def place(self) -> str:
        """The destination, for messages."""
        if not self.exchange:
            return f"queue {self.routing_key!r}"
        return f"exchange {self.exchange!r} with routing key {self.routing_key!r}"


def queue_message(
    arguments: Mapping[str, Any], allowed: Collection[str], tenant: str | None = None
) -> QueueMessage:
    """Return the checked message; raises InvalidTarget.

    ``allowed``: the entries of QUEUE_ALLOW, names of queues and ``exchange:NAME``. ``tenant``: the
    slug for which ``{tenant}`` stands in them; None: any tenant.
    """
    queue, exchange = arguments.get("queue"), arguments.get("exchange")
    if (queue is None) == (exchange is None):
        raise InvalidTarget("Give either queue= or exchange= with routing_key=.")
    routing_key = arguments.get("routing_key")
    if queue is not None and routing_key is not None:
        raise InvalidTarget(
            f"routing_key={routing_key!r} needs exchange= instead of queue=.", option="routing_key"
        )
    if exchange is None:
        key = _name("queue", queue)
    else:
        key = "" if routing_key in (None, "") else _name("routing_key", routing_key)
    message = QueueMessage(
        exchange="" if exchange is None else _name("exchange", exchange),
        routing_key=key,
        body=_text(arguments.get("body")),
        content_type=_content_type(arguments.get("content_type"), arguments.get("body")),
        headers=_headers(arguments.get("headers")),
    )
    name = message.routing_key if exchange is None else message.exchange
    if not _is_allowed(name, allowed, tenant, is_exchange=exchange is not None):
        raise InvalidTarget(
            f"{message.place} is not allowed (DURABLE_TASKS['QUEUE_ALLOW']).",
            option="queue" if exchange is None else "exchange",
        )
    return message


def refuse_other_tenants(
    arguments: Mapping[str, Any], allowed: Collection[str], tenant: str
) -> None:
    """Raise InvalidTarget if a named queue or exchange is not allowed to this tenant.

    A reference to a result is not checked here. The worker checks the result.
    """
    for option in ("queue", "exchange"):
        name, is_exchange = arguments.get(option), option == "exchange"
        if isinstance(name, str) and not _is_allowed(
            name, allowed, tenant, is_exchange=is_exchange
        ):
            raise InvalidTarget(
                f"{option} {name!r} is not allowed (DURABLE_TASKS['QUEUE_ALLOW']).", option=option
            )


def _is_allowed(
    name: str, allowed: Collection[str], tenant: str | None, *, is_exchange: bool
) -> bool:
    if not is_exchange and name.startswith(_EXCHANGE):
        return False  # entries with this prefix are exchanges
    entry = f"{_EXCHANGE}{name}" if is_exchange else name
    if entry in allowed:
        return TENANT not in entry
    patterns = [pattern for pattern in allowed if TENANT in pattern]
    if tenant is not None:
        return any(pattern.replace(TENANT, tenant) == entry for pattern in patterns)
    forms = (re.escape(pattern).replace(re.escape(TENANT), _SLUG) for pattern in patterns)
    return any(re.fullmatch(form, entry) for form in forms)


def _name(option: str, value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _NAME_MAX:
        raise InvalidTarget.of(option, value, f"give 1 to {_NAME_MAX} printable characters.")
    return value


@about("body")
def _text(body: object) -> str:
    if isinstance(body, str):
        return body
    try:
        return json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InvalidTarget(f"body cannot be converted to JSON: {error}.") from None


def _content_type(value: object, body: object) -> str:
    if value is None:
        return "text/plain" if isinstance(body, str) else "application/json"
    # A program that forwards the message over HTTP may copy it into a header.
    if (
        not isinstance(value, str)
        or not (value.isascii() and value.isprintable())
        or not 0 < len(value.strip()) <= len(value) <= _CONTENT_TYPE_MAX
    ):
        raise InvalidTarget.of("content_type", value, "give a type such as application/json.")
    return value


@about("headers")
def _headers(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    try:
        headers = checked_headers(value)
    except InvalidOption as invalid:
        raise InvalidTarget(str(invalid)) from None
    for name, content in headers.items():
        # AMQP distinguishes case and Celery does too, but a program in between may not.
        lower = name.strip().lower().replace("-", "_")
        if lower in _OF_CELERY or lower.startswith(_OF_THIS_PACKAGE):
            raise InvalidTarget(
                f"headers has {name!r}, by which Celery or this package could take the message for"
                " a task: give the header another name."
            )
        if lower in _OF_RABBITMQ:
            raise InvalidTarget(
                f"headers has {name!r}, with which RabbitMQ delivers to further queues: create one"
                " message for each queue."
            )
        # A program that forwards the message over HTTP or STOMP may copy it into a header. A value
        # is not part of the error, because it may be a secret.
        if not name.isprintable() or _has_control_characters(content):
            raise InvalidTarget(f"headers: {name!r} or its value has control characters.")
    return headers


def _has_control_characters(value: object) -> bool:
    """Return whether a text in this JSON value has a control character other than a tab."""
    if isinstance(value, str):
        return _CONTROL.search(value) is not None
    if isinstance(value, Mapping):
        return any(map(_has_control_characters, chain(value, value.values())))
    return isinstance(value, list | tuple) and any(map(_has_control_characters, value))


def sent_content_type(content_type: str) -> str:
    """Return the content type of the message, with a charset.

    Kombu decodes a body only if the content type is exactly one of its serializers, such as
    ``application/json`` or pickle. With the parameter, no Celery worker decodes the body, which
    otherwise would start a task by protocol 1 with ``{"task": name}``, and other programs still
    read the same type.
    """
    return content_type if ";" in content_type else f"{content_type}; charset=utf-8"


def stored_message(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as they are stored: with the body as text, because a database may
    change the order of keys in JSON.
    """
    body = arguments.get("body")
    if isinstance(body, str):
        return dict(arguments)
    kind = _content_type(arguments.get("content_type"), body)
    return {**arguments, "body": _text(body), "content_type": kind}


# The connections are those of the publisher, but the channel is a new one: RabbitMQ closes a
# channel after an error, and a returned message leaves its confirmation unread.


_PERSISTENT = 2


def publish(message: QueueMessage, message_id: uuid.UUID, tenant: str | None = None) -> bool:
    """Publish the message once; return whether the broker has confirmed it. ``tenant``: the slug
    of the task's tenant, for which ``{tenant}`` stands in API_QUEUES.

    Raises MessageRejected if the broker refuses it or no queue would receive it, BrokerUnavailable
    if the broker does not respond, and InvalidTarget for a queue of Celery tasks.
    """
    refuse_task_queues(message.exchange, message.routing_key, tenant)
    try:
        with borrowed() as broker:
            return _publish(broker, message, str(message_id))
    except (MessageRejected, InvalidTarget):
        raise
    except Exception as error:
        raise BrokerUnavailable(
            f"The broker did not take a message for {message.place}: {type(error).__name__}."
        ) from error


def _publish(broker: BrokerConnection, message: QueueMessage, message_id: str) -> bool:
    content_type = sent_content_type(message.content_type)
    if content_type in serializers.type_to_name:
        raise InvalidTarget(f"content_type={content_type!r} is one that Celery workers decode.")
    channel = broker.connection.channel() if broker.driver == "amqp" else broker.channel
    prepared = channel.prepare_message(
        message.body,
        0,
        content_type,
        "utf-8",
        {**message.headers, "durable-task-id": message_id},
        {"message_id": message_id, "delivery_mode": _PERSISTENT},
    )
    try:
        if broker.driver == "amqp":
            # A message that no queue receives is returned before the confirmation, which raises a
            # channel error.
            channel.confirm_select()
            channel.basic_publish_confirm(
                prepared,
                exchange=message.exchange,
                routing_key=message.routing_key,
                mandatory=True,
                confirm_timeout=conf.settings().PUBLISH_TIMEOUT,
            )
            return True
        _check_bound(channel, message)
        channel.basic_publish(prepared, exchange=message.exchange, routing_key=message.routing_key)
    except broker.failures as error:
        if broker.is_lost(error):
            raise
        raise MessageRejected(f"{message.place}: {type(error).__name__}: {error}") from error
    finally:
        if broker.driver == "amqp" and channel.is_open and not broker.unusable:
            # If it fails, the connection is unusable, so that it is not shared.
            try:
                channel.close()
            except broker.failures:
                broker.unusable = True
    return False


def _check_bound(channel: Any, message: QueueMessage) -> None:
    """Refuse an exchange without a matching queue, which Kombu's own transports ignore."""
    if not message.exchange:
        return
    is_routed = getattr(channel, "is_routed", None)
    if is_routed is not None:  # a transport that stores bindings with their types
        if not is_routed(message.exchange, message.routing_key, message.headers):
            raise MessageRejected(f"{message.place}: no queue is bound to it.")
        return
    try:
        table = channel.get_table(message.exchange)
        if message.exchange not in channel.state.exchanges:
            # These brokers do not store the type of an exchange. Only topics have patterns.
            kind = "topic" if any(pattern for _, pattern, _ in table) else "direct"
            channel.exchange_declare(message.exchange, kind, durable=True)
        bound = channel.typeof(message.exchange).lookup(
            table, message.exchange, message.routing_key, None
        )
    except KeyError:
        bound = []
    if not bound:
        raise MessageRejected(f"{message.place}: no queue is bound to it.")

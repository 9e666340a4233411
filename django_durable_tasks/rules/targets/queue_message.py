"""The arguments of a queue message, checked: at the call, and again before each attempt."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from django_durable_tasks.exceptions import InvalidOption, InvalidTarget
from django_durable_tasks.rules.tasks.options import checked_headers

_NAME_MAX = 255
_EXCHANGE = "exchange:"
TENANT = "{tenant}"
"""Stands for the slug of the tenant in an entry of QUEUE_ALLOW or API_QUEUES."""
_SLUG = "[-a-zA-Z0-9_]+"


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
        raise InvalidTarget(f"routing_key={routing_key!r} needs exchange= instead of queue=.")
    message = QueueMessage(
        exchange="" if exchange is None else _name("exchange", exchange),
        routing_key=_name("queue", queue) if exchange is None else _name_or_empty(routing_key),
        body=_text(arguments.get("body")),
        content_type=_content_type(arguments.get("content_type"), arguments.get("body")),
        headers=_headers(arguments.get("headers")),
    )
    entry = message.routing_key if exchange is None else f"{_EXCHANGE}{message.exchange}"
    if not _is_allowed(entry, allowed, tenant):
        raise InvalidTarget(f"{message.place} is not allowed (DURABLE_TASKS['QUEUE_ALLOW']).")
    return message


def refuse_other_tenants(
    arguments: Mapping[str, Any], allowed: Collection[str], tenant: str
) -> None:
    """Raise InvalidTarget if a named queue or exchange is not allowed to this tenant.

    A reference to a result is not checked here. The worker checks the result.
    """
    for option, prefix in (("queue", ""), ("exchange", _EXCHANGE)):
        name = arguments.get(option)
        if isinstance(name, str) and not _is_allowed(f"{prefix}{name}", allowed, tenant):
            raise InvalidTarget(f"{option} {name!r} is not allowed (DURABLE_TASKS['QUEUE_ALLOW']).")


def _is_allowed(entry: str, allowed: Collection[str], tenant: str | None) -> bool:
    if entry in allowed:
        return TENANT not in entry
    patterns = [pattern for pattern in allowed if TENANT in pattern]
    if tenant is not None:
        return any(pattern.replace(TENANT, tenant) == entry for pattern in patterns)
    forms = (re.escape(pattern).replace(re.escape(TENANT), _SLUG) for pattern in patterns)
    return any(re.fullmatch(form, entry) for form in forms)


def _name(option: str, value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _NAME_MAX:
        raise InvalidTarget(f"{option}={value!r}: give 1 to {_NAME_MAX} printable characters.")
    return value


def _name_or_empty(value: object) -> str:
    return "" if value in (None, "") else _name("routing_key", value)


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
    if not isinstance(value, str) or not value.isascii() or not 0 < len(value) <= _NAME_MAX:
        raise InvalidTarget(f"content_type={value!r}: give a type such as application/json.")
    return value


def _headers(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    try:
        return checked_headers(value)
    except InvalidOption as invalid:
        raise InvalidTarget(str(invalid)) from None


def stored_message(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as they are stored: with the body as text, because a database may
    change the order of keys in JSON.
    """
    body = arguments.get("body")
    if isinstance(body, str):
        return dict(arguments)
    kind = _content_type(arguments.get("content_type"), body)
    return {**arguments, "body": _text(body), "content_type": kind}

"""Declarations of queues, exchanges and bindings, and which queues a message goes to.

Everything here uses the connection of the thread to the database ``alias``, and so takes part in
the transaction of the caller.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from amqp.exceptions import InvalidCommand, NotFound, PreconditionFailed
from django.db import connections, models, transaction
from django.db.models import Q

from django_durable_tasks.contrib.database_transport.models import (
    LONGEST_NAME,
    Binding,
    Consumer,
    Exchange,
    Message,
    Queue,
)
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.store.clock import after
from django_durable_tasks.store.dialects import POSTGRESQL, sql

TYPES = frozenset({"direct", "topic", "fanout", "headers"})
_DEFAULT_TYPE = "direct"
# The code of AMQP for an entity that does not exist, and for one that exists with another type.
_NOT_FOUND, _PRECONDITION_FAILED = 404, 406
# Messages that one statement deletes, so that none holds locks for long.
_DELETED_AT_ONCE = 1000
# Above this number the length of a queue is not counted, because a declaration returns it.
MOST_COUNTED = 10_000


def checked_name(kind: str, name: str) -> str:
    """Return the name of a queue, an exchange or a key; raise ValueError if it is too long."""
    if len(name) > LONGEST_NAME:
        raise ValueError(
            f"The {kind} {name[:40]!r}… has {len(name)} characters; durable-database:// stores at"
            f" most {LONGEST_NAME}. Choose a shorter one."
        )
    return name


def not_found(kind: str, name: str) -> NotFound:
    """Return the error of AMQP for a queue or an exchange that does not exist."""
    return NotFound(
        f"NOT_FOUND - no {kind} {name!r}", (50, 10), f"Channel.{kind}_declare", _NOT_FOUND
    )


@dataclass(slots=True)
class Declarations:
    """What this process declared in one database, and the statements that store it.

    A transaction that is rolled back takes a declaration with it, and the reaper of another process
    drops a queue whose consumer was frozen for too long. Both are then declared again from here.
    """

    alias: str
    exchanges: dict[str, str] = field(default_factory=dict)
    queues: dict[str, dict[str, Any]] = field(default_factory=dict)
    bindings: dict[str, dict[str, tuple[str, str, dict[str, Any]]]] = field(default_factory=dict)

    def declare_exchange(self, name: str, kind: str) -> None:
        """Declare an exchange; raise ChannelError 406 if it exists with another type."""
        checked_name("exchange", name)
        if kind not in TYPES:
            raise InvalidCommand(
                f"COMMAND_INVALID - unknown exchange type {kind!r}",
                (40, 10),
                "Channel.exchange_declare",
                503,
            )
        row, _ = Exchange.objects.using(self.alias).get_or_create(
            name=name, defaults={"type": kind}
        )
        if row.type != kind:
            raise PreconditionFailed(
                f"PRECONDITION_FAILED - exchange {name!r} is of type {row.type!r}, not {kind!r}",
                (40, 10),
                "Channel.exchange_declare",
                _PRECONDITION_FAILED,
            )
        self.exchanges[name] = kind

    def type_of(self, exchange: str) -> str:
        """Return the type of an exchange; one that does not exist is direct and has no binding."""
        if exchange not in self.exchanges:
            stored = Exchange.objects.using(self.alias).filter(name=exchange)
            kind = stored.values_list("type", flat=True).first()
            if kind is None:
                return _DEFAULT_TYPE
            self.exchanges[exchange] = kind
        return self.exchanges[exchange]

    def has_exchange(self, name: str) -> bool:
        """Return whether the exchange is stored."""
        return Exchange.objects.using(self.alias).filter(name=name).exists()

    def _exchange_id(self, name: str) -> int | None:
        stored = Exchange.objects.using(self.alias).filter(name=name)
        return stored.values_list("pk", flat=True).first()

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange and its bindings."""
        self.exchanges.pop(name, None)
        for bound in self.bindings.values():
            for digest in [digest for digest, (exchange, *_) in bound.items() if exchange == name]:
                del bound[digest]
        with transaction.atomic(using=self.alias):
            ids = list(Exchange.objects.using(self.alias).filter(name=name).values_list("pk"))
            for (pk,) in ids:
                Binding.objects.using(self.alias).filter(exchange=pk).delete()
            Exchange.objects.using(self.alias).filter(name=name).delete()

    def declare_queue(self, name: str, options: dict[str, Any]) -> int:
        """Declare a queue and return its id. A declaration is a use, which postpones its expiry."""
        checked_name("queue", name)
        expires = options.get("expires")
        until = None if expires is None else after(expires / 1000)
        values = {**options, "unused_until": until}
        row, created = Queue.objects.using(self.alias).get_or_create(name=name, defaults=values)
        if not created and expires is not None:
            Queue.objects.using(self.alias).filter(pk=row.pk).update(**values)
        self.queues[name] = options
        return int(row.pk)

    def queue_id(self, name: str) -> int | None:
        """Return the id of a queue; None if it is not stored."""
        return (
            Queue.objects.using(self.alias).filter(name=name).values_list("pk", flat=True).first()
        )

    def bind(
        self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any] | None
    ) -> None:
        """Bind a queue to an exchange; raise ChannelError 404 if one of them does not exist."""
        checked_name("routing key", routing_key)
        arguments = arguments or {}
        exchange_id = self._exchange_id(exchange)
        if exchange_id is None:
            raise not_found("exchange", exchange)
        queue_id = self.queue_id(queue)
        if queue_id is None:
            raise not_found("queue", queue)
        digest = _digest(exchange_id, queue_id, routing_key, arguments)
        Binding.objects.using(self.alias).get_or_create(
            digest=digest,
            defaults={
                "exchange": exchange_id,
                "queue": queue_id,
                "routing_key": routing_key,
                "arguments": arguments,
            },
        )
        key = json.dumps([exchange, routing_key, arguments], sort_keys=True, default=str)
        self.bindings.setdefault(queue, {})[key] = exchange, routing_key, arguments

    def unbind(
        self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any] | None
    ) -> None:
        """Delete a binding."""
        key = json.dumps([exchange, routing_key, arguments or {}], sort_keys=True, default=str)
        self.bindings.get(queue, {}).pop(key, None)
        exchange_id = self._exchange_id(exchange)
        queue_id = self.queue_id(queue)
        if exchange_id is not None and queue_id is not None:
            digest = _digest(exchange_id, queue_id, routing_key, arguments or {})
            Binding.objects.using(self.alias).filter(digest=digest).delete()

    def all_bindings(self) -> list[tuple[str, str, str]]:
        """Return every stored binding as queue, exchange and routing key."""
        queues = dict(Queue.objects.using(self.alias).values_list("pk", "name"))
        exchanges = dict(Exchange.objects.using(self.alias).values_list("pk", "name"))
        rows = Binding.objects.using(self.alias).values_list("queue", "exchange", "routing_key")
        return [
            (queues[queue], exchanges[exchange], key)
            for queue, exchange, key in rows
            if queue in queues and exchange in exchanges
        ]

    def delete_queue(self, name: str) -> int | None:
        """Delete a queue with its bindings and messages; return its id."""
        self.queues.pop(name, None)
        self.bindings.pop(name, None)
        queue_id = self.queue_id(name)
        if queue_id is not None:
            drop_queues(self.alias, [queue_id])
        return queue_id

    def declare_again(self, queues: Iterable[str]) -> None:
        """Store again what this process declared for these queues."""
        for queue in queues:
            self.declare_queue(queue, self.queues.get(queue, {}))
            for exchange, routing_key, arguments in list(self.bindings.get(queue, {}).values()):
                self.declare_exchange(exchange, self.exchanges.get(exchange, _DEFAULT_TYPE))
                self.bind(queue, exchange, routing_key, arguments)

    # Publishing.

    def publish(
        self,
        exchange: str,
        routing_key: str,
        headers: Mapping[str, Any],
        stored: StoredMessage,
    ) -> int:
        """Insert a message into each queue that the exchange routes it to; return their number.

        The default exchange creates a queue that does not exist, so that no task is lost.
        """
        number = self._insert(exchange, routing_key, headers, stored)
        if number:
            return number
        if not exchange:
            self.declare_queue(routing_key, self.queues.get(routing_key, {}))
        else:
            declared = self._declared_here(exchange, routing_key, headers)
            if not declared:
                return 0
            self.declare_again(declared)
        return self._insert(exchange, routing_key, headers, stored)

    def _declared_here(
        self, exchange: str, routing_key: str, headers: Mapping[str, Any]
    ) -> list[str]:
        kind = self.exchanges.get(exchange)
        return [
            queue
            for queue, bound in self.bindings.items()
            if any(
                kind is not None
                and name == exchange
                and matches(kind, key, arguments, routing_key, headers)
                for name, key, arguments in bound.values()
            )
        ]

    def _insert(
        self,
        exchange: str,
        routing_key: str,
        headers: Mapping[str, Any],
        stored: StoredMessage,
    ) -> int:
        connection = connections[self.alias]
        direct = not exchange or self.type_of(exchange) == "direct"
        if direct and connection.vendor == POSTGRESQL:
            with connection.cursor() as cursor:
                cursor.execute(
                    sql("transport_publish", POSTGRESQL),
                    {
                        "rank": stored.rank,
                        "body": stored.body,
                        "ttl": stored.ttl,
                        "queue": None if exchange else routing_key,
                        "exchange": exchange or None,
                        "key": routing_key,
                    },
                )
                return int(cursor.rowcount)
        queues = Queue.objects.using(self.alias).filter(_in_use())
        if exchange:
            queues = queues.filter(pk__in=self.routed_to(exchange, routing_key, headers))
        else:
            queues = queues.filter(name=routing_key)
        rows = []
        for queue, message_ttl in queues.values_list("pk", "message_ttl"):
            ttls = [ttl for ttl in (stored.ttl, message_ttl) if ttl is not None]
            expires_at: Any = after(min(ttls) / 1000) if ttls else None
            rows.append(
                Message(queue=queue, rank=stored.rank, body=stored.body, expires_at=expires_at)
            )
        Message.objects.using(self.alias).bulk_create(rows)
        return len(rows)

    def routed_to(self, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> list[int]:
        """Return the ids of the queues to which an exchange routes such a message."""
        kind = self.type_of(exchange)
        bindings = Binding.objects.using(self.alias).filter(
            exchange__in=Exchange.objects.using(self.alias).filter(name=exchange).values("pk")
        )
        if kind == "direct":
            bindings = bindings.filter(routing_key=routing_key)
        return [
            queue
            for queue, key, arguments in bindings.values_list("queue", "routing_key", "arguments")
            if matches(kind, key, arguments, routing_key, headers)
        ]


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as its row has it. ``ttl`` is in milliseconds."""

    rank: int
    body: str
    ttl: int | None


def _digest(exchange: int, queue: int, routing_key: str, arguments: Mapping[str, Any]) -> str:
    content = json.dumps([exchange, queue, routing_key, arguments], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def _living() -> Any:
    return Consumer.objects.filter(expires_at__gt=DatabaseNow()).values("pk")


def _in_use() -> Q:
    """Return the condition of queues that have not expired."""
    return (
        Q(unused_until__isnull=True) | Q(unused_until__gt=DatabaseNow()) | Q(consumer__in=_living())
    )


def expired_queues(alias: str) -> list[int]:
    """Return queues that were not used for their ``expires``, and automatically deleted ones whose
    consumer has gone.
    """
    gone = Q(auto_delete=True, consumer__isnull=False) & ~Q(consumer__in=_living())
    queues = Queue.objects.using(alias).filter(~_in_use() | gone)
    return list(queues.values_list("pk", flat=True)[:_DELETED_AT_ONCE])


def drop_queues(alias: str, ids: Sequence[int]) -> None:
    """Delete queues with their bindings and messages."""
    if not ids:
        return
    Binding.objects.using(alias).filter(queue__in=ids).delete()
    Queue.objects.using(alias).filter(pk__in=ids).delete()
    delete_in_parts(Message.objects.using(alias).filter(queue__in=ids))


def delete_in_parts(messages: models.QuerySet[Message]) -> int:
    """Delete messages, at most 1,000 with one statement; return how many."""
    deleted = 0
    while ids := list(messages.values_list("pk", flat=True)[:_DELETED_AT_ONCE]):
        # The conditions hold again: a message may have been claimed meanwhile.
        number, _ = messages.filter(pk__in=ids).delete()
        deleted += number
        if not number:
            break
    return deleted


def ready_messages(alias: str, queue: int) -> models.QuerySet[Message]:
    """Return the messages of a queue that no consumer holds and that have not expired."""
    return Message.objects.using(alias).filter(
        Q(expires_at__isnull=True) | Q(expires_at__gt=DatabaseNow()),
        queue=queue,
        consumer__isnull=True,
    )


def length(alias: str, queue: int) -> int:
    """Return how many messages are ready, counted up to ``MOST_COUNTED``."""
    return ready_messages(alias, queue)[:MOST_COUNTED].count()


def matches(
    kind: str,
    key: str,
    arguments: Mapping[str, Any],
    routing_key: str,
    headers: Mapping[str, Any],
) -> bool:
    """Return whether a binding of an exchange of this type takes a message."""
    match kind:
        case "direct":
            return key == routing_key
        case "fanout":
            return True
        case "topic":
            return _topic_matches(tuple(key.split(".")), tuple(routing_key.split(".")))
        case _:
            expected = {
                name: value for name, value in arguments.items() if not name.startswith("x-")
            }
            found = [name in headers and headers[name] == value for name, value in expected.items()]
            return any(found) if arguments.get("x-match") == "any" else all(found)


@functools.lru_cache(maxsize=10_000)
def _topic_matches(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Match as AMQP defines it: ``*`` is one word, ``#`` is any number of words, also none."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_topic_matches(pattern[1:], words[start:]) for start in range(len(words) + 1))
    if not words:
        return False
    return pattern[0] in ("*", words[0]) and _topic_matches(pattern[1:], words[1:])

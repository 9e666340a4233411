"""Functions of the tests of the filesystem transport."""

# mypy: disable-error-code="no-untyped-call"

from contextlib import suppress
from pathlib import Path
from typing import Any

from kombu import Connection, Exchange, Producer, Queue

RUBBISH = [
    b"",
    b"{",
    b"\xff\xfe",
    b"null",
    b"[]",
    b"{}",
    b'{"properties": "x"}',
    b'{"properties": {}}',
    b'{"properties": {"delivery_tag": []}, "body": "e30="}',
    b'{"properties": {"delivery_tag": "1", "body_encoding": "base64"}, "body": 5}',
    b'{"properties": {"delivery_tag": "1", "body_encoding": "rot13"}, "body": "x"}',
    b'{"properties": {"delivery_tag": "1"}, "headers": [1]}',
    b'{"properties": {"delivery_tag": "1", "delivery_info": [1]}}',
    b'{"__type__": "uuid", "__value__": "x"}',
    b"[" * 100_000,
]


def publish(connection: Connection, queue: str, *bodies: object, **options: Any) -> None:
    producer = Producer(connection)
    for body in bodies:
        producer.publish(body, routing_key=queue, serializer="json", **options)


def take(connection: Connection, queue: str) -> Any:
    message = connection.default_channel.basic_get(queue, no_ack=True)
    return message and message.decode()


def take_all(connection: Connection, queue: str) -> list[Any]:
    return list(iter(lambda: take(connection, queue), None))


def size(connection: Connection, queue: str) -> int:
    return int(connection.default_channel.queue_declare(queue, passive=True).message_count)


def noted(notebook: Path) -> list[int]:
    return [int(line) for line in notebook.read_text().splitlines()] if notebook.exists() else []


def queue_folder(folder: Path, queue: str) -> Path:
    return folder / "queues" / queue


def drained(connection: Connection) -> bool:
    with suppress(TimeoutError):
        connection.drain_events(timeout=0.1)
    return True


def bound(connection: Connection, exchange: Exchange, name: str, **options: Any) -> Queue:
    queue = Queue(name, exchange=exchange, routing_key=name, **options)(connection.default_channel)
    queue.declare()
    return queue

"""Queues that a broker rejects although it is available, in each way of each broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import redis
from celery import Celery
from django.conf import settings
from kombu import Exchange, Queue

from tests.backends import broker_settings

Way = Callable[[str], tuple[Queue, Callable[[Celery], None]]]


def another_kind(name: str) -> tuple[Queue, Callable[[Celery], None]]:
    """It exists as a quorum queue, and Celery declares a classic one: 406."""

    def exists(app: Celery) -> None:
        with app.connection_for_write() as connection:
            Queue(name, queue_arguments={"x-queue-type": "quorum"})(
                connection.channel()
            ).queue_declare()

    return Queue(name), exists


def full(name: str) -> tuple[Queue, Callable[[Celery], None]]:
    """Its maximum length is one message: basic.nack."""

    def filled(app: Celery) -> None:
        with app.connection_for_write() as connection:
            channel = connection.channel()
            queue(channel).declare()
            channel.basic_publish(
                channel.prepare_message("x", content_encoding="utf-8"),
                exchange="",
                routing_key=name,
            )

    queue = Queue(name, queue_arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    return queue, filled


def missing(name: str) -> tuple[Queue, Callable[[Celery], None]]:
    """It does not exist and may not be declared: basic.return."""
    return Queue(name, no_declare=True), lambda app: None


def unknown_exchange_type(name: str) -> tuple[Queue, Callable[[Celery], None]]:
    """The broker closes the connection at its declaration: 503."""
    return Queue(name, Exchange(f"{name}-x", type="x-of-no-plugin")), lambda app: None


def another_type(name: str) -> tuple[Queue, Callable[[Celery], None]]:
    """Its key in Redis is not a list."""

    def spoil(app: Celery) -> None:
        with redis.Redis.from_url(broker_settings("redis", Path())[0]) as client:
            for key in _keys(name):
                client.set(key, "no list", ex=120)

    return Queue(name), spoil


def _keys(name: str) -> list[str]:
    return [f"{name}{priority}" for priority in ("", "\x06\x163", "\x06\x166", "\x06\x169")]


def repair(name: str, broker: str, app: Celery) -> None:
    """Remove the obstacle of this queue."""
    if broker == "redis":
        with redis.Redis.from_url(broker_settings("redis", Path())[0]) as client:
            client.delete(*_keys(name))
        return
    with app.connection_for_write() as connection:
        Queue(name)(connection.channel()).delete()


def a_file(name: str) -> tuple[Queue, Callable[[Celery], None]]:
    """A file exists in place of its folder."""

    def spoil(app: Celery) -> None:
        folder = Path(broker_settings("filesystem", settings.FOLDER)[1]["data_folder"]) / "queues"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()

    return Queue(name), spoil


def another_exchange_type(name: str) -> tuple[Queue, Callable[[Celery], None]]:
    """Its exchange exists with another type: 406."""

    def exists(app: Celery) -> None:
        with app.connection_for_write() as connection:
            Exchange(f"{name}-x", type="fanout")(connection.channel()).declare()

    return Queue(name, Exchange(f"{name}-x", type="topic")), exists


def long_exchange_name(name: str) -> tuple[Queue, Callable[[Celery], None]]:
    """The name of its exchange does not fit into the column: ValueError."""
    return Queue(name, Exchange(f"{name}-{'x' * 300}")), lambda app: None


WAYS: dict[str, list[Way]] = {
    "rabbitmq": [another_kind, full, missing, unknown_exchange_type],
    "redis": [another_type],
    "filesystem": [a_file],
    "database": [another_exchange_type, long_exchange_name, unknown_exchange_type],
}

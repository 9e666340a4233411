"""The servers of a run, and the databases and queues that it creates on them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import psycopg
import redis
from kombu import Connection
from psycopg import sql

BROKERS = ("redis", "rabbitmq", "database")
MARK = "durable-benchmarks"
DEFAULTS = {
    "postgresql": "postgresql://postgres@127.0.0.1:5432/postgres",
    "redis": "redis://127.0.0.1:6379/14",
    "rabbitmq": "amqp://guest:guest@127.0.0.1:5672//",
}


class NotMeasurable(Exception):
    """A server is missing or must not be used. The message contains the remedy."""


def default_url(name: str) -> str:
    """Return the address in TEST_<NAME>_URL (for Redis with database 14), or the default address of
    the server.
    """
    given = os.environ.get(f"TEST_{name.upper()}_URL")
    if given and name == "redis" and not urlsplit(given).path.strip("/"):
        return f"{given.rstrip('/')}/14"
    return given or DEFAULTS[name]


@dataclass(frozen=True)
class Servers:
    """The addresses of the servers, and the names that this run uses on them."""

    postgresql: str
    redis: str
    rabbitmq: str
    run: str

    def broker(self, name: str) -> str:
        """Return the address of a broker."""
        own = "durable-database://default"
        return {"redis": self.redis, "rabbitmq": self.rabbitmq, "database": own}[name]

    def database(self, name: str) -> str:
        """Return the address of a database of this run."""
        return urlunsplit(urlsplit(self.postgresql)._replace(path=f"/bench_{name}_{self.run}"))

    def queue(self, name: str) -> str:
        """Return the name of a queue of this run."""
        return f"bench-{name}-{self.run}"

    def make_database(self, name: str) -> str:
        """Create an empty database, replacing an existing one; return its address."""
        with psycopg.connect(self.postgresql, autocommit=True) as connection:
            self._drop(connection, f"bench_{name}_{self.run}")
            connection.execute(
                sql.SQL("CREATE DATABASE {}").format(sql.Identifier(f"bench_{name}_{self.run}"))
            )
        return self.database(name)

    @staticmethod
    def _drop(connection: psycopg.Connection, name: str) -> None:
        connection.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )

    def clear_broker(self, name: str) -> None:
        """Delete the messages and queues of this run from a broker."""
        if name == "database":
            return  # the database is made anew
        if name == "redis":
            with redis.Redis.from_url(self.redis) as client:
                client.flushdb()
                client.set(MARK, self.run)
            return
        with Connection(self.rabbitmq) as connection:
            for peer in ("ours", "celery"):
                channel = connection.channel()
                with suppress(*connection.channel_errors):
                    channel.queue_delete(self.queue(peer))
                    channel.exchange_delete(self.queue(peer))

    def remove_all(self) -> None:
        """Delete everything that this run created on the servers."""
        with psycopg.connect(self.postgresql, autocommit=True) as connection:
            like = f"bench\\_%\\_{self.run}"
            for (name,) in connection.execute(
                "SELECT datname FROM pg_database WHERE datname LIKE %s", [like]
            ):
                self._drop(connection, name)
        self.clear_broker("rabbitmq")
        with redis.Redis.from_url(self.redis) as client:
            client.flushdb()


def _check(servers: Servers) -> None:
    try:
        psycopg.connect(servers.postgresql, connect_timeout=3).close()
        with redis.Redis.from_url(servers.redis, socket_connect_timeout=3) as client:
            number, marked = client.dbsize(), client.exists(MARK)
        with Connection(servers.rabbitmq, connect_timeout=3) as connection:
            connection.connect()
    except Exception as error:
        raise NotMeasurable(f"A server does not answer: {type(error).__name__}: {error}") from error
    if number and not marked:
        address = urlsplit(servers.redis)
        raise NotMeasurable(
            f"Redis database {address.path.strip('/') or 0} at {address.hostname} has {number} keys"
            " that are not ours; name an empty one with --redis redis://HOST:PORT/NUMBER."
        )


@contextmanager
def servers_for_a_run(postgresql: str, redis_url: str, rabbitmq: str) -> Iterator[Servers]:
    """Yield the servers with the names of this run, and clean up afterwards. Raises NotMeasurable."""
    servers = Servers(postgresql, redis_url, rabbitmq, secrets.token_hex(3))
    _check(servers)
    try:
        yield servers
    finally:
        servers.remove_all()


def depth(servers: Servers, broker: str, queue: str) -> int:
    """Return the number of messages in a queue. Tasks in their own database have none."""
    if broker == "database":
        return 0
    if broker == "redis":
        with redis.Redis.from_url(servers.redis) as client:
            # Kombu uses one list per priority, named after the queue.
            return sum(client.llen(key) for key in client.scan_iter(f"{queue}*", _type="list"))
    with Connection(servers.rabbitmq) as connection:
        try:
            return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
        except connection.channel_errors:
            return 0

"""The Redis client of a process, for the due index and for notifications: short timeouts and a
pause after a failure, so that callers do not wait for Redis.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from django.db import connections

from django_durable_tasks import conf
from django_durable_tasks.process_state import CircuitBreaker

logger = logging.getLogger("django_durable_tasks.due_index")
T = TypeVar("T")

# Seconds that a request waits at most: a web request may wait that long once in an outage.
WAIT = 0.5
# Seconds after a failure in which requests return their default at once.
PAUSE = 5.0
_url: str | None = None


def use_url(url: str | None) -> None:
    """Use the Redis at ``url`` in this process instead of REDIS_URL; None restores the setting."""
    global _url
    _url = url


def url() -> str | None:
    """Return the address of Redis; None if none is configured."""
    return _url or conf.settings().REDIS_URL


def scope() -> str:
    """Return the prefix of this installation's keys in Redis: database and region."""
    settings = conf.settings()
    name = connections.settings[settings.DATABASE].get("NAME") or settings.DATABASE
    return f"durable:{{{name}:{settings.REGION}}}"


class RedisConnection:
    """A Redis client with a circuit breaker. Each change of its state is logged once."""

    def __init__(self, address: str) -> None:
        self.client, self._errors = _client(address, WAIT)
        self.why = ""
        self._breaker = CircuitBreaker(lambda: PAUSE, lambda: 4 * WAIT)

    def open(self) -> bool:
        """Return whether the last request succeeded."""
        return self._breaker.closed()

    def call(self, act: Callable[[Any], T], otherwise: T, *, probe: bool = True) -> T:
        """Return the result of ``act`` for the client, or ``otherwise`` while Redis is unavailable.
        Never raises RedisError.

        With ``probe=False`` no request is made after a failure until another caller succeeds. This
        is for callers that must not wait.
        """
        if not (self._breaker.allows() if probe else self.open()):
            return otherwise
        try:
            result = act(self.client)
        except self._errors as error:
            self.why = f"Redis does not serve ({type(error).__name__})"
            if self._breaker.failed():
                # The text of the error is not logged: it may contain the address with its password.
                logger.error(
                    "%s; due tasks are found by polling every %g s.", self.why, conf.settings().POLL
                )
            return otherwise
        if self._breaker.succeeded():
            self.why = ""
            logger.warning(
                "The connection to Redis is restored; the due index and notifications use it again."
            )
        return result


def _client(address: str, read: float) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return a client and its errors.

    ``redis`` is imported here. Otherwise every command of a project loads it, also without
    REDIS_URL.
    """
    import redis  # noqa: PLC0415
    from redis.backoff import NoBackoff  # noqa: PLC0415
    from redis.retry import Retry  # noqa: PLC0415

    patience = {
        "socket_connect_timeout": WAIT,
        "socket_timeout": read,
        "retry": Retry(NoBackoff(), 0),
        # Bytes that are not UTF-8 are decoded to surrogates, which encode to the same bytes, so
        # that such entries can be removed.
        "decode_responses": True,
        "encoding_errors": "surrogateescape",
    }
    return redis.Redis.from_url(address, **patience), (redis.RedisError, OSError)


def listening_client(address: str) -> Any:
    """Return a client for a listener. Its timeout is longer, because a channel without messages is
    not a failure.
    """
    return _client(address, 10 * WAIT)[0]


@functools.cache
def shared(address: str) -> RedisConnection:
    """Return the connection of this process to this address."""
    return RedisConnection(address)


def connection() -> RedisConnection | None:
    """Return the shared Redis connection of this process; None if no Redis is configured."""
    address = url()
    return None if address is None else shared(address)

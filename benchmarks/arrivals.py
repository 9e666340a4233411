"""Measures when each message reached Redis, by reading the length of the list repeatedly.

The arrival time of a message is the time of the first read that includes it. Lags are therefore
overestimated by at most the few milliseconds between two reads.
"""

from __future__ import annotations

import json
import subprocess
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import redis

from benchmarks.processes import Failed, wait_until
from benchmarks.servers import Servers

_BETWEEN_LOOKS = 0.005
_AT_ONCE = 2_000


@dataclass(frozen=True)
class Arrivals:
    """The number of messages in a list at each read (Unix time), from the first message on."""

    instants: list[float]
    lengths: list[int]

    @property
    def number(self) -> int:
        """Return how many messages arrived after the first read."""
        return self.lengths[-1] - self.lengths[0]

    @property
    def seconds(self) -> float:
        """Return the time from the first read to the last."""
        return self.instants[-1] - self.instants[0]

    def instant(self, position: int) -> float:
        """Return when the message at this position (from 0, in the order of arrival) arrived."""
        return self.instants[bisect_left(self.lengths, position + 1)]


def _client(servers: Servers) -> Any:
    """Connect to Redis. Untyped, because the annotations of redis-py differ between the releases
    that Celery requires.
    """
    return redis.Redis.from_url(servers.redis)


def watch(
    servers: Servers, queue: str, seconds: float, process: subprocess.Popen[bytes], within: float
) -> Arrivals:
    """Wait for the first message of a queue, then read its length for ``seconds``. Raises Failed."""
    with closing(_client(servers)) as client:
        wait_until(
            lambda: bool(_lists(client, queue)), process, within=within, every=_BETWEEN_LOOKS
        )
        (key,) = _lists(client, queue)
        instants, lengths = [time.time()], [client.llen(key)]
        while instants[-1] < instants[0] + seconds:
            time.sleep(_BETWEEN_LOOKS)
            lengths.append(client.llen(key))
            instants.append(time.time())
        if process.poll() is not None:
            raise Failed(
                f"{process.args!r} exited with {process.returncode} during the measurement"
            )
    return Arrivals(instants, lengths)


def messages(servers: Servers, queue: str, number: int) -> Iterator[str]:
    """Yield the idempotency keys of the first ``number`` messages of this package, in the order of
    arrival.
    """
    with closing(_client(servers)) as client:
        (key,) = _lists(client, queue)
        for start in range(0, number, _AT_ONCE):
            # Messages are pushed at the head of the list, so the oldest message is the last one.
            page = client.lrange(key, -min(start + _AT_ONCE, number), -(start + 1))
            for message in reversed(page):
                yield json.loads(message)["headers"]["durable_idempotency_key"]


def fires(servers: Servers, queue: str, number: int) -> Iterator[tuple[str, float]]:
    """Yield the first ``number`` messages of schedules in the order of arrival: the key of the fire
    time, and the fire time (Unix time).
    """
    for fire in messages(servers, queue, number):
        yield fire, datetime.fromisoformat(fire.partition("/")[2]).timestamp()


def _lists(client: redis.Redis, queue: str) -> list[bytes]:
    return list(client.scan_iter(f"{queue}*", _type="list", count=1_000))

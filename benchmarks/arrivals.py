"""When each message reached Redis, seen from outside: the length of the list is read again and
again.

A message that was there at one look and not at the one before has come at the later of the two, so
lags are told too long rather than too short, by the few milliseconds between two looks.
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
    """How many messages a list held at which instants (Unix time), from its first message on."""

    instants: list[float]
    lengths: list[int]

    @property
    def number(self) -> int:
        """Return how many came after the first look."""
        return self.lengths[-1] - self.lengths[0]

    @property
    def seconds(self) -> float:
        """Return the time from the first look to the last."""
        return self.instants[-1] - self.instants[0]

    def instant(self, position: int) -> float:
        """Return when the message of this position (from 0, in the order of arrival) had come."""
        return self.instants[bisect_left(self.lengths, position + 1)]


def _client(servers: Servers) -> Any:
    """Connect; untyped, because the annotations of redis-py differ between the releases that Celery
    asks for.
    """
    return redis.Redis.from_url(servers.redis)


def watch(
    servers: Servers, queue: str, seconds: float, process: subprocess.Popen[bytes], within: float
) -> Arrivals:
    """Wait for the first message of a queue, then look for so many seconds; raises Failed."""
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
            raise Failed(f"{process.args!r} exited with {process.returncode} while it was watched")
    return Arrivals(instants, lengths)


def fires(servers: Servers, queue: str, number: int) -> Iterator[tuple[str, float]]:
    """Yield the first so many messages of ours, in the order of arrival: the key of the fire, its
    time (Unix time).
    """
    with closing(_client(servers)) as client:
        (key,) = _lists(client, queue)
        for start in range(0, number, _AT_ONCE):
            # The list is pushed at its head: the oldest message is the last one.
            page = client.lrange(key, -min(start + _AT_ONCE, number), -(start + 1))
            for message in reversed(page):
                fire = json.loads(message)["headers"]["durable_idempotency_key"]
                yield fire, datetime.fromisoformat(fire.partition("/")[2]).timestamp()


def _lists(client: redis.Redis, queue: str) -> list[bytes]:
    return list(client.scan_iter(f"{queue}*", _type="list", count=1_000))

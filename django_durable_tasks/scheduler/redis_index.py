"""The due index in Redis: one sorted set, ``due_tasks``, that all schedulers of a region share."""

from __future__ import annotations

import logging
import math
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from django.db import connections

from django_durable_tasks import conf
from django_durable_tasks.circuit_breaker import CircuitBreaker
from django_durable_tasks.scheduler.due_index import DueEntry, DueIndex

# The Redis client of a process: short timeouts and a pause after a failure, so that callers do not
# wait for Redis.
#
# There is one client per address. A request waits at most one short timeout. After a failure,
# requests return their default at once for some seconds. Then one caller at a time tries again.
# Each change of state is logged once.


logger = logging.getLogger("django_durable_tasks.due_index")
T = TypeVar("T")
WAIT = 0.5
PAUSE = 5.0
_url: str | None = None


def use_url(url: str | None) -> None:
    """Use the Redis at ``url`` in this process instead of REDIS_URL; None restores the setting."""
    global _url
    _url = url


def url() -> str | None:
    """Return the address of Redis; None if none is configured."""
    return _url or conf.settings().REDIS_URL


class RedisConnection:
    """A Redis client with a circuit breaker."""

    def __init__(self, address: str, *, pause: float | None = None) -> None:
        self.client, self._errors = _client(address, WAIT)
        self.why = ""
        pause = PAUSE if pause is None else pause
        self._breaker = CircuitBreaker(lambda: pause, lambda: 4 * WAIT)

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

    def close(self) -> None:
        """Close the connections."""
        self.client.close()


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


_connections: dict[str, RedisConnection] = {}
_making = threading.Lock()


def connection() -> RedisConnection | None:
    """Return the shared Redis connection of this process; None if no Redis is configured."""
    address = url()
    if address is None:
        return None
    shared = _connections.get(address)
    if shared is None:
        with _making:
            shared = _connections.setdefault(address, RedisConnection(address))
    return shared


def _after_fork() -> None:
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def close_idle() -> None:
    """Close all shared connections; the next use opens new ones."""
    with _making:
        open_ones = list(_connections.values())
        _connections.clear()
    for each in open_ones:
        each.close()


# Each scheduler adds the tasks that its polls find in advance, and removes those that are due. The
# score is the due time in milliseconds, the member is the id of the task. A hash contains priority,
# shard and queue of each. Both keys expire when they are no longer written.
#
# An entry is a hint: the claim refuses a wrong one, and a poll finds a task without one. So nothing
# is repaired here. No content of Redis raises an exception: entries of other programs or releases
# are removed, counted and logged when they are due, keys of another type at once.


_BATCH = 500
"""Entries per request, so that none takes long enough for a time-out."""
_FARTHEST = 5_000
"""How many due entries one pop reads at most to find those of its own shards."""
_LIFE_MS = 3_600_000
"""Milliseconds without a write after which the keys expire: no installation pauses its polls for an
hour.
"""
_REMEMBERED = 20_000
"""How many added entries a scheduler remembers, several times what it reads in advance."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST_MS, _LATEST_MS = -62_135_596_800_000, 253_402_300_799_000
"""The range of ``datetime`` in milliseconds since 1970: years 1 to 9999."""
_POP = """
-- KEYS: the set, the hash. ARGV: now (ms), the limit, how many entries to read, the shards: '' for
-- all of them, otherwise ',3,17,'. Returns id, score and details of each entry that was removed.
local limit, left, offset = tonumber(ARGV[2]), tonumber(ARGV[3]), 0
local found, taken = {}, {}
while #taken < limit and left > 0 do
  local size = math.min(left, math.max(limit, 100))
  local page = redis.call(
    'ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', offset, size)
  for i = 1, #page, 2 do
    local details = redis.call('HGET', KEYS[2], page[i]) or ''
    local shard = string.match(details, '^[^|]*|(%d+)|')
    local mine = ARGV[4] == '' or not shard
      or string.find(ARGV[4], ',' .. shard .. ',', 1, true)
    if #taken < limit and mine then
      taken[#taken + 1] = page[i]
      for _, value in ipairs({ page[i], page[i + 1], details }) do
        found[#found + 1] = value
      end
    end
  end
  if #page < 2 * size then
    break
  end
  offset, left = offset + size, left - size
end
for _, id in ipairs(taken) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
end
return found
"""


def scope() -> str:
    """Return the prefix of this installation's keys in Redis: database and region."""
    settings = conf.settings()
    name = connections.settings[settings.DATABASE].get("NAME") or settings.DATABASE
    # The braces keep the keys of one script on one node of a Redis cluster.
    return f"durable:{{{name}:{settings.REGION}}}"


def keys() -> list[str]:
    """Return the keys of the set and the hash."""
    names = scope()
    return [f"{names}:due_tasks", f"{names}:due_details"]


def instant_ms(at: datetime) -> int:
    """Return an instant in milliseconds since 1970, rounded up."""
    return math.ceil((at - _EPOCH) / timedelta(milliseconds=1))


def from_ms(value: float) -> datetime:
    """Return the instant (UTC) of a number of milliseconds since 1970, within the years 1 to
    9999.
    """
    return _EPOCH + timedelta(milliseconds=math.floor(max(_EARLIEST_MS, min(value, _LATEST_MS))))


class RedisDueIndex(DueIndex):
    """A due index that the schedulers of a region share. Entries that are added while Redis is
    unavailable stay in the memory of this process, and are returned from there.

    With ``probe=False`` it does not test whether Redis is available again; another caller must do
    that.
    """

    def __init__(self, connection: RedisConnection, *, probe: bool = True) -> None:
        super().__init__()
        self._connection, self._probe = connection, probe
        self._set, self._details = self._keys = keys()
        self._added: dict[uuid.UUID, DueEntry] = {}
        self._pop = connection.client.register_script(_POP)
        self.unreadable = 0
        """How many entries and keys this process removed because they could not be parsed."""

    @property
    def state(self) -> str:
        """``redis``, or the reason and the interval of polling the database."""
        removed = f"; {self.unreadable} unreadable entries were removed" if self.unreadable else ""
        if self._connection.open():
            return f"redis{removed}"
        return f"polling every {conf.settings().POLL:g} s: {self._connection.why}{removed}"

    def add(self, rows: Iterable[DueEntry]) -> None:
        """Add these entries, each once: polls find them several times."""
        if len(self._added) > _REMEMBERED:
            self._added.clear()
        new = [due for due in rows if self._added.get(due.task_id) != due]
        for first in range(0, len(new), _BATCH):
            batch = new[first : first + _BATCH]
            scores = {str(due.task_id): instant_ms(due.at) for due in batch}
            details = {str(due.task_id): f"{due.priority}|{due.shard}|{due.queue}" for due in batch}
            if self._request(partial(self._write, scores, details), False):
                self._added.update((due.task_id, due) for due in batch)
            else:
                # What was added before may be lost too.
                self._added.clear()
                super().add(batch)

    def _write(self, scores: Mapping[str, int], details: Mapping[str, str], client: Any) -> bool:
        with client.pipeline() as pipeline:
            pipeline.zadd(self._set, scores)
            pipeline.hset(self._details, mapping=details)
            for key in self._keys:
                pipeline.pexpire(key, _LIFE_MS)
            pipeline.execute()
        return True

    def discard(self, ids: Iterable[uuid.UUID]) -> int:
        """Remove the entries of these tasks; return how many there were."""
        gone = list(ids)
        removed = super().discard(gone)
        for task_id in gone:
            self._added.pop(task_id, None)
        for first in range(0, len(gone), _BATCH):
            batch = [str(task_id) for task_id in gone[first : first + _BATCH]]
            removed += self._request(partial(self._remove, batch), 0)
        return removed

    def _remove(self, batch: Sequence[str], client: Any) -> int:
        with client.pipeline() as pipeline:
            pipeline.zrem(self._set, *batch)
            pipeline.hdel(self._details, *batch)
            return int(pipeline.execute()[0])

    def next_at(self) -> datetime | None:
        """Return when the earliest entry is due."""
        first: list[tuple[str, float]] = self._request(
            lambda client: client.zrange(self._set, 0, 0, withscores=True), []
        )
        instants = [super().next_at(), *(from_ms(score) for _, score in first)]
        return min((at for at in instants if at is not None), default=None)

    def pop_due(
        self, now: datetime, limit: int, shards: frozenset[int] | None = None
    ) -> list[DueEntry]:
        """Remove and return due entries; each entry is returned to one node only."""
        entries = super().pop_due(now, limit, shards)
        if limit <= len(entries):
            return entries
        past, most = math.floor((now - _EPOCH) / timedelta(milliseconds=1)), limit - len(entries)
        allowed = "" if shards is None else f",{','.join(map(str, sorted(shards)))},"
        arguments = [past, most, max(_FARTHEST, 2 * most), allowed]
        popped: list[str] = self._request(lambda _: self._pop(keys=self._keys, args=arguments), [])
        for entry in zip(*[iter(popped)] * 3, strict=True):
            due = _due_of(*entry)
            if due is None:
                self._count_unreadable(entry[0])
            else:
                self._added.pop(due.task_id, None)
                entries.append(due)
        return entries

    def __len__(self) -> int:
        return super().__len__() + int(self._request(lambda client: client.zcard(self._set), 0))

    def _request(self, act: Callable[[Any], T], otherwise: T) -> T:
        """Return the result of ``act``. If Redis reports a key of another type, both keys are
        removed first.
        """
        from redis import ResponseError  # noqa: PLC0415 - see _client

        def call(client: Any) -> T:
            try:
                return act(client)
            except ResponseError as error:
                if "WRONGTYPE" not in str(error):
                    raise
            client.delete(*self._keys)
            self._count_unreadable(self._set)
            return act(client)

        return self._connection.call(call, otherwise, probe=self._probe)

    def _count_unreadable(self, text: str) -> None:
        if not self.unreadable:
            logger.error(
                "Removed entries of the due index in Redis that this release cannot read, such as"
                " %a. Their tasks are found by polling. Another program or release may write to the"
                " keys of %s.",
                text[:200],
                scope(),
            )
        self.unreadable += 1


def _due_of(task_id: str, score: str, details: str) -> DueEntry | None:
    """Return an entry; None if it cannot be parsed."""
    try:
        details.encode()
        priority, shard, queue = details.split("|", 2)
        return DueEntry(from_ms(float(score)), queue, uuid.UUID(task_id), int(priority), int(shard))
    except ValueError:
        return None


def due_index() -> DueIndex:
    """Return the index for a scheduler of this process: the shared one if Redis is configured,
    otherwise one in memory.
    """
    shared = connection()
    return DueIndex() if shared is None else RedisDueIndex(shared, probe=False)

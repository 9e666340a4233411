"""The due index in Redis: one sorted set, ``due_tasks``, that all schedulers of a region share."""

from __future__ import annotations

import logging
import math
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from django.db import connections

from django_durable_tasks import conf
from django_durable_tasks.circuit_breaker import CircuitBreaker
from django_durable_tasks.scheduler.due_index import DueEntry
from django_durable_tasks.store.errors import Unreadable

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
            found = act(self.client)
        except self._errors as error:
            self._failed(error)
            return otherwise
        self._succeeded()
        return found

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def _succeeded(self) -> None:
        if self._breaker.succeeded():
            self.why = ""
            logger.warning(
                "The connection to Redis is restored; the due index and notifications use it again."
            )

    def _failed(self, error: Exception) -> None:
        self.why = f"Redis does not serve ({type(error).__name__})"
        if self._breaker.failed():
            # The text of the error is not logged: it may contain the address with its password.
            logger.error(
                "%s; due tasks are found by polling every %g s.", self.why, conf.settings().POLL
            )


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
    found = _connections.get(address)
    if found is None:
        with _making:
            found = _connections.setdefault(address, RedisConnection(address))
    return found


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


# The score is the due time in milliseconds, the member is ``queue|priority|shard|id``. A hash maps
# each id to its member, so that the entry of a moved task is found. Both keys expire when they are
# no longer written. A mark contains the instant up to which the leader has filled the set. Without
# the mark (after a flush, or before the first fill) the set is not used.
#
# No content of Redis raises an exception. A member or mark that cannot be parsed (format of
# another release, foreign bytes) and a key of another type are removed, counted and logged. The
# poll of the database finds the tasks.


_SCRIPTS = ("add", "discard", "pop", "peek", "filled")
_BATCH = 500
_FARTHEST = 5_000
_SPARE = 3_600_000
# How far ahead of their time tasks are in the set. It must exceed the time that the leader needs to
# fill the set and a failover, and bounds the size of the set.
HORIZON = timedelta(seconds=300)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WRONG_TYPE = "WRONGTYPE"
EARLIEST_MS, LATEST_MS = -62_135_596_800_000, 253_402_300_799_000
"""The range of ``datetime`` in milliseconds since 1970: years 1 to 9999. The script ``drop`` uses
the same numbers.
"""


def scope() -> str:
    """Return the prefix of this installation's keys in Redis: database and region."""
    settings = conf.settings()
    name = connections.settings[settings.DATABASE].get("NAME") or settings.DATABASE
    # The braces keep the keys of one script on one node of a Redis cluster.
    return f"durable:{{{name}:{settings.REGION}}}"


def keys() -> list[str]:
    """Return the keys of the set, the hash and the mark."""
    names = scope()
    return [f"{names}:due_tasks", f"{names}:due_members", f"{names}:due_filled"]


def life_ms() -> int:
    """Return after how many milliseconds without a write the set expires."""
    return round(2_000 * HORIZON.total_seconds()) + _SPARE


def instant_ms(at: datetime) -> int:
    """Return an instant in milliseconds since 1970, rounded up."""
    return math.ceil((at - _EPOCH) / timedelta(milliseconds=1))


def from_ms(value: int) -> datetime:
    """Return the instant (UTC) of a number of milliseconds since 1970."""
    return _EPOCH + timedelta(milliseconds=value)


def score_ms(score: float) -> int:
    """Return a score in milliseconds, limited to the range of ``datetime``."""
    return math.floor(max(EARLIEST_MS, min(score, LATEST_MS)))


def mark_of(text: str | None) -> datetime | None:
    """Return the instant (UTC) of a mark; None if there is no mark, or if it is not in the format
    that ``filled`` writes.
    """
    try:
        found = from_ms(int(text or ""))
    except (ValueError, OverflowError):
        return None
    return found if str(instant_ms(found)) == text else None


@cache
def script(name: str) -> str:
    """Return the source of a Lua script, which Redis executes atomically."""
    return (Path(__file__).parent / "lua" / f"{name}.lua").read_text()


def member_of(due: DueEntry) -> str:
    """Return the member of an entry."""
    return f"{due.queue}|{due.priority}|{due.shard}|{due.task_id}"


def _due_of(member: str, score: str) -> DueEntry | None:
    """Return the entry of a member and its score; None if they cannot be parsed."""
    try:
        member.encode()
        queue, priority, shard, task_id = member.rsplit("|", 3)
        return DueEntry(
            from_ms(score_ms(float(score))), queue, uuid.UUID(task_id), int(priority), int(shard)
        )
    except (ValueError, OverflowError):
        return None


class RedisDueIndex:
    """The shared ``DueIndex``. While Redis is unavailable it is empty and ignores additions.

    With ``probe=False`` it does not test whether Redis is available again; another caller must do
    that.
    """

    def __init__(self, connection: RedisConnection, *, probe: bool = True) -> None:
        self._connection, self._probe = connection, probe
        self._keys = keys()
        self._scripts = {name: connection.client.register_script(script(name)) for name in _SCRIPTS}
        self._change_lost = False
        self._filled_until: datetime | None = None
        self.unreadable = 0
        """How many members, marks and keys this process removed because they could not be parsed.
        """

    @property
    def filled_until(self) -> datetime | None:
        """The instant (UTC) up to which the set was complete when it was last read; None if it is
        not usable.
        """
        return self._filled_until if self._connection.open() else None

    @property
    def state(self) -> str:
        """``redis``, or the reason and the interval of polling the database."""
        removed = f"; {self.unreadable} unreadable entries were removed" if self.unreadable else ""
        if self.filled_until is not None:
            return f"redis{removed}"
        why = self._connection.why or "the set in Redis is not filled"
        return f"polling every {conf.settings().POLL:g} s: {why}{removed}"

    def add(self, rows: Iterable[DueEntry]) -> None:
        """Add these entries; while Redis is unavailable they are left to the poll."""
        life = str(life_ms())
        for batch in _batches(rows):
            fields = [
                part
                for due in batch
                for part in (str(due.task_id), member_of(due), str(instant_ms(due.at)))
            ]
            self._change("add", [life, *fields])

    def discard(self, ids: Iterable[uuid.UUID]) -> int:
        """Remove the entries of these tasks; return how many there were."""
        return sum(
            self._change("discard", [str(task_id) for task_id in batch]) for batch in _batches(ids)
        )

    def next_at(self) -> datetime | None:
        """Return when the earliest entry is due."""
        answer = self._read("peek", [])
        return from_ms(score_ms(float(answer[1]))) if answer and answer[1] else None

    def pop_due(
        self, now: datetime, limit: int, shards: frozenset[int] | None = None
    ) -> list[DueEntry]:
        """Remove and return due entries; each entry is returned to one node only."""
        if limit < 1:
            return []
        allowed_shards = "" if shards is None else f",{','.join(map(str, sorted(shards)))},"
        past = math.floor((now - _EPOCH) / timedelta(milliseconds=1))
        answer = self._read("pop", [past, limit, max(_FARTHEST, 2 * limit), allowed_shards])
        read = {answer[n]: _due_of(answer[n], answer[n + 1]) for n in range(1, len(answer), 2)}
        self._removed([member for member, due in read.items() if due is None])
        return [due for due in read.values() if due is not None]

    def __len__(self) -> int:
        return int(self._call(lambda client: client.zcard(self._keys[0]), 0))

    def close(self) -> None:
        """Release this object. The set stays in Redis, because other schedulers use it."""
        self._filled_until = None

    def filled(self, until: datetime) -> bool:
        """Write the mark: all tasks that are due before ``until`` are in the set. The mark expires
        at that time.

        Returns False and writes no mark if the mark that this process read last has been removed,
        because another process lost a change.
        """
        seen = "" if self._filled_until is None else str(instant_ms(self._filled_until))
        mark = self._scripts["filled"]
        done = self._call(
            lambda _: mark(keys=self._keys[2:], args=[str(instant_ms(until)), seen]), 0
        )
        self._filled_until = until if done else None
        return bool(done)

    def forget_mark(self) -> None:
        """Remove the mark, so that the leader fills the set again."""
        self._call(lambda client: client.delete(self._keys[2]), 0)
        self._filled_until = None

    def _call(self, act: Callable[[Any], T], otherwise: T) -> T:
        return self._connection.call(
            lambda client: self._in_our_types(client, act), otherwise, probe=self._probe
        )

    def _in_our_types(self, client: Any, act: Callable[[Any], T]) -> T:
        """Return the result of ``act``. If Redis reports a key of another type, the keys are
        removed first.

        All three keys are removed together: a set without its hash, or a mark without its set,
        would be taken for complete.
        """
        from redis import ResponseError  # noqa: PLC0415 - see redis_client._client

        try:
            return act(client)
        except ResponseError as error:
            if _WRONG_TYPE not in str(error):
                raise
        client.delete(*self._keys)
        self._removed(self._keys)
        return act(client)

    def _removed(self, texts: Sequence[str]) -> None:
        if not texts:
            return
        if not self.unreadable:
            logger.error(
                "Removed entries of the due index in Redis that this release cannot read, such as"
                " %a. Their tasks are found by polling. Another program or release may write to the"
                " keys of %s.",
                texts[0][:200],
                scope(),
            )
        self.unreadable += len(texts)

    def _change(self, name: str, arguments: Sequence[str]) -> int:
        """Change the set; return the answer of the script, 0 if there was none. If the change is
        lost, the mark is removed, so that the leader fills the set again.
        """

        def act(client: Any) -> int:
            if self._change_lost:
                client.delete(self._keys[2])
            return int(self._scripts[name](keys=self._keys[:2], args=arguments) or 0)

        answer: int | None = self._call(act, None)
        self._change_lost = answer is None
        return answer or 0

    def _read(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        answer: list[Any] = self._call(
            lambda _: self._scripts[name](keys=self._keys, args=arguments), []
        )
        self._filled_until = mark_of(answer[0]) if answer else None
        if answer and answer[0] and self._filled_until is None:
            self.forget_mark()
            self._removed([answer[0]])
        return answer


def _batches(values: Iterable[Any]) -> Iterator[list[Any]]:
    found = list(values)
    for first in range(0, len(found), _BATCH):
        yield found[first : first + _BATCH]


# Reads and repairs single entries of the due index in Redis, to compare them with the tasks.
#
# Unlike the index itself it raises an exception if Redis does not respond.


_SCAN = 500


def id_of(member: str) -> uuid.UUID | None:
    """Return the id of the task of a member; None if the member cannot be parsed."""
    try:
        return uuid.UUID(member.rpartition("|")[2])
    except ValueError:
        return None


class RedisEntries:
    """The entries of the set: members as ``member_of`` formats them, scores in milliseconds since
    1970.

    Each call raises Unreadable if Redis does not respond, and sends one request per 500 members or
    ids.
    """

    def __init__(self, connection: RedisConnection) -> None:
        self._connection, (self._set, self._hash, self._mark) = connection, keys()

    def filled_until(self) -> datetime | None:
        """Return the instant (UTC) of the mark; None if there is none."""
        (mark,) = self._read(lambda client: [client.get(self._mark)])
        return mark_of(mark)

    def number(self) -> int:
        """Return how many entries there are."""
        return self._read(lambda client: int(client.zcard(self._set)))

    def pages(self) -> Iterator[dict[str, int]]:
        """Yield the entries in pages of members with their scores. An entry that stays in the set
        is returned at least once.
        """
        cursor, begun = 0, False
        while cursor or not begun:
            cursor, found = self._read(lambda client: client.zscan(self._set, cursor, count=_SCAN))  # noqa: B023
            begun = True
            yield {member: score_ms(score) for member, score in found}

    def scores(self, members: Sequence[str]) -> dict[str, int]:
        """Return the scores of those of these members that are in the set."""
        found: dict[str, int] = {}
        for some in _batches_of_ids(members):
            scores = self._read(lambda client: client.zmscore(self._set, some))  # noqa: B023
            found |= {
                member: score_ms(score)
                for member, score in zip(some, scores, strict=True)
                if score is not None
            }
        return found

    def members(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, str]:
        """Return the members of these tasks, as the hash maps them."""
        found: dict[uuid.UUID, str] = {}
        for some in _batches_of_ids(ids):
            members = self._read(lambda client: client.hmget(self._hash, list(map(str, some))))  # noqa: B023
            found |= {
                task_id: member
                for task_id, member in zip(some, members, strict=True)
                if member is not None
            }
        return found

    def instants(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, int]:
        """Return the due times (milliseconds) of those of these tasks that have an entry."""
        members = self.members(ids)
        scores = self.scores(list(members.values()))
        return {task_id: scores[member] for task_id, member in members.items() if member in scores}

    def put(self, rows: Iterable[DueEntry], seen: Mapping[uuid.UUID, str]) -> set[uuid.UUID]:
        """Write the entries of tasks whose members are still those in ``seen``; return the ids that
        were written.
        """
        done: set[uuid.UUID] = set()
        for some in _batches_of_ids(list(rows)):
            arguments_ = [
                part
                for due in some
                for part in (
                    str(due.task_id),
                    member_of(due),
                    str(instant_ms(due.at)),
                    seen.get(due.task_id, ""),
                )
            ]
            done |= {
                uuid.UUID(written) for written in self._run("repair", [str(life_ms()), *arguments_])
            }
        return done

    def drop(self, entries: Mapping[str, int]) -> set[str]:
        """Remove entries that still have these scores; return the removed members."""
        gone: set[str] = set()
        for some in _batches_of_ids(list(entries.items())):
            gone.update(self._run("drop", [str(part) for entry in some for part in entry]))
        return gone

    def _run(self, name: str, arguments: Sequence[str]) -> list[str]:
        def act(client: Any) -> list[str]:
            return list(
                client.register_script(script(name))(keys=[self._set, self._hash], args=arguments)
            )

        return self._read(act)

    def _read(self, act: Callable[[Any], T]) -> T:
        found = self._connection.call(lambda client: (act(client),), None)
        if found is None:
            raise Unreadable(self._connection.why or "Redis does not answer.")
        return found[0]


def _batches_of_ids(values: Sequence[T]) -> Iterator[list[T]]:
    for first in range(0, len(values), _SCAN):
        yield list(values[first : first + _SCAN])

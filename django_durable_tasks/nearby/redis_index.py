"""The due index in Redis: one sorted set, ``due_tasks``, that all schedulers of a region share.

The score is the due instant in milliseconds, the member ``queue|priority|shard|id``. A hash beside it knows the member
of each id, so that a moved row is found. Both end by themselves when nobody writes to them any more. A mark says until
when the leader has filled the set: without it (emptied, flushed, never filled) the set is not relied on.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from django.db import connections

from django_durable_tasks import conf
from django_durable_tasks.nearby.due_index import Due
from django_durable_tasks.nearby.redis_door import Door

T = TypeVar("T")
_SCRIPTS = ("add", "discard", "pop", "peek", "filled")
_BATCH = 500
_FARTHEST = 5_000
_SPARE = 3_600_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def scope() -> str:
    """Return what sets this installation's names in Redis apart from those of others: database and region."""
    settings = conf.settings()
    name = connections.settings[settings.DATABASE].get("NAME") or settings.DATABASE
    return f"durable:{{{name}:{settings.REGION}}}"  # the braces keep the keys of one script on one node of a cluster


def keys() -> list[str]:
    """Return the names of the set, of the hash beside it, and of the mark."""
    names = scope()
    return [f"{names}:due_tasks", f"{names}:due_members", f"{names}:due_filled"]


def life_ms() -> int:
    """Return for how long the set stays when nobody writes to it any more (milliseconds)."""
    return round(2_000 * conf.settings().DUE_HORIZON) + _SPARE


def instant_ms(at: datetime) -> int:
    """Return the first full millisecond since 1970 that is not before ``at``."""
    return math.ceil((at - _EPOCH) / timedelta(milliseconds=1))


def from_ms(value: int) -> datetime:
    """Return the instant (UTC) of milliseconds since 1970."""
    return _EPOCH + timedelta(milliseconds=value)


@cache
def script(name: str) -> str:
    """Return the text of a script that Redis runs as one step."""
    return (Path(__file__).parent / "lua" / f"{name}.lua").read_text()


def member_of(due: Due) -> str:
    """Return the member that stands for a row."""
    return f"{due.queue}|{due.priority}|{due.shard}|{due.task_id}"


def _due_of(member: str, score: str) -> Due:
    queue, priority, shard, task_id = member.rsplit("|", 3)
    return Due(from_ms(int(float(score))), queue, uuid.UUID(task_id), int(priority), int(shard))


class RedisDueIndex:
    """The shared form of ``DueIndex``; while Redis is away it is empty and takes nothing.

    Without ``probe`` somebody else must try whether Redis is back.
    """

    def __init__(self, door: Door, *, probe: bool = True) -> None:
        self._door, self._probe = door, probe
        self._keys = keys()
        self._scripts = {name: door.client.register_script(script(name)) for name in _SCRIPTS}
        self._untold = False
        self._filled_until: datetime | None = None

    @property
    def filled_until(self) -> datetime | None:
        """Until when (UTC) the set held all waiting rows at our last look; None: it is not to be relied on."""
        return self._filled_until if self._door.open() else None

    @property
    def state(self) -> str:
        """Say whether rows come from Redis, or why and how often the database is polled for them."""
        if self.filled_until is not None:
            return "redis"
        why = self._door.why or "the set in Redis is not filled"
        return f"polling every {conf.settings().POLL:g} s: {why}"

    def add(self, rows: Iterable[Due]) -> None:
        """Remember these rows; while Redis is away they are left to the poll."""
        life = str(life_ms())
        for batch in _batches(rows):
            told = [part for due in batch for part in (str(due.task_id), member_of(due), str(instant_ms(due.at)))]
            self._tell("add", [life, *told])

    def discard(self, ids: Iterable[uuid.UUID]) -> None:
        """Forget these rows."""
        for batch in _batches(ids):
            self._tell("discard", [str(task_id) for task_id in batch])

    def next_at(self) -> datetime | None:
        """Return when the earliest entry is due."""
        answer = self._ask("peek", [])
        return from_ms(int(float(answer[1]))) if answer and answer[1] else None

    def pop_due(self, now: datetime, limit: int, shards: frozenset[int] | None = None) -> list[Due]:
        """Remove and return entries that are due; no other node gets them."""
        if limit < 1:
            return []
        wanted = "" if shards is None else f",{','.join(map(str, sorted(shards)))},"
        past = math.floor((now - _EPOCH) / timedelta(milliseconds=1))
        answer = self._ask("pop", [past, limit, max(_FARTHEST, 2 * limit), wanted])
        return [_due_of(answer[n], answer[n + 1]) for n in range(1, len(answer), 2)]

    def __len__(self) -> int:
        return int(self._through(lambda client: client.zcard(self._keys[0]), 0))

    def close(self) -> None:
        """Let go; the set stays, for it is everybody's."""
        self._filled_until = None

    def filled(self, until: datetime) -> bool:
        """Mark that all rows due before ``until`` are in the set; the mark ends at that time by itself.

        False, and no mark, when the one that we saw last is gone: somebody lost a change.
        """
        seen = "" if self._filled_until is None else str(instant_ms(self._filled_until))
        mark = self._scripts["filled"]
        done = self._through(lambda _: mark(keys=self._keys[2:], args=[str(instant_ms(until)), seen]), 0)
        self._filled_until = until if done else None
        return bool(done)

    def _through(self, act: Callable[[Any], T], otherwise: T) -> T:
        return self._door.through(act, otherwise, probe=self._probe)

    def _tell(self, name: str, arguments: Sequence[str]) -> None:
        """Change the set. A change that was lost is owned up to: the mark goes, and the leader fills the set again."""

        def act(client: Any) -> bool:
            if self._untold:
                client.delete(self._keys[2])
            self._scripts[name](keys=self._keys[:2], args=arguments)
            return True

        self._untold = not self._through(act, False)

    def _ask(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        answer: list[Any] = self._through(lambda _: self._scripts[name](keys=self._keys, args=arguments), [])
        self._filled_until = from_ms(int(answer[0])) if answer and answer[0] else None
        return answer


def _batches(values: Iterable[Any]) -> Iterator[list[Any]]:
    found = list(values)
    for first in range(0, len(found), _BATCH):
        yield found[first : first + _BATCH]

"""Reads and repairs single entries of the due index in Redis, to compare them with the tasks.

Unlike the index itself it raises an exception if Redis does not respond.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from django_durable_tasks.due_index.redis import (
    instant_ms,
    keys,
    life_ms,
    mark_of,
    member_of,
    score_ms,
    script,
)
from django_durable_tasks.due_index.redis_client import RedisConnection
from django_durable_tasks.due_index.types import DueEntry
from django_durable_tasks.engine.verify.check import Unreadable

T = TypeVar("T")
_BATCH = 500


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
            cursor, found = self._read(lambda client: client.zscan(self._set, cursor, count=_BATCH))  # noqa: B023
            begun = True
            yield {member: score_ms(score) for member, score in found}

    def scores(self, members: Sequence[str]) -> dict[str, int]:
        """Return the scores of those of these members that are in the set."""
        found: dict[str, int] = {}
        for some in _batches(members):
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
        for some in _batches(ids):
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
        for some in _batches(list(rows)):
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
        for some in _batches(list(entries.items())):
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


def _batches(values: Sequence[T]) -> Iterator[list[T]]:
    for first in range(0, len(values), _BATCH):
        yield list(values[first : first + _BATCH])

"""How many tasks a claim requests of each queue, and which shards a scheduler claims."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import NamedTuple

from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.task_values import SHARDS

ALL_LEVELS = (1 << 10) - 1


def priorities_of(levels: int) -> list[int]:
    """Return the priorities of these bits, the highest first."""
    return [priority for priority in range(9, -1, -1) if levels >> priority & 1]


class QueueDemand(NamedTuple):
    """The maximum number of due tasks of a queue to claim, and their lowest priority.

    ``levels``: the priorities that are searched, as bits. A caller that has read for which
    priorities tasks are due saves the search for the others. ``tenant_id``: only the tasks of this
    tenant, which is not the default one.
    """

    queue: str
    limit: int
    least: int = 0
    levels: int = ALL_LEVELS
    tenant_id: int | None = None

    def at_most(self, number: int) -> QueueDemand:
        """Return the demand with a limit of at most ``number``."""
        if self.limit <= number:
            return self
        return self._replace(limit=number)

    @property
    def priorities(self) -> list[int]:
        """The priorities that are searched, the highest first."""
        return [priority for priority in priorities_of(self.levels) if priority >= self.least]


# The assignment of shards to schedulers: rendezvous hashing over the live nodes.
#
# Each node computes the weight of every shard for every node and serves those for which it has the
# highest weight. All nodes get the same result without communication, and a change of the nodes
# moves only their own shards. An outdated map costs superfluous queries, never a run: a claim is
# one guarded UPDATE, and any node claims tasks that are overdue.
#
# Source: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates" (1998).


UNSERVED_AFTER = 3.0
"""A task that has been due for this many seconds is claimed by any node, independent of its shard.
"""
_RANGE = re.compile(r"\s*(\d{1,3})\s*(?:-\s*(\d{1,3})\s*)?")


def parse_shards(text: str) -> frozenset[int]:
    """Return the shards of a text like ``0-31,40``; raises InvalidOption."""
    shards: set[int] = set()
    for item in text.split(","):
        match = _RANGE.fullmatch(item)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if low > high or high >= SHARDS:
            raise InvalidOption.of(
                "shards",
                text,
                f"{item.strip()!r} is no shard or range of shards; give numbers from 0 to"
                f" {SHARDS - 1}, as in 0-31 or 0-15,40.",
            )
        shards.update(range(low, high + 1))
    return frozenset(shards)


def spell_shards(shards: Collection[int]) -> str:
    """Return these shards in the shortest form that ``parse_shards`` accepts: ``0-31,40``."""
    ranges: list[list[int]] = []
    for shard in sorted(set(shards)):
        if ranges and shard == ranges[-1][-1] + 1:
            ranges[-1][1:] = [shard]
        else:
            ranges.append([shard])
    return ",".join("-".join(map(str, bounds)) for bounds in ranges)


def shards_of(node: uuid.UUID, nodes: Mapping[uuid.UUID, Collection[int] | None]) -> frozenset[int]:
    """Return the shards that this node serves among these nodes, itself included.

    ``nodes`` maps each live node to the shards to which it is restricted, None for all. A
    restricted node serves all of its shards. The others divide the remaining shards, or all shards
    if none remain.
    """
    own_shards = nodes.get(node)
    if own_shards is not None:
        return frozenset(own_shards)
    kept = {shard for shards in nodes.values() if shards is not None for shard in shards}
    free = sorted(candidate for candidate, shards in nodes.items() if shards is None) or [node]
    return frozenset(
        shard
        for shard in range(SHARDS)
        if shard not in kept
        and max(free, key=lambda candidate: (_weight(candidate, shard), candidate)) == node
    )


def _weight(node: uuid.UUID, shard: int) -> bytes:
    return blake2b(node.bytes + shard.to_bytes(2, "big"), digest_size=8).digest()

"""Which scheduler serves which shard: rendezvous hashing over the nodes that live.

Each node weighs every shard with every node and serves those where it weighs most, so that all
nodes agree without talking, and a node that comes or goes moves its own shards alone. A map that is
out of date costs wasted looks, never a run: a claim is one guarded UPDATE, and what nobody serves
is served by anybody. Source: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit
Rates" (1998).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping
from hashlib import blake2b

from django_durable_tasks.exceptions import InvalidOption

SHARDS = 64
"""A row belongs to one of so many for ever (``Task.shard_key``)."""
UNSERVED_AFTER = 3.0
"""A row that is due for so long (seconds) is claimed by any node, whatever its shard."""
_RANGE = re.compile(r"\s*(\d{1,3})\s*(?:-\s*(\d{1,3})\s*)?")


def shard_of(task_id: uuid.UUID) -> int:
    """Return the shard of a task."""
    return task_id.int % SHARDS


def parse_shards(text: str) -> frozenset[int]:
    """Return the shards that a text like ``0-31,40`` names; raises InvalidOption."""
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if low > high or high >= SHARDS:
            raise InvalidOption(
                f"shards={text!r}: {part.strip()!r} is no shard or range of shards; give numbers"
                f" from 0 to {SHARDS - 1}, as in 0-31 or 0-15,40."
            )
        found.update(range(low, high + 1))
    return frozenset(found)


def spell_shards(shards: Collection[int]) -> str:
    """Return these shards as ``parse_shards`` reads them, the shortest way: ``0-31,40``."""
    parts: list[list[int]] = []
    for shard in sorted(set(shards)):
        if parts and shard == parts[-1][-1] + 1:
            parts[-1][1:] = [shard]
        else:
            parts.append([shard])
    return ",".join("-".join(map(str, part)) for part in parts)


def shards_of(node: uuid.UUID, nodes: Mapping[uuid.UUID, Collection[int] | None]) -> frozenset[int]:
    """Return the shards that this node serves among these nodes, itself included.

    ``nodes``: each living node with the shards that it was told to keep to, None for all. A node
    that keeps to some serves all of these; the others share what nobody keeps, or everything where
    that is nothing.
    """
    mine = nodes.get(node)
    if mine is not None:
        return frozenset(mine)
    kept = {shard for shards in nodes.values() if shards is not None for shard in shards}
    free = sorted(other for other, shards in nodes.items() if shards is None) or [node]
    return frozenset(
        shard
        for shard in range(SHARDS)
        if shard not in kept and max(free, key=lambda other: (_weight(other, shard), other)) == node
    )


def _weight(node: uuid.UUID, shard: int) -> bytes:
    return blake2b(node.bytes + shard.to_bytes(2, "big"), digest_size=8).digest()

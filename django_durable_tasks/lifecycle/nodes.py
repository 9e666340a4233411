"""Nodes say that they live; others judge their silence in heartbeats of their own, never by a clock of the node."""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import Sequence
from typing import Any

from django.db.models import F

from django_durable_tasks import __version__, conf
from django_durable_tasks.lifecycle.connections import on_sqlite
from django_durable_tasks.lifecycle.transitions import database
from django_durable_tasks.models import Node, NodeKind
from django_durable_tasks.models.clock import DatabaseNow


def timeout() -> float:
    """Return how long a node may be silent (seconds)."""
    return conf.settings().NODE_TIMEOUT or (60.0 if on_sqlite() else 20.0)


def register(
    node_id: uuid.UUID, name: str, kind: NodeKind, *, pool: str = "", slots: int = 0, queues: Sequence[str] = ()
) -> None:
    """Enter this process under its random boot id, or bring it back under it; a restart is a new node."""
    details: dict[str, Any] = {
        "name": name, "kind": kind, "host": platform.node(), "pid": os.getpid(), "version": __version__, "pool": pool,
        "slots": slots, "queues": list(queues), "beats": 1, "started_at": DatabaseNow(), "last_seen_at": DatabaseNow(),
        "stopped_at": None, "declared_dead": False,
    }  # fmt: skip
    Node.objects.using(database()).update_or_create(id=node_id, defaults=details)


def beat(node_id: uuid.UUID) -> bool:
    """Say that the node lives; False when it was declared dead, so that it must register anew."""
    alive = Node.objects.using(database()).filter(pk=node_id, stopped_at__isnull=True)
    return bool(alive.update(beats=F("beats") + 1, last_seen_at=DatabaseNow()))


def leave(node_id: uuid.UUID) -> None:
    """Say that the node ends on purpose."""
    Node.objects.using(database()).filter(pk=node_id, stopped_at__isnull=True).update(stopped_at=DatabaseNow())


def declare_dead(node_ids: Sequence[uuid.UUID]) -> int:
    """Mark silent nodes as dead; return how many were not marked before."""
    alive = Node.objects.using(database()).alive().filter(pk__in=list(node_ids))
    return alive.update(stopped_at=DatabaseNow(), declared_dead=True)


def beats() -> dict[uuid.UUID, int]:
    """Return the heartbeat counters of all nodes that have not left."""
    return dict(Node.objects.using(database()).alive().values_list("pk", "beats"))


class Vigil:
    """How long nodes are silent, counted in the watcher's own successful looks.

    An outage of the database silences everybody, the watcher too, so it condemns nobody: a look that failed begins the
    vigil anew. ``contact`` is how many looks in a row reached the database.
    """

    def __init__(self) -> None:
        self.contact = 0
        self._looked_at = float("-inf")
        self._seen: dict[uuid.UUID, tuple[int, int]] = {}

    def look(self, beats_now: dict[uuid.UUID, int], at: float, within: float) -> None:
        """Take in the counters of a successful look at the monotonic instant ``at``.

        A look later than ``within`` seconds after the one before begins the vigil anew: the watcher itself was away.
        """
        if at - self._looked_at > within:
            self.missed()
        self._looked_at = at
        self.contact += 1
        seen: dict[uuid.UUID, tuple[int, int]] = {}
        for node, count in beats_now.items():
            before, silent = self._seen.get(node, (count, 0))
            seen[node] = (count, silent + 1 if before == count and node in self._seen else 0)
        self._seen = seen

    def missed(self) -> None:
        """Take in that a look did not reach the database."""
        self.contact = 0
        self._seen = {node: (count, 0) for node, (count, _) in self._seen.items()}

    def silent(self, looks: int) -> list[uuid.UUID]:
        """Return the nodes that were silent for so many looks in a row."""
        return [node for node, (_, silent) in self._seen.items() if silent >= looks]

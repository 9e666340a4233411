"""Faults of the due index in Redis."""

from __future__ import annotations

import re
from itertools import count, cycle
from typing import Any

import redis
from django.conf import settings

from django_durable_tasks.models import Node
from django_durable_tasks.scheduler import notifier
from django_durable_tasks.scheduler.notifier import redis_scope, wake_channel
from tests.chaos.faults.registry import fault
from tests.chaos.figures import GARBAGE, REMOVED
from tests.chaos.stage import Stage, query
from tests.waiting import until

_NUMBERS = count()


@fault(31, "index-unreadable")
def write_garbage(stage: Stage) -> None:
    """Unreadable entries, notifications and keys of other types are written into the due index
    in Redis.
    """
    assert settings.DURABLE_TASKS.get("REDIS_URL"), "there is no Redis for the due index"
    connection = notifier.redis_connection()
    assert connection is not None
    client, before = connection.client, _removed()
    ways = cycle((_entry, _entry, _other_type))

    def write() -> None:
        try:
            next(ways)(client)
        except redis.ResponseError:  # a key that has another type at this moment
            return
        client.publish(wake_channel(redis_scope()), "not a notification")
        stage.notes[GARBAGE] += 1

    stage.repeatedly(6, 0.2, write)
    _wait_until_removed(client, before)
    stage.notes[REMOVED] += _removed() - before


def _key() -> str:
    return f"{redis_scope()}:due_tasks"


def _wait_until_removed(client: Any, before: int) -> None:
    """Wait until no entry is left that cannot be read, and a scheduler reports that it removed some."""

    def removed() -> bool:
        try:
            left = [entry for entry in client.zrange(_key(), 0, -1) if entry.startswith("not ")]
        except redis.ResponseError:
            return False
        return not left and (query(_removed) or 0) > before

    until(removed, within=30, message="schedulers removed the entries that they cannot read")


def _removed() -> int:
    """Return how many entries the schedulers report as removed."""
    states = Node.objects.values_list("index_state", flat=True)
    found = (re.search(r"(\d+) unreadable entries were removed", state) for state in states)
    return sum(int(match[1]) for match in found if match)


def _entry(client: Any) -> None:
    """Write an entry that is due and cannot be read."""
    client.zadd(_key(), {f"not an entry {next(_NUMBERS)}": 0})


def _other_type(client: Any) -> None:
    """Replace the set by a list."""
    client.delete(_key())
    client.rpush(_key(), "not of this type")

"""Ends the runs of prefork children that terminated after their messages were finished.

The parent process of a prefork pool reports the death of a child to the message that the child
executes. The success of a run may be recorded after its message was finished, with the next start
of the process (``deferred_success.py``). If the child is killed in this time, no message fails. So
the thread of the node compares the children of the pool at each heartbeat. The ids of runs contain
the process id.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Collection
from typing import Any

from django_durable_tasks.engine.tasks.dead_child_processes import end_runs_of_processes

logger = logging.getLogger("django_durable_tasks.runs")


def children_of(pool: Any) -> frozenset[int]:
    """Return the process ids of the children of a prefork pool; none of another pool."""
    try:
        found = pool.info.get("processes", ())
    except AttributeError:  # the pool is starting or stopping
        return frozenset()
    return frozenset(pid for pid in found if isinstance(pid, int))


def is_alive(pid: int) -> bool:
    """Return whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class DeadChildren:
    """The children of the pool of this worker, as of the last heartbeat.

    A process that is missing at one heartbeat is judged at the next one, because the signal of a
    failed message has the better reason: the exit code, or a time limit. A process whose id is in
    use again is not judged; then the leases of its runs expire.
    """

    def __init__(self, children: Callable[[], Collection[int]]) -> None:
        self._children = children
        self._known = self._missing = frozenset[int]()

    def end_runs(self, node: uuid.UUID, worker: str) -> int:
        """Mark the runs of children LOST that were missing at the last call; return how many.

        Executes no statement unless a child terminated. After an error of the database the next
        call tries again.
        """
        children, ended = frozenset(self._children()), 0
        dead = {pid for pid in self._missing - children if not is_alive(pid)}
        if dead:
            ended = end_runs_of_processes(dead, node, worker)
        if ended:
            logger.warning(
                "%d child processes terminated: %d runs marked LOST whose messages were finished.",
                len(dead),
                ended,
            )
        self._missing, self._known = self._known - children, children
        return ended

"""The thread of a scheduler that judges the nodes and, where it leads, does the duties: all but the dispatching.

What it does may take as long as it takes: dispatching goes on beside it, on other connections. It works in slices all
the same, so that no duty waits long for another.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from django.db import Error

from django_durable_tasks.conf import settings
from django_durable_tasks.lifecycle import nodes
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.lifecycle.connections import own
from django_durable_tasks.lifecycle.leases import leases
from django_durable_tasks.lifecycle.nodes import NodeReport, Vigil
from django_durable_tasks.rules.shards import shards_of
from django_durable_tasks.scheduler.beside import Beside
from django_durable_tasks.scheduler.duties import Rota
from django_durable_tasks.scheduler.leader import Leader
from django_durable_tasks.scheduler.steps import Steps

_LOOKING = "Looking at the nodes"


class Maintenance(Beside):
    """``serve`` is called with the shards of this node; ``done`` after a duty that moved tasks, to dispatch them."""

    def __init__(
        self, node: uuid.UUID, leader: Leader, steps: Steps, report: Callable[[], NodeReport],
        serve: Callable[[frozenset[int]], None], done: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__("maintenance", self.round)
        self.vigil, self.rota = Vigil(), Rota()
        self.kept_shards: frozenset[int] | None = None
        self._node, self._leader, self._steps = node, leader, steps
        self._report, self._serve, self._done = report, serve, done
        self._look_at, self._missed = 0.0, False

    def missed(self) -> None:
        """Take in that another thread could not reach the database, so that nobody is judged; safe from any thread."""
        self._missed = True

    def hurry(self) -> None:
        """Resolve and count endings at once; safe from other threads."""
        self.rota.hurry()
        self.wake()

    def round(self) -> float:
        """Do what is due; return after how long (seconds) the next thing is."""
        try:
            self._steps.attempt(_LOOKING, self._look, outages=True)
            if not self._leader.leading():
                return settings().POLL
            return self._do_duties()
        except Error:
            self.vigil.missed()  # the dispatching thread logs that the database is away
            return settings().POLL

    def _look(self) -> int:
        if self._missed:
            self._missed = False
            self.vigil.missed()
        if time.monotonic() < self._look_at:
            return 0
        self._look_at = time.monotonic() + settings().NODE_HEARTBEAT
        with own():
            nodes.beat(self._node, self._report())  # reads may go on where writes fail: that is no contact
            self.vigil.look(nodes.beats(), time.monotonic(), 3 * settings().NODE_HEARTBEAT, leases())
            living = nodes.schedulers()
        living[self._node] = self.kept_shards
        self._serve(shards_of(self._node, living))
        return 0

    def _do_duties(self) -> float:
        due = self.rota.due()
        if due:
            with own():
                now, asked = database_now(), time.monotonic()
        for duty in due:
            if self._stopping or not self._leader.leading():
                break
            # Between duties too: silence is counted in looks, and none may be missed because duties take long.
            self._steps.attempt(_LOOKING, self._look, outages=True)
            began = time.monotonic()
            act = partial(duty.act, now + timedelta(seconds=began - asked), self.vigil)
            number = self._steps.attempt(f"The duty {duty.name}", act, duty.within)
            self.rota.did(duty, number, time.monotonic() - began)
            if number and duty.moves:
                self._done()
        return min(settings().POLL, self.rota.next_in())

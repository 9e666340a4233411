"""The loop: dispatch, then sleep until the next task is due. It ends by ``stop``, never because something failed.

This thread only dispatches. Duties, the judgement of nodes and the firing of recurring tasks have threads of their own.
"""

from __future__ import annotations

import logging
import os
import platform
import uuid
from datetime import datetime

from django.db import Error

from django_durable_tasks.celery import dispatcher
from django_durable_tasks.celery.worker import NodeBeat
from django_durable_tasks.conf import settings
from django_durable_tasks.due_index.fallback import due_index
from django_durable_tasks.lifecycle.nodes import NodeReport
from django_durable_tasks.lifecycle.outages import reason_of
from django_durable_tasks.models import NodeKind
from django_durable_tasks.notifier.listener import Wakeups
from django_durable_tasks.rules.shards import SHARDS
from django_durable_tasks.scheduler.beside import Waiter
from django_durable_tasks.scheduler.dispatching import Dispatching
from django_durable_tasks.scheduler.leader import Leader
from django_durable_tasks.scheduler.maintenance import Maintenance
from django_durable_tasks.scheduler.steps import Steps
from django_durable_tasks.scheduler.triggering import Triggering

logger = logging.getLogger("django_durable_tasks.scheduler")
_DISPATCHING, _RESTING = "Dispatching", "Looking for the next task"
_PAUSE = 0.1


class Scheduler:
    """One scheduler process: dispatches on every node, does the duties and fires where it leads."""

    def __init__(self, name: str = "", *, shards: frozenset[int] | None = None) -> None:
        self.node = uuid.uuid4()
        self.name = name or f"scheduler@{platform.node()}:{os.getpid()}"
        self.leader = Leader(self.node, self._woken_by_duties)
        self.steps = Steps(self.leader.watch)
        self.dispatching = Dispatching(self.node, due_index(), self.steps.attempt)
        self.maintenance = Maintenance(
            self.node, self.leader, self.steps, self._report, self.dispatching.serve, self._moved
        )
        self.triggering = Triggering(self.leader, self.steps, self._moved)
        self.dispatching.shards = self.maintenance.kept_shards = shards
        self.wakeups = Wakeups(self._woken_by_rows, self._woken_by_duties)
        self._beat = NodeBeat(self.node, self.name, NodeKind.SCHEDULER, self._report)
        self._stopping, self._away, self._waiter = False, False, Waiter()

    def run(self) -> None:
        """Run until ``stop``; then resign and leave."""
        beside = (self._beat, self.leader, self.wakeups, self.maintenance, self.triggering)
        for thread in beside:
            thread.start()
        while not self._stopping:
            self._waiter.wait(self.round())
        self.triggering.stop()
        self.maintenance.stop()
        self.leader.stop()
        self.wakeups.stop()
        self._beat.leave()

    def run_once(self) -> int:
        """Do all in this thread: dispatch, and if nobody else leads fire and do every duty once.

        Return how many tasks were published.
        """
        self.leader.step()
        self.triggering.round()
        sent = self.dispatching.poll()
        self.maintenance.round()
        self.leader.resign()
        return sent

    def stop(self) -> None:
        """Ask the loop to end after the round in hand; safe in a signal handler."""
        self._stopping = True
        self._waiter.wake()

    def _woken_by_rows(self, at: datetime) -> None:
        self.dispatching.look_now()
        self._waiter.wake()

    def _woken_by_duties(self) -> None:
        self.maintenance.hurry()
        self.triggering.wake()

    def _moved(self) -> None:
        """Dispatch at once what another thread created or released."""
        self.dispatching.hurry()
        self._waiter.wake()

    def round(self) -> float:
        """Do one round; return how long to sleep (seconds). Never raises: no content and no exception ends the loop."""
        try:
            sent = self.steps.attempt(_DISPATCHING, self.dispatching.turn, outages=True)
        except Error as error:
            self.maintenance.missed()
            if not self._away:
                logger.error("Dispatching is interrupted: %s. Retrying.", reason_of(error))
            self._away = True
            return settings().POLL
        if self._away:
            logger.warning("The database connection is restored; dispatching continues.")
        self._away = False
        return 0.0 if sent else self._rest()

    def _report(self) -> NodeReport:
        hands = self.dispatching
        return NodeReport(
            shards=range(SHARDS) if hands.shards is None else hands.shards,
            keeps_to_shards=self.maintenance.kept_shards is not None,
            scanned=hands.scanned_at, started=hands.sent_at, index_state=hands.index.state,
            wakeups_state=self.wakeups.told, failing=self.steps.failing(),
            rejected_queues=dispatcher.rejected_queues(),
        )  # fmt: skip

    def _rest(self) -> float:
        """Return how long to sleep: until the next task or the next poll."""
        waits = [settings().POLL]

        def look() -> int:
            waits.append(self.dispatching.rest())
            return 0

        self.steps.attempt(_RESTING, look)
        put_off = self.steps.is_failing(_DISPATCHING) or self.steps.is_failing(_RESTING)
        return max(_PAUSE if put_off else 0.0, min(waits))

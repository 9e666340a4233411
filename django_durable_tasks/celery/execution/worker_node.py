"""A worker is a node: its parent process says every few seconds that it lives.

The boot id is drawn in the parent before it forks, so that its children start runs in its name. A
process that is no worker (eager mode, a shell) is nobody's node: its runs are judged by their own
leases.

SIGTERM drains: from then on the node's concurrency is not counted. Messages that it has not begun
go back to the broker or are republished. Its runs continue to their end.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from celery import current_app, signals

from django_durable_tasks import conf
from django_durable_tasks.celery import remote_control
from django_durable_tasks.celery.execution import consumed_queue, heartbeat
from django_durable_tasks.celery.publishing import message_id
from django_durable_tasks.engine.cluster import nodes
from django_durable_tasks.engine.cluster.nodes import NodeReport
from django_durable_tasks.engine.db import clock_estimate
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.db.outages import reason_of
from django_durable_tasks.engine.tasks.attempts import RunLocation
from django_durable_tasks.models import NodeKind

logger = logging.getLogger("django_durable_tasks.nodes")
_RETRY_PAUSE = 1.0
"""Seconds between attempts of a heartbeat that failed; the first attempt after it comes at once."""
_MEASURED_EVERY = 6  # heartbeats: half a minute


class _Here:
    node: uuid.UUID = uuid.uuid4()
    name: str = f"{platform.node()}:{os.getpid()}"
    worker_pid: int | None = None
    is_pool_child: bool = False
    beat: NodeBeat | None = None


class NodeBeat(threading.Thread):
    """The heartbeat of a node.

    A node that was declared dead by mistake comes back under its id: that is the one in whose name
    its children go on to start runs. What was taken from them is fenced by epoch and run id, not by
    the node.
    """

    def __init__(
        self,
        node: uuid.UUID,
        name: str,
        kind: NodeKind,
        report: Callable[[], NodeReport] = NodeReport,
        **details: Any,
    ) -> None:
        super().__init__(name="durable-node", daemon=True)
        self.node, self.details = node, {"name": name, "kind": kind, **details}
        self._report, self._clock = report, _Clock()
        self._wake, self._stopping, self._draining = SimpleQueue[None](), False, False
        self._registered = self._failing = False

    def run(self) -> None:
        """Beat until told to stop; an outage of the database is logged once and waited out.

        A beat that failed is tried again at once, on a new connection, and then every second: one
        dropped connection costs its own timeouts, and no heartbeat interval more.
        """
        failed = 0
        while True:
            try:
                with dedicated_connection():
                    self._say()
                failed = 0
            except Exception as error:  # noqa: BLE001 - a beat that ends would condemn every run of this node
                if not failed:
                    logger.warning(
                        "The heartbeat of this node failed: %s. Retrying.", reason_of(error)
                    )
                failed += 1
            pause = conf.settings().NODE_HEARTBEAT
            if failed:
                pause = 0.0 if failed == 1 else min(pause, _RETRY_PAUSE)
            with suppress(Empty):
                self._wake.get(timeout=pause)
            if self._stopping:
                return

    def _say(self) -> None:
        draining = self._draining
        report = replace(self._reported(), skew=self._clock.measure(), draining=draining or None)
        if self._registered and nodes.beat(self.node, report):
            return
        if self._registered:
            logger.warning("This node had been declared dead; it registers again.")
        nodes.register(self.node, **self.details, report=report)
        self._registered = True

    def _reported(self) -> NodeReport:
        """Return the report; an empty one if it raises, because a node without heartbeats loses its
        runs.
        """
        try:
            report, self._failing = self._report(), False
        except Exception:
            if not self._failing:
                logger.exception(
                    "Collecting the report of this node failed; heartbeats are sent without it."
                )
            self._failing = True
            return NodeReport()
        return report

    def drain(self) -> None:
        """Say at once that the node takes nothing more; safe in a signal handler, where an Event
        could deadlock.
        """
        self._draining = True
        self._wake.put(None)

    def leave(self) -> None:
        """Stop beating and say goodbye."""
        self._stopping = True
        self._wake.put(None)
        self.join(timeout=10)
        try:
            with dedicated_connection():
                nodes.leave(self.node)
        except Exception as error:  # noqa: BLE001 - the process is about to end, and others find its silence
            logger.warning("This node could not be marked as stopped: %s.", reason_of(error))


class _Clock:
    """How far the host's clock is ahead of the database's: measured now and then, and told once a
    growth.
    """

    def __init__(self) -> None:
        self._beats, self._told = 0, 0.0
        self._skew: float | None = None

    def measure(self) -> float | None:
        """Return the last measurement (seconds), on every sixth call a new one."""
        if self._beats % _MEASURED_EVERY == 0:
            self._skew = clock_estimate.skew()
            self._judge(abs(self._skew or 0.0))
        self._beats += 1
        return self._skew

    def _judge(self, far: float) -> None:
        bound = conf.settings().SKEW_MAX
        if far <= bound:
            self._told = 0.0
        elif far > 1.5 * self._told:
            self._told = far
            logger.error(
                "The clock of this host is %.1f s from the database's (SKEW_MAX %g s).",
                self._skew,
                bound,
            )


def _report(state: Any, consumer: Any) -> NodeReport:
    """Return how this worker fares, as Celery's state in its parent process knows it.

    Without a connection to the broker it cannot start anything, and is not to blame: as if it had
    just started one.
    """
    if getattr(consumer, "connection", None) is None:
        return NodeReport(started=time.monotonic())
    try:
        requests = list(state.active_requests)
    except RuntimeError:  # the consumer changed the set while we read it
        return NodeReport(started=heartbeat.starts.last())
    messages = (message_id.parse(request.id) for request in requests)
    active = [message.task_id for message in messages if message is not None]
    return NodeReport(active=active, busy=len(requests), started=heartbeat.starts.last())


def place(lease: float, queues: tuple[str, ...] = ()) -> RunLocation:
    """Return where runs of this process run, with the lease (seconds) that they get.

    ``queues``: the names of the queue from which the message was consumed, if known.
    """
    return RunLocation(node=_Here.node, worker=_Here.name, lease=lease, queues=queues)


def in_pool_child() -> bool:
    """Return whether this process is a child of a prefork pool, whose parent tells when it dies."""
    return _Here.is_pool_child


def on_worker_init(sender: Any = None, **_: Any) -> None:
    """Before the pool starts: draw the boot id that the children inherit, and share with them when
    a run started.
    """
    heartbeat.starts.share()
    consumed_queue.note(getattr(sender, "app", None) or current_app._get_current_object())
    _Here.node, _Here.name = uuid.uuid4(), str(getattr(sender, "hostname", _Here.name))
    _Here.worker_pid = os.getpid()


def on_worker_ready(sender: Any = None, **_: Any) -> None:
    """The worker consumes: say so."""
    controller = sender.controller
    queues = [str(queue) for queue in sender.app.amqp.queues.consume_from]
    pool = getattr(controller.pool_cls, "__module__", "").rpartition(".")[2]
    concurrency = int(getattr(controller.pool, "limit", 0) or controller.concurrency or 1)
    report = partial(_report, controller.state, sender)
    _Here.beat = NodeBeat(
        _Here.node,
        _Here.name,
        NodeKind.WORKER,
        report,
        pool=pool,
        concurrency=concurrency,
        queues=queues,
    )
    _Here.beat.start()


def on_worker_shutting_down(**_: Any) -> None:
    """The worker was told to end (in a signal handler): it takes nothing more, and finishes what it
    runs.
    """
    if _Here.beat is not None:
        _Here.beat.drain()


def on_worker_shutdown(**_: Any) -> None:
    """The worker has finished its runs: say goodbye."""
    if _Here.beat is not None:
        _Here.beat.leave()
        _Here.beat = None


def on_pool_child(**_: Any) -> None:
    """A prefork child begins; the solo pool says so too, though it has no parent that
    could tell.
    """
    _Here.is_pool_child, _Here.beat = os.getpid() != _Here.worker_pid, None


def connect() -> None:
    """Connect the life of the worker and its remote control; called once by ``apps.ready()``."""
    remote_control.connect()
    pairs = [
        (signals.worker_init, on_worker_init),
        (signals.worker_ready, on_worker_ready),
        (signals.worker_shutting_down, on_worker_shutting_down),
        (signals.worker_shutdown, on_worker_shutdown),
        (signals.worker_process_init, on_pool_child),
    ]
    for signal, receiver in pairs:
        signal.connect(
            receiver, weak=False, dispatch_uid=f"django_durable_tasks.{receiver.__name__}"
        )

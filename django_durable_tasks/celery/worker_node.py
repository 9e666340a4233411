"""The node of a worker or scheduler: registration, heartbeats, drain and departure.

The parent process of a worker generates the node id before it forks, so runs of its children
belong to the same node. A process that is not a worker (eager mode, a shell) has no node. Its
runs are judged by their leases only.

After SIGTERM the concurrency of the node is no longer counted. Messages that it has not
started return to the broker or are republished. Its runs continue.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from celery import current_app, signals
from celery.concurrency.thread import TaskPool

from django_durable_tasks import conf, health
from django_durable_tasks.celery import prepared_messages, result, worker_repairs
from django_durable_tasks.celery.live_runs import process_runs
from django_durable_tasks.cluster import nodes
from django_durable_tasks.cluster.nodes import NodeReport
from django_durable_tasks.masking import shortened
from django_durable_tasks.models import NodeKind
from django_durable_tasks.store import clock
from django_durable_tasks.store.connections import (
    dedicated_connection,
    limit_threads,
    name_connections,
)
from django_durable_tasks.store.errors import reason_of
from django_durable_tasks.task_values import RunLocation

logger = logging.getLogger("django_durable_tasks.nodes")
_RETRY_PAUSE = 1.0
"""Seconds between attempts of a failed heartbeat. The first attempt has no pause."""
_LOOK_INTERVAL = 1.0
"""Seconds between two looks whether the last report has become wrong."""
_MEASURED_EVERY = 6
"""Heartbeats between two measurements of the clock: half a minute by default."""


_NAME_BYTES = 255
"""Bytes of a worker's name, as many as its columns have characters. A longer name (``-n``) is
truncated, because the database would refuse the endings of its runs.
"""


class _ThisProcess:
    node: uuid.UUID = uuid.uuid4()
    name: str = f"{platform.node()}:{os.getpid()}"
    worker_pid: int | None = None
    is_pool_child: bool = False
    beat: NodeBeat | None = None
    consumer: Any = None
    """Of the parent process of a worker that is ready."""


class NodeBeat(threading.Thread):
    """The heartbeat of a node.

    A node that was wrongly declared dead registers again under the same id, because its child
    processes use this id for the runs they start. Runs that were marked LOST meanwhile are
    fenced by epoch and run id, not by the node.
    """

    def __init__(
        self,
        node: uuid.UUID,
        name: str,
        kind: NodeKind,
        report: Callable[[], NodeReport] = NodeReport,
        is_outdated: Callable[[], bool] = lambda: False,
        **details: Any,
    ) -> None:
        super().__init__(name="durable-node", daemon=True)
        self._is_outdated = is_outdated
        self.node, self.details = node, {"name": name, "kind": kind, **details}
        self._report, self._clock = report, _Clock()
        self._wake, self._stopping, self._draining = SimpleQueue[None](), False, False
        self._registered = self._failing = False
        self._names: Collection[str] | None = None
        # The last poll of a scheduler, or the end of an outage of the database after it.
        self._polled: float | None = None
        self._health_file = health.HealthFile(kind.lower(), name, conf.settings().NODE_HEARTBEAT)
        self._cannot_write = False

    def run(self) -> None:
        """Send heartbeats until `leave` is called. An outage of the database is logged once.

        A failed heartbeat is repeated at once on a new connection and then every second, so that a
        dropped connection does not cost a heartbeat interval.
        """
        failed = 0
        while True:
            try:
                with dedicated_connection(at_once=True):
                    self._beat()
                failed = 0
            except Exception as error:  # noqa: BLE001 - without heartbeats all runs are lost
                if not failed:
                    logger.warning(
                        "The heartbeat of this node failed: %s. Retrying.", reason_of(error)
                    )
                failed += 1
            self._write_health(failed)
            pause = conf.settings().NODE_HEARTBEAT
            if failed:
                pause = 0.0 if failed == 1 else min(pause, _RETRY_PAUSE)
            self._wait(pause)
            if self._stopping:
                return

    def _write_health(self, failed: int) -> None:
        """Write the state for probes of this host. An error is logged once: the process works
        without the file.
        """
        state = health.DRAINING if self._draining else health.RUNNING
        if failed:
            state = health.NO_DATABASE
            if self._polled is not None:
                # A scheduler does not poll during an outage, which is no reason to restart it.
                self._polled = time.monotonic()
        try:
            self._health_file.write(state, self._polled)
        except OSError as error:
            if not self._cannot_write:
                logger.warning("The health file of this node cannot be written: %s.", error)
            self._cannot_write = True

    def _wait(self, seconds: float) -> None:
        """Wait until the next heartbeat. It follows at once if the report has become wrong, which
        is looked at once a second.
        """
        until = time.monotonic() + seconds
        while (remaining := until - time.monotonic()) > 0 and not self._is_outdated():
            with suppress(Empty):
                self._wake.get(timeout=min(remaining, _LOOK_INTERVAL))
                return

    def _beat(self) -> None:
        draining = self._draining
        report = replace(self._reported(), skew=self._clock.measure(), draining=draining or None)
        # The names are many, and written only if they changed since the last heartbeat.
        changed = report if report.names != self._names else replace(report, names=None)
        if not (self._registered and nodes.beat(self.node, changed)):
            if self._registered:
                logger.warning("This node had been declared dead; it registers again.")
            nodes.register(self.node, **self.details, report=report)
            self._registered = True
        self._names = report.names
        if report.scanned is not None:
            self._polled = max(report.scanned, self._polled or 0.0)

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
        """Report at once that the node starts no more tasks.

        Safe in a signal handler, where setting a threading.Event could deadlock.
        """
        self._draining = True
        self._wake.put(None)

    def leave(self) -> None:
        """Stop the heartbeats and mark the node as stopped."""
        self._stopping = True
        self._wake.put(None)
        self.join(timeout=10)
        self._health_file.remove()
        try:
            with dedicated_connection():
                nodes.leave(self.node)
        except Exception as error:  # noqa: BLE001 - the process ends; schedulers see no heartbeat
            logger.warning("This node could not be marked as stopped: %s.", reason_of(error))


class _Clock:
    """Measures how far the clock of the host is ahead of the database's.

    A difference above SKEW_MAX is logged, and again whenever it has grown by half.
    """

    def __init__(self) -> None:
        self._beats, self._logged = 0, 0.0
        self._skew: float | None = None

    def measure(self) -> float | None:
        """Return the last measurement in seconds. Every sixth call measures again."""
        if self._beats % _MEASURED_EVERY == 0:
            self._skew = clock.skew()
            difference = abs(self._skew or 0.0)
            if difference <= conf.SKEW_MAX:
                self._logged = 0.0
            elif difference > 1.5 * self._logged:
                self._logged = difference
                logger.error(
                    "The clock of this host is %.1f s from the database's (at most %g s are"
                    " allowed).",
                    self._skew,
                    conf.SKEW_MAX,
                )
        self._beats += 1
        return self._skew


class _WorkerReport:
    """Collects the report of this worker from Celery's state in the parent process."""

    def __init__(self, state: Any, consumer: Any, concurrency: int) -> None:
        self._state, self._consumer, self._concurrency = state, consumer, concurrency
        self._connection: Any = None
        self._reconnections = 0
        self._starts, self._at = process_runs.starts(), time.monotonic()
        self._busy = 0

    def has_free_process_again(self) -> bool:
        """Return once whether a process is free after all of them were busy for REPUBLISH_AFTER, so
        that schedulers may publish nothing to this worker.
        """
        if len(self._state.active_requests) >= self._busy:
            return False
        self._busy = 0
        pause = time.monotonic() - (process_runs.last_start() or 0.0)
        return pause > conf.settings().REPUBLISH_AFTER

    def __call__(self) -> NodeReport:
        """Return the report.

        Without a connection to the broker the worker cannot start tasks. It then reports a start
        just now, so that it is not considered stalled.
        """
        connection = getattr(self._consumer, "connection", None)
        if connection is not None and connection is not self._connection:
            self._reconnections += self._connection is not None
            self._connection = connection
        report = NodeReport(
            started=process_runs.last_start(),
            broker_outages=self._reconnections,
            names=self._names(),
        )
        if connection is None:
            return replace(report, started=time.monotonic())
        try:
            active = list(self._state.active_requests)
            held = held_by_queue(set(self._state.reserved_requests).difference(active))
        except RuntimeError:  # the consumer changed the set while we read it
            return report
        self._busy = len(active) if len(active) >= self._concurrency else 0
        messages = (prepared_messages.parse(request.id) for request in active)
        before, began = self._starts, self._at
        self._starts, self._at = process_runs.starts(), time.monotonic()
        return replace(
            report,
            active=[message.task_id for message in messages if message is not None],
            busy=len(active),
            held=held,
            starts=max(0, self._starts - before) / max(self._at - began, 0.001),
            mixed=worker_repairs.mixed.recent(),
            queues=self._queues(),
        )

    def _queues(self) -> list[str] | None:
        """Return the queues that are consumed now: the remote control can change them."""
        consumer = getattr(self._consumer, "task_consumer", None)
        return None if consumer is None else [str(queue.name) for queue in list(consumer.queues)]

    def _names(self) -> frozenset[str]:
        """Return the durable tasks that the consumer accepts. It refuses those that are registered
        after its start, because it has no strategy for them.
        """
        registered = self._consumer.app.tasks
        return frozenset(
            name
            for name in tuple(self._consumer.strategies)
            if hasattr(registered.get(name), "durable_options")
        )


def held_by_queue(requests: Iterable[Any]) -> Counter[str]:
    """Return the number of these requests of tasks by the queue from which they were consumed, and
    of the others under an empty name.
    """
    held = Counter[str]()
    for request in requests:
        of_task = prepared_messages.parse(request.id) is not None
        held.update(
            (prepared_messages.queue_names_of(request.request_dict) if of_task else ()) or ("",)
        )
    return held


def place(lease: float, queues: tuple[str, ...] = ()) -> RunLocation:
    """Return where runs of this process run, with the lease (seconds) that they get.

    ``queues``: the names of the queue from which the message was consumed, if known.
    """
    return RunLocation(node=_ThisProcess.node, worker=_ThisProcess.name, lease=lease, queues=queues)


def names_in_use() -> Collection[str]:
    """Return the names of the tasks for which this worker accepts messages."""
    consumer = _ThisProcess.consumer
    return () if consumer is None else consumer.strategies


def free_processes(but: Collection[str] = ()) -> int:
    """Return how many processes of the pool of this worker are free: 0 if it is not ready.

    Those of received messages that wait for a process count as busy. ``but``: the Celery ids of
    messages that the worker holds and may not yet count.
    """
    consumer = _ThisProcess.consumer
    if consumer is None:
        return 0
    try:
        busy = {request.id for request in consumer.controller.state.reserved_requests}
    except RuntimeError:  # a thread of the pool changed the set: it wakes the consumer, too
        return 0
    size = int(getattr(consumer.pool, "num_processes", 0) or 1)
    return max(0, size - len(busy.union(but)))


def tasks_in_process() -> set[uuid.UUID]:
    """Return the tasks whose messages this worker has given to its pool and that have not ended."""
    consumer = _ThisProcess.consumer
    if consumer is None:
        return set()
    messages = (
        prepared_messages.parse(request.id)
        for request in list(consumer.controller.state.reserved_requests)
    )
    return {message.task_id for message in messages if message is not None}


def node_of_worker() -> uuid.UUID | None:
    """Return the id of the node of this worker; None in the processes of a pool and elsewhere."""
    return _ThisProcess.node if _ThisProcess.worker_pid == os.getpid() else None


def in_pool_child() -> bool:
    """Return whether this process is a child of a prefork pool. Its parent records its death."""
    return _ThisProcess.is_pool_child


def on_worker_init(sender: Any = None, **_: Any) -> None:
    """Generate the node id before the pool forks, and share the time of the last start."""
    process_runs.share_last_start()
    app = getattr(sender, "app", None) or current_app._get_current_object()
    worker_repairs.record_queues(app)
    app.steps["consumer"].update(worker_repairs.STEPS)
    _stop_runs_first(sender)
    _ThisProcess.node, _ThisProcess.name = (
        uuid.uuid4(),
        shortened(str(getattr(sender, "hostname", _ThisProcess.name)), _NAME_BYTES),
    )
    _ThisProcess.worker_pid = os.getpid()
    name_connections(f"worker {_ThisProcess.name}")


def _stop_runs_first(worker: Any) -> None:
    """Stop runs also if the worker shuts down without a signal (``celery control shutdown``), and
    before it waits for them (``worker_soft_shutdown_timeout``).
    """
    for name in ("stop", "wait_for_soft_shutdown"):
        method = getattr(worker, name, None)
        if method is not None:
            setattr(worker, name, partial(_after_stop, method))


def _after_stop(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    process_runs.stop()
    return method(*args, **kwargs)


def on_worker_ready(sender: Any = None, **_: Any) -> None:
    """Register the node when the worker consumes messages."""
    controller = sender.controller
    queues = [str(queue) for queue in sender.app.amqp.queues.consume_from]
    pool = getattr(controller.pool_cls, "__module__", "").rpartition(".")[2]
    concurrency = int(getattr(controller.pool, "limit", 0) or controller.concurrency or 1)
    if isinstance(controller.pool, TaskPool):
        limit_threads()
    report = _WorkerReport(controller.state, sender, concurrency)
    _ThisProcess.beat = NodeBeat(
        _ThisProcess.node,
        _ThisProcess.name,
        NodeKind.WORKER,
        report,
        report.has_free_process_again,
        pool=pool,
        concurrency=concurrency,
        queues=queues,
    )
    _ThisProcess.beat.start()
    _ThisProcess.consumer = sender


def on_worker_shutting_down(**_: Any) -> None:
    """Drain the node. Called in a signal handler; the worker still finishes its runs, or those that
    can continue elsewhere stop.
    """
    _ThisProcess.consumer = None
    process_runs.stop()
    if _ThisProcess.beat is not None:
        _ThisProcess.beat.drain()


def on_worker_shutdown(**_: Any) -> None:
    """Mark the node as stopped after the worker has finished its runs."""
    if _ThisProcess.beat is not None:
        _ThisProcess.beat.leave()
        _ThisProcess.beat = None


def on_pool_child(**_: Any) -> None:
    """Detect a prefork child. The solo pool sends the signal too, but in the same process."""
    _ThisProcess.is_pool_child, _ThisProcess.beat = os.getpid() != _ThisProcess.worker_pid, None
    if _ThisProcess.is_pool_child:
        _ThisProcess.consumer = None


def connect() -> None:
    """Connect the receivers and the remote control; called once by ``apps.ready()``."""
    result.connect_remote_control()
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

"""A worker is a node: its parent process says every few seconds that it lives.

The boot id is drawn in the parent before it forks, so that its children start runs in its name. A process that is no
worker (eager mode, a shell) is nobody's node: its runs are judged by their own leases.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import uuid
from typing import Any

from celery import signals
from django.db import Error

from django_durable_tasks import conf
from django_durable_tasks.lifecycle import nodes
from django_durable_tasks.lifecycle.attempts import Place
from django_durable_tasks.lifecycle.connections import own
from django_durable_tasks.models import NodeKind

logger = logging.getLogger("django_durable_tasks.nodes")


class _Here:
    node: uuid.UUID = uuid.uuid4()
    name: str = f"{platform.node()}:{os.getpid()}"
    worker_pid: int | None = None
    is_pool_child: bool = False
    beat: NodeBeat | None = None


class NodeBeat(threading.Thread):
    """The heartbeat of a node.

    A node that was declared dead by mistake comes back under its id: that is the one in whose name its children go on
    to start runs. What was taken from them is fenced by epoch and run id, not by the node.
    """

    def __init__(self, node: uuid.UUID, name: str, kind: NodeKind, **details: Any) -> None:
        super().__init__(name="durable-node", daemon=True)
        self.node, self.details = node, {"name": name, "kind": kind, **details}
        self._stop_asked = threading.Event()
        self._registered = False

    def run(self) -> None:
        """Beat until told to stop; an outage of the database is logged once and waited out."""
        away = False
        while True:
            try:
                with own():
                    self._say()
                away = False
            except Exception as error:  # noqa: BLE001 - a beat that ends would condemn every run of this node
                if not away:
                    logger.warning("This node cannot reach the database: %s", type(error).__name__)
                away = True
            if self._stop_asked.wait(conf.settings().NODE_HEARTBEAT):
                return

    def _say(self) -> None:
        if self._registered and nodes.beat(self.node):
            return
        if self._registered:
            logger.warning("This node was declared dead; it registers again.")
        nodes.register(self.node, **self.details)
        self._registered = True

    def leave(self) -> None:
        """Stop beating and say goodbye."""
        self._stop_asked.set()
        self.join(timeout=10)
        try:
            with own():
                nodes.leave(self.node)
        except Error as error:
            logger.warning("This node could not say goodbye: %s", type(error).__name__)


def place(lease: float) -> Place:
    """Return where runs of this process run, with the lease (seconds) that they get."""
    return Place(node=_Here.node, worker=_Here.name, lease=lease)


def in_pool_child() -> bool:
    """Return whether this process is a child of a prefork pool, whose parent tells when it dies."""
    return _Here.is_pool_child


def on_worker_init(sender: Any = None, **_: Any) -> None:
    """Before the pool starts: draw the boot id that the children inherit."""
    _Here.node, _Here.name = uuid.uuid4(), str(getattr(sender, "hostname", _Here.name))
    _Here.worker_pid = os.getpid()


def on_worker_ready(sender: Any = None, **_: Any) -> None:
    """The worker consumes: say so."""
    controller = sender.controller
    queues = [str(queue) for queue in sender.app.amqp.queues.consume_from]
    pool = getattr(controller.pool_cls, "__module__", "").rpartition(".")[2]
    slots = int(getattr(controller.pool, "limit", 0) or controller.concurrency or 1)
    _Here.beat = NodeBeat(_Here.node, _Here.name, NodeKind.WORKER, pool=pool, slots=slots, queues=queues)
    _Here.beat.start()


def on_worker_shutdown(**_: Any) -> None:
    """The worker has finished its runs: say goodbye."""
    if _Here.beat is not None:
        _Here.beat.leave()
        _Here.beat = None


def on_pool_child(**_: Any) -> None:
    """A prefork child begins; the solo pool says so too, though it has no parent that could tell."""
    _Here.is_pool_child, _Here.beat = os.getpid() != _Here.worker_pid, None


def connect() -> None:
    """Connect the life of the worker; called once by ``apps.ready()``."""
    pairs = [
        (signals.worker_init, on_worker_init),
        (signals.worker_ready, on_worker_ready),
        (signals.worker_shutdown, on_worker_shutdown),
        (signals.worker_process_init, on_pool_child),
    ]
    for signal, receiver in pairs:
        signal.connect(receiver, weak=False, dispatch_uid=f"django_durable_tasks.{receiver.__name__}")

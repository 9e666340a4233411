"""Imports the function of a task whose name a worker does not know, if it is a `@task` function of
``django.tasks``.

A project may write such functions in any module, and Celery imports the ``tasks`` modules only. A
module is imported only if the project uses the backend, and only for the name of a stored task: one
whose message the worker got, or one that waits because no worker of its queue has the name.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from celery import current_app, signals
from celery.app.registry import TaskRegistry
from celery.app.trace import build_tracer
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import Error
from django.utils.module_loading import import_string

from django_durable_tasks import conf, process_state, registry
from django_durable_tasks.celery.prepared_messages import Envelope
from django_durable_tasks.limits import scopes, waitlist
from django_durable_tasks.models import Task
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.store.errors import reason_of

logger = logging.getLogger("django_durable_tasks.runs")
# Seconds between two looks for waiting tasks. As long as a heartbeat of a node, which announces the
# names of a worker.
_INTERVAL = 5.0
# The waiting names that one look reads.
_NAMES_MAX = 100
# Names that could not be imported and are not tried again in this process.
_REFUSED_MAX = 1_000
_idle = threading.Event()
"""Never set: waiting for it is a pause."""
_OF_DJANGO = ("django", "django_tasks")


class RefusedNames:
    """The names that this process could not import."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        """Remember the name, and forget the oldest one above the limit."""
        self._names[name] = None
        if len(self._names) > _REFUSED_MAX:
            self._names.popitem(last=False)


def is_stored(envelope: Envelope, name: str) -> bool:
    """Return whether the task of this message has this name, so that a message alone cannot have a
    module imported. False if the database is unavailable.
    """
    try:
        with dedicated_connection():
            rows = Task.objects.using(conf.settings().DATABASE)
            return bool(rows.filter(pk=envelope.task_id, name=name).exists())
    except Error as error:
        logger.warning("Task %s was not looked up: %s", envelope.task_id, reason_of(error))
        return False


def backends() -> list[str]:
    """Return the paths of the backends of the project that are none of Django's."""
    entries = (getattr(settings, "TASKS", None) or {}).values()
    paths = [str(entry.get("BACKEND", "")) for entry in entries]
    return [path for path in paths if path.partition(".")[0] not in _OF_DJANGO]


def load(name: str) -> bool:
    """Import the durable task of this name; return whether this process has it now."""
    refused = process_state.of(RefusedNames)
    if name in refused:
        return False
    for backend in backends():
        with suppress(ImportError, ImproperlyConfigured):
            import_string(backend)  # adds its importer
    if any(importer(name) for importer in registry.importers):
        logger.info("Imported the task function %s.", name)
        return name in current_app.tasks
    refused.add(name)
    return False


class LateTasks(TaskRegistry):
    """The tasks of a child process, which was forked before its worker imported some of them."""

    def __getitem__(self, name: str) -> Any:
        """Return the task. Celery prepares tasks when the process starts; this prepares later ones,
        also those that another import of this process has registered.
        """
        task = super().__getitem__(name)
        if task.__trace__ is None:
            app = current_app._get_current_object()
            task.__trace__ = build_tracer(name, task, app.loader, app=app)
        return task

    def __missing__(self, name: str) -> Any:
        if registry.find(name) is not None or not load(name):
            return super().__missing__(name)
        return self[name]


class WaitingNames(threading.Thread):
    """Imports the functions of tasks that wait because no worker of their queue has their name."""

    def __init__(self, consumer: Any) -> None:
        super().__init__(name="durable-late-tasks", daemon=True)
        self._consumer = consumer
        self._queues = {str(queue) for queue in consumer.app.amqp.queues.consume_from}
        # Set in a signal handler, where setting a threading.Event could deadlock.
        self.is_stopping = False

    def run(self) -> None:
        """Look every few seconds until ``is_stopping`` is set."""
        while not self.is_stopping:
            _idle.wait(_INTERVAL)
            try:
                with dedicated_connection():
                    names = list(self._waiting())
            except Error as error:
                logger.debug("The waiting tasks were not read: %s", reason_of(error))
                continue
            if sum(load(name) for name in names):
                # The event loop owns the strategies, and the next heartbeat announces them.
                self._consumer.call_soon(self._consumer.update_strategies)

    def _waiting(self) -> Iterator[str]:
        for scope in waitlist.scopes_after(scopes.WORKER, _NAMES_MAX):
            worker = scopes.worker_of(scope)
            if worker is None:
                return
            name, queue = worker
            if queue in self._queues and registry.find(name) is None:
                yield name


_finder: WaitingNames | None = None


def on_worker_ready(sender: Any = None, **_: Any) -> None:
    """Begin to look for waiting tasks."""
    global _finder
    if backends() and (_finder is None or not _finder.is_alive()):
        _finder = WaitingNames(sender)
        _finder.start()


def on_worker_shutting_down(**_: Any) -> None:
    """End the looks."""
    if _finder is not None:
        _finder.is_stopping = True


def on_pool_child(**_: Any) -> None:
    """Let this child process import the tasks that its parent process imports later."""
    if backends():
        current_app.tasks.__class__ = LateTasks


def connect() -> None:
    """Connect the receivers; called once by ``apps.ready()``."""
    for signal, receiver in (
        (signals.worker_ready, on_worker_ready),
        (signals.worker_shutting_down, on_worker_shutting_down),
        (signals.worker_process_init, on_pool_child),
    ):
        uid = f"django_durable_tasks.late_tasks.{receiver.__name__}"
        signal.connect(receiver, weak=False, dispatch_uid=uid)

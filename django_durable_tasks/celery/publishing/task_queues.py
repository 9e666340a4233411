"""The queues that Celery tasks use, to which no message of ``queue_message`` is published.

Such a message starts nothing (``rules.targets.queue_message`` refuses the headers by which it would
be a task, and Kombu does not decode its body). A worker would still receive and reject it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from celery import current_app

from django_durable_tasks import conf, registry
from django_durable_tasks.celery.publishing.routing import queues_reached
from django_durable_tasks.engine.db.tables import database
from django_durable_tasks.exceptions import InvalidTarget
from django_durable_tasks.models import Node, NodeKind
from django_durable_tasks.rules.targets.queue_message import TENANT

# Kombu's default for Redis, where the messages of a priority are in a key of their own.
_REDIS_SEPARATOR = "\x06\x16"
# Queues and exchanges of remote control, of its replies, of `worker_direct`.
_RESERVED = re.compile(r".*\.pidbox|C\.dq2?|.*\.dq2?", re.DOTALL)


def refuse_task_queues(exchange: str, routing_key: str, tenant: str | None = None) -> None:
    """Raise InvalidTarget if Celery tasks use the queue, or one that the exchange reaches.

    ``tenant``: the slug for which ``{tenant}`` stands in API_QUEUES; None: entries with it are not
    considered. Reads the live workers from the database.
    """
    # Celery declares an exchange with the name of the queue for each queue without one.
    names = {exchange, *queues_reached(exchange, routing_key)} if exchange else {routing_key}
    patterns = api_queue_patterns(tenant)
    for name in sorted(names):
        user = user_of(name, configured_queues(), patterns) or _worker_of(name)
        if user is not None:
            place = f"exchange {exchange!r}" if exchange else f"queue {routing_key!r}"
            raise InvalidTarget(
                f"{place} is used for Celery tasks ({user}): create a durable task instead."
            )


def api_queue_patterns(tenant: str | None) -> list[str]:
    """Return the entries of API_QUEUES for this tenant."""
    return [
        entry.replace(TENANT, tenant or "")
        for entry in conf.settings().API_QUEUES
        if tenant is not None or TENANT not in entry
    ]


def user_of(name: str, configured: Mapping[str, str], patterns: Iterable[str]) -> str | None:
    """Return what uses this queue or exchange for tasks; None if nothing does."""
    config = current_app.conf
    if (
        name == config.event_exchange
        or name.startswith(f"{config.event_queue_prefix}.")
        or _RESERVED.fullmatch(name)
    ):
        return "commands and events of workers"
    separator = (config.broker_transport_options or {}).get("sep", _REDIS_SEPARATOR)
    for form in (name, re.sub(f"{re.escape(separator)}[0-9]+$", "", name)):
        if form in configured:
            return configured[form]
        if any(fnmatchcase(form, pattern) for pattern in patterns):
            return "DURABLE_TASKS['API_QUEUES']"
    return None


def _worker_of(name: str) -> str | None:
    """Return the live worker that consumes this queue. Workers that are draining count too."""
    workers = Node.objects.using(database()).alive().filter(kind=NodeKind.WORKER)
    for worker, queues in workers.values_list("name", "queues"):
        if name in queues:
            return f"a queue of the worker {worker}"
    return None


def configured_queues() -> dict[str, str]:
    """Return the queues that settings and registered tasks name, with what names each."""
    app = current_app._get_current_object()
    found: dict[str, str] = {}
    for source, queues in (
        ("CELERY_TASK_QUEUES", _declared(app)),
        ("CELERY_TASK_DEFAULT_QUEUE", [app.conf.task_default_queue]),
        ("CELERY_TASK_ROUTES", _routed(app)),
        ("CELERY_BEAT_SCHEDULE", map(_of_beat, (app.conf.beat_schedule or {}).values())),
        ("DURABLE_TASKS['HTTP_RETRY_QUEUE']", [conf.settings().HTTP_RETRY_QUEUE]),
        ("DURABLE_TASKS['SCHEDULES']", map(_queue_of, (conf.settings().SCHEDULES or {}).values())),
        ("a task", (getattr(task, "queue", None) for task in app.tasks.values())),
        ("a durable task", _of_durable_tasks()),
    ):
        for queue in queues:
            if queue is not None:
                found.setdefault(str(getattr(queue, "name", queue)), source)
    return found


def _declared(app: Any) -> Iterator[Any]:
    """Yield the queues of this application by their names and aliases."""
    for name, queue in app.amqp.queues.items():
        yield name
        yield queue


def _routed(app: Any) -> Iterator[Any]:
    """Yield the queues of CELERY_TASK_ROUTES. What a function returns is not known."""
    for route in app.amqp.router.routes:
        for table in (getattr(route, "map", {}), getattr(route, "patterns", {})):
            for target in table.values():
                yield target if isinstance(target, str) else _queue_of(target)


def _of_durable_tasks() -> Iterator[Any]:
    for name in registry.names():
        registered = registry.find(name)
        yield None if registered is None else registered.options.queue


def _of_beat(entry: Any) -> Any:
    return _queue_of(entry.get("options") or {}) if isinstance(entry, Mapping) else None


def _queue_of(options: Any) -> Any:
    return options.get("queue") if isinstance(options, Mapping) else None

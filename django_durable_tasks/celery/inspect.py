"""Reads Celery's configuration for the system checks and the commands. Connects only if
requested.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import kombu
from celery import _state, current_app
from celery.exceptions import ImproperlyConfigured

from django_durable_tasks.celery.publishing.broker_connection import BrokerConnection, failures_of
from django_durable_tasks.celery.transports import filesystem

_REDIS_VISIBILITY = 3600.0
_SKIP_CHECKS = "CELERY_SKIP_CHECKS"


@dataclass(frozen=True, slots=True, kw_only=True)
class CeleryConfiguration:
    """Celery's configuration as far as it concerns durable tasks; ``visibility_timeout`` in
    seconds.
    """

    broker_is_set: bool
    transport: str
    folder_problem: str | None
    visibility_timeout: float | None
    serializers: dict[str, tuple[str, ...]]
    accepted: frozenset[str]
    pool: str
    eager: bool
    eager_propagates: bool
    prefetch_multiplier: int
    acks_late: bool
    reject_on_worker_lost: bool
    transient_queues: tuple[str, ...]
    """The kinds of queues (control, event) of workers that are neither durable nor exclusive."""


def is_configured() -> bool:
    """Return whether every thread of this process uses an application of the project.

    Celery falls back to an application without a broker if the project's was not created before the
    first use. Other threads see a project's application only if it became the default one.
    """
    current_app._get_current_object()
    seen_by_threads = _state.default_app
    return not (seen_by_threads.main == "default" and not seen_by_threads.set_as_current)


def read() -> CeleryConfiguration:
    """Return the configuration of the current application."""
    app = current_app._get_current_object()
    config = app.conf
    connection = app.connection_for_write()
    transport = str(connection.transport_cls)
    options = config.broker_transport_options or {}
    visibility = options.get(
        "visibility_timeout", _REDIS_VISIBILITY if is_redis(transport) else None
    )
    accepted = tuple(str(kind) for kind in config.accept_content or ())
    return CeleryConfiguration(
        broker_is_set=bool(config.broker_write_url),
        transport=transport,
        folder_problem=_folder_problem(connection) if transport == filesystem.ALIAS else None,
        visibility_timeout=None if visibility is None else float(visibility),
        serializers={
            "CELERY_ACCEPT_CONTENT": accepted,
            "CELERY_TASK_SERIALIZER": (str(config.task_serializer),),
            "CELERY_RESULT_SERIALIZER": (str(config.result_serializer),),
        },
        accepted=frozenset(accepted),
        pool=str(config.worker_pool),
        eager=bool(config.task_always_eager),
        eager_propagates=bool(config.task_eager_propagates),
        prefetch_multiplier=int(config.worker_prefetch_multiplier),
        acks_late=bool(config.task_acks_late),
        reject_on_worker_lost=bool(config.task_reject_on_worker_lost),
        transient_queues=tuple(
            kind
            for kind in ("control", "event")
            if not config[f"{kind}_queue_exclusive"] and not config[f"{kind}_queue_durable"]
        ),
    )


def _folder_problem(connection: Any) -> str | None:
    try:
        filesystem.data_folder(connection)
    except ImproperlyConfigured as problem:
        return str(problem)
    return None


def is_rabbitmq(transport: str) -> bool:
    """Return whether this transport uses RabbitMQ."""
    return transport.startswith(("amqp", "pyamqp", "librabbitmq"))


def is_redis(transport: str) -> bool:
    """Return whether this transport uses Redis."""
    return transport.startswith(("redis", "rediss", "sentinel", "valkey"))


def kombu_version() -> tuple[int, ...]:
    """Return the version of the installed Kombu."""
    return tuple(kombu.VERSION[:3])


# The longest wait, in seconds, for another thread that imports the task modules. It is bounded
# because a module that is being imported may wait for this thread.
_IMPORT_TIMEOUT = 30.0


class _Tasks:
    lock = threading.RLock()
    loading = False
    loaded_by: Any = None


def load_tasks() -> str | None:
    """Import the task modules as a worker does, so that the registry is complete. Return the error,
    or None.

    Celery imports them in workers only, and runs the system checks then. The checks are skipped
    here, because a check may call this function. Other threads wait until the import has ended. A
    call during the import, by the thread that performs it, returns None at once.
    """
    app = current_app._get_current_object()
    if _Tasks.loaded_by is app or not is_configured():
        return None
    if not _Tasks.lock.acquire(timeout=_IMPORT_TIMEOUT):
        return f"Another thread has imported the task modules for more than {_IMPORT_TIMEOUT:g} s"
    try:
        if _Tasks.loading or _Tasks.loaded_by is app:
            return None
        with _without_checks():
            app.loader.import_default_modules()
        _Tasks.loaded_by = app
    except Exception as error:  # noqa: BLE001 - a module may raise anything; the caller reports it
        return f"{type(error).__name__}: {error}"
    finally:
        _Tasks.lock.release()
    return None


@contextmanager
def _without_checks() -> Iterator[None]:
    before = os.environ.get(_SKIP_CHECKS)
    os.environ[_SKIP_CHECKS] = "1"
    _Tasks.loading = True
    try:
        yield
    finally:
        _Tasks.loading = False
        if before is None:
            del os.environ[_SKIP_CHECKS]
        else:
            os.environ[_SKIP_CHECKS] = before


def broker_problem() -> str | None:
    """Connect to the broker within PUBLISH_TIMEOUT; return why it does not respond, without its
    password, or None.
    """
    app = current_app._get_current_object()
    connection = app.connection_for_write()
    try:
        BrokerConnection(app).close()
    except failures_of(connection) as error:
        return f"{connection.as_uri()}: {type(error).__name__}"
    return None

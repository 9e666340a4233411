"""What only Celery knows: its configuration, loaded tasks and time zone."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kombu
from celery import _state, current_app
from celery.exceptions import ImproperlyConfigured
from django.core.exceptions import ImproperlyConfigured as DjangoImproperlyConfigured
from django.utils import autoreload

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.celery import filesystem
from django_durable_tasks.celery.publisher import BrokerConnection, failures_of
from django_durable_tasks.choices import WITH_DUE_AT, Status
from django_durable_tasks.cluster import status
from django_durable_tasks.exceptions import DurableTasksError, InvalidSchedule
from django_durable_tasks.models import Task
from django_durable_tasks.schedules.timetables.zones import zone_name
from django_durable_tasks.tasks.explanations import Level, Sentence, explain

# Reads Celery's configuration for the system checks and the commands. Connects only if requested.


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


def transport_problem() -> str | None:
    """Return why Kombu cannot load the transport of the broker, or None."""
    try:
        current_app.connection_for_write()
    except (ImportError, KeyError) as error:  # KeyError: an unknown name
        return str(error.args[0] if error.args else error)
    return None


def read() -> CeleryConfiguration:
    """Return the configuration of the current application."""
    app = current_app._get_current_object()
    config = app.conf
    connection = app.connection_for_write()
    transport = str(connection.transport_cls)
    visibility = (config.broker_transport_options or {}).get(
        "visibility_timeout", _REDIS_VISIBILITY if is_redis(transport) else None
    )
    folder_problem = None
    if transport == filesystem.ALIAS:
        try:
            filesystem.data_folder(connection)
        except ImproperlyConfigured as problem:
            folder_problem = str(problem)
    accepted = tuple(str(kind) for kind in config.accept_content or ())
    return CeleryConfiguration(
        broker_is_set=bool(config.broker_write_url),
        transport=transport,
        folder_problem=folder_problem,
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


def _reload_when_corrected(error: Exception) -> None:
    """Let the reloader of the development server watch the files that the error passed through.

    It watches imported modules, and a module that raised is none. Django adds the file of an error
    that ends a command, but a system check reports this one instead.
    """
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        files.append(error.filename)
    watched: list[str] = autoreload._error_files  # type: ignore[attr-defined] # not in the stubs
    watched += [name for name in files if Path(name).is_file()]


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
        _reload_when_corrected(error)
        return f"{type(error).__name__}: {error}"
    finally:
        _Tasks.lock.release()
    return None


def declared_queues() -> set[str]:
    """Return the queues of the durable tasks that are registered in this process."""
    load_tasks()
    queues = set()
    for name in registry.names():
        with suppress(DurableTasksError):
            queues.add(ports.queue_of(name, registry.get(name).options.queue))
    return queues


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
    try:
        connection = app.connection_for_write()
        failures = failures_of(connection)
        try:
            BrokerConnection(app).close()
        except failures as error:
            return f"{connection.as_uri()}: {type(error).__name__}"
    except DjangoImproperlyConfigured as error:  # of the broker in the database, with the remedy
        return str(error)
    return None


# Explains why a task has not run, including what only Celery knows: whether its code is loaded and
# the broker responds.


def sentences(task: Task) -> list[Sentence]:
    """Return what prevents the next step of the task, problems first; at least one sentence.

    Connects to the broker, within PUBLISH_TIMEOUT, if the task waits for a message.
    """
    import_problem = load_tasks()
    durable = registry.find(task.name)
    situation, led = status.situation(
        task,
        known=durable is not None,
        has_batches=durable is not None and durable.options.batch is not None,
    )
    # The problems that the row does not show.
    troubles = []
    is_stuck = situation.publish_count > 1 or (
        task.lease_until is not None and task.lease_until < situation.now
    )
    is_on_its_way = task.status in (Status.QUEUED, Status.RUNNING)
    if situation.schedulers and not led and is_on_its_way and is_stuck:
        troubles.append(
            "No scheduler is the leader, so it is not republished or taken from a dead worker."
        )
    if (
        task.status in WITH_DUE_AT
        and task.due_at is not None
        and (task.status == Status.QUEUED or task.due_at <= situation.now)
        and (problem := broker_problem()) is not None
    ):
        troubles.append(f"The broker does not answer from here: {problem}.")
    if import_problem is not None:
        troubles.append(f"The modules of tasks cannot be imported here: {import_problem}")
    explained = explain(situation)
    at = sum(sentence.level == Level.TROUBLE for sentence in explained)
    explained[at:at] = [Sentence(Level.TROUBLE, text) for text in troubles]
    return explained


# Finds the time zone of a new schedule without one, by the same rule in every process.


CELERYS, DJANGOS = "CELERY_TIMEZONE", "TIME_ZONE"


@dataclass(frozen=True, slots=True)
class NamedZone:
    """A zone and the setting that names it."""

    name: str
    setting: str


def default_zone() -> NamedZone:
    """Return the first zone that is set, as beat does: CELERY_TIMEZONE, TIME_ZONE.

    Raises InvalidSchedule if a setting contains an unknown zone.
    """
    return next(_named())


def schedule_zone() -> str:
    """Return the name of the default zone."""
    return default_zone().name


def differing() -> tuple[NamedZone, NamedZone] | None:
    """Return the default zone and the other setting if it names another one; None if they agree."""
    first = default_zone()
    return next(
        ((first, zone) for zone in _named() if _canonical(zone.name) != _canonical(first.name)),
        None,
    )


def _named() -> Iterator[NamedZone]:
    # The attribute conf.timezone is TIME_ZONE where CELERY_TIMEZONE is not set; the key is the
    # setting alone.
    celerys = current_app.conf.get("timezone") or conf.celery_time_zone()
    for setting, value in (
        (CELERYS, celerys),
        (DJANGOS, conf.time_zone()),
    ):
        if value:
            try:
                yield NamedZone(zone_name(value), setting)
            except InvalidSchedule as refused:
                raise InvalidSchedule(f"{setting} names no time zone: {refused}") from None


def _canonical(name: str) -> str:
    return (
        "UTC"
        if name in {"Etc/UTC", "Etc/UCT", "Etc/Universal", "Etc/Zulu", "UCT", "Universal", "Zulu"}
        else name
    )

"""The system checks of task options and of schedules in code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage

from django_durable_tasks import ports
from django_durable_tasks.celery import inspect
from django_durable_tasks.celery.publishing.broker_addresses import unreachable_beat_entries
from django_durable_tasks.checks.findings import FINDINGS
from django_durable_tasks.checks.settings import listed, registered_options, valid_settings
from django_durable_tasks.conf import InvalidSetting
from django_durable_tasks.decorators import stray_schedules
from django_durable_tasks.engine.db.connections import on_sqlite
from django_durable_tasks.engine.limits import config
from django_durable_tasks.engine.recurring import sync
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.rules.limits import options
from django_durable_tasks.rules.target_types import HTTP_CALLBACK_TASK
from django_durable_tasks.rules.tasks.options import TaskOptions


def check_tasks(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check the options of the durable tasks that are registered in this project."""
    problem, settings = inspect.load_tasks(), valid_settings()
    found = [] if problem is None else [FINDINGS["E018"](reason=problem)]
    if settings is None:
        return found
    short = [
        task.name
        for task in registered_options()
        if task.lease is not None and task.lease < 2 * settings.HEARTBEAT
    ]
    if short:
        found.append(FINDINGS["E006"](names=listed(short), beat=settings.HEARTBEAT))
    atomic = [task.name for task in registered_options() if task.atomic]
    if atomic and on_sqlite():
        found.append(FINDINGS["W011"](names=listed(atomic)))
    return [*found, *retry_queue_findings(settings.HTTP_RETRY_QUEUE), *_weights()]


def retry_queue_findings(queue: str | None) -> Iterator[CheckMessage]:
    """Report a HTTP_RETRY_QUEUE that Celery's configuration does not have."""
    if queue is None:
        return
    try:
        ports.queue_of(HTTP_CALLBACK_TASK, queue)
    except DurableTasksError as error:
        yield FINDINGS["E021"](reason=error)


def _weights() -> Iterator[CheckMessage]:
    try:
        coded = config.coded()
    except InvalidSetting:
        return  # reported as E001
    for task in registered_options():
        per_key = options.per_key_of(task.rate_limit, task.max_concurrency)
        scopes = (options.GLOBAL, *_of_queue(task), options.of_task(task.name))
        bound = {scope: coded[scope] for scope in scopes if scope in coded}
        if per_key is not None:
            bound["of its key"] = per_key
        for scope, allowed in bound.items():
            if allowed.heaviest and task.weight > allowed.heaviest:
                yield FINDINGS["W013"](
                    name=task.name, weight=task.weight, scope=scope, most=allowed.heaviest
                )


def _of_queue(task: TaskOptions) -> list[str]:
    """Return the scope of the task's queue; an empty one if Celery's routing gives no queue, which
    the call itself reports.
    """
    try:
        return [options.of_queue(ports.queue_of(task.name, task.queue))]
    except DurableTasksError:
        return []


def check_schedules(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check the schedules that are declared in code and settings."""
    if inspect.load_tasks() is not None or valid_settings() is None:
        return []  # reported as E018 or E001
    bad = [
        FINDINGS["E014"](name=name, reason=reason)
        for name, reason in sync.declarations()[1].items()
    ]
    stray = [
        FINDINGS["W012"](name=name, function=function)
        for name, function in stray_schedules().items()
    ]
    beat = [
        FINDINGS["W015"](name=name, reason=reason)
        for name, reason in unreachable_beat_entries().items()
    ]
    return [*bad, *stray, *beat]

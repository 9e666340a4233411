"""The system check of Celery's configuration: broker, serializers, eager mode and workers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage

from django_durable_tasks.celery import inspect
from django_durable_tasks.celery.publishing.task_queues import (
    api_queue_patterns,
    configured_queues,
    user_of,
)
from django_durable_tasks.checks.findings import FINDINGS
from django_durable_tasks.checks.settings import listed, registered_options, valid_settings
from django_durable_tasks.rules.targets.queue_message import TENANT

OLDEST_KOMBU = (5, 4)


UNSAFE = frozenset({"pickle", "yaml", "application/x-python-serialize", "application/x-yaml"})


UNTIMED_POOLS = ("threads", "solo", "gevent", "eventlet")

_SLUG = "tenant"


def check_celery(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check that this project has a Celery app, and check the settings of that app."""
    if inspect.kombu_version() < OLDEST_KOMBU:
        return [FINDINGS["E011"](found=".".join(map(str, inspect.kombu_version())))]
    if not inspect.is_configured():
        return [FINDINGS["E007"]()]
    wiring = inspect.read()
    return [
        *_broker(wiring),
        *_serializers(wiring),
        *_eager(wiring),
        *_worker(wiring),
        *_messages(),
    ]


def _messages() -> Iterator[CheckMessage]:
    """Compare QUEUE_ALLOW with the queues of tasks. Queues that only workers know are refused when
    a message is published, because this check does not read the database.
    """
    settings = valid_settings()
    if settings is None or not settings.QUEUE_ALLOW:
        return
    # Any slug does: the same stands for the tenant in both settings.
    configured, patterns = configured_queues(), api_queue_patterns(_SLUG)
    for entry in settings.QUEUE_ALLOW:
        name = entry.removeprefix("exchange:")
        form = re.compile(re.escape(name).replace(re.escape(TENANT), "[-a-zA-Z0-9_]+"))
        users = [used for queue, used in configured.items() if form.fullmatch(queue)]
        user = users[0] if users else user_of(name.replace(TENANT, _SLUG), configured, patterns)
        if user is not None:
            yield FINDINGS["W019"](entry=entry, user=user)


def _broker(wiring: inspect.CeleryConfiguration) -> Iterator[CheckMessage]:
    settings = valid_settings()
    if not wiring.broker_is_set:
        yield FINDINGS["W009"]()
    if wiring.transport == "filesystem":
        yield FINDINGS["E010"]()
    if wiring.folder_problem is not None:
        yield FINDINGS["E019"](reason=wiring.folder_problem)
    if inspect.is_rabbitmq(wiring.transport) and wiring.transient_queues:
        settings_of = [f"CELERY_{kind.upper()}_QUEUE_EXCLUSIVE" for kind in wiring.transient_queues]
        yield FINDINGS["W018"](settings=" and ".join(settings_of))
    if settings is None or wiring.visibility_timeout is None:
        return
    longest = max(
        [settings.LEASE, *(task.lease for task in registered_options() if task.lease is not None)]
    )
    if wiring.visibility_timeout < longest:
        yield FINDINGS["W001"](visible=wiring.visibility_timeout, lease=longest)


def _serializers(wiring: inspect.CeleryConfiguration) -> Iterator[CheckMessage]:
    for setting, kinds in wiring.serializers.items():
        for kind in kinds:
            if kind in UNSAFE:
                yield FINDINGS["W021"](setting=setting, kind=kind)
    if not wiring.accepted & {"json", "application/json"}:
        yield FINDINGS["E009"](accepted=", ".join(sorted(wiring.accepted)))


def _eager(wiring: inspect.CeleryConfiguration) -> Iterator[CheckMessage]:
    if wiring.eager:
        yield FINDINGS["W002"]()
        if wiring.eager_propagates:
            yield FINDINGS["W003"]()


def _worker(wiring: inspect.CeleryConfiguration) -> Iterator[CheckMessage]:
    limited = [
        task.name
        for task in registered_options()
        if task.timeout is not None or task.soft_timeout is not None
    ]
    if limited and wiring.pool in UNTIMED_POOLS:
        yield FINDINGS["W004"](pool=wiring.pool, names=listed(limited))
    if wiring.prefetch_multiplier != 1:
        yield FINDINGS["W005"](found=wiring.prefetch_multiplier)
    if wiring.acks_late:
        yield FINDINGS["W006"]()
    if wiring.reject_on_worker_lost:
        yield FINDINGS["W007"]()

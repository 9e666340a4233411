"""The system check of Celery's configuration: broker, serializers, eager mode and workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage

from django_durable_tasks.celery import inspect
from django_durable_tasks.checks.findings import FINDINGS
from django_durable_tasks.checks.settings import listed, registered_options, valid_settings

OLDEST_KOMBU = (5, 4)


UNSAFE = frozenset({"pickle", "yaml", "application/x-python-serialize", "application/x-yaml"})


UNTIMED_POOLS = ("threads", "solo", "gevent", "eventlet")


def check_celery(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check that this project has a Celery app, and check the settings of that app."""
    if inspect.kombu_version() < OLDEST_KOMBU:
        return [FINDINGS["E011"](found=".".join(map(str, inspect.kombu_version())))]
    if not inspect.is_configured():
        return [FINDINGS["E007"]()]
    told = inspect.read()
    return [*_broker(told), *_serializers(told), *_eager(told), *_worker(told)]


def _broker(told: inspect.Wiring) -> Iterator[CheckMessage]:
    settings = valid_settings()
    if not told.broker_is_set:
        yield FINDINGS["W009"]()
    if told.transport == "filesystem":
        yield FINDINGS["E010"]()
    if told.folder_problem is not None:
        yield FINDINGS["E019"](reason=told.folder_problem)
    if settings is None or told.visibility_timeout is None:
        return
    longest = max(
        [settings.LEASE, *(task.lease for task in registered_options() if task.lease is not None)]
    )
    if told.visibility_timeout < longest:
        yield FINDINGS["W001"](visible=told.visibility_timeout, lease=longest)


def _serializers(told: inspect.Wiring) -> Iterator[CheckMessage]:
    for setting, kinds in told.serializers.items():
        for kind in kinds:
            if kind in UNSAFE:
                yield FINDINGS["E008"](setting=setting, kind=kind)
    if not told.accepted & {"json", "application/json"}:
        yield FINDINGS["E009"](accepted=", ".join(sorted(told.accepted)))


def _eager(told: inspect.Wiring) -> Iterator[CheckMessage]:
    if told.eager:
        yield FINDINGS["W002"]()
        if told.eager_propagates:
            yield FINDINGS["W003"]()


def _worker(told: inspect.Wiring) -> Iterator[CheckMessage]:
    limited = [
        task.name
        for task in registered_options()
        if task.timeout is not None or task.soft_timeout is not None
    ]
    if limited and told.pool in UNTIMED_POOLS:
        yield FINDINGS["W004"](pool=told.pool, names=listed(limited))
    if told.prefetch_multiplier != 1:
        yield FINDINGS["W005"](found=told.prefetch_multiplier)
    if told.acks_late:
        yield FINDINGS["W006"]()
    if told.reject_on_worker_lost:
        yield FINDINGS["W007"]()

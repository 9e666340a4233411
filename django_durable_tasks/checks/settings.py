"""The system check of ``settings.DURABLE_TASKS``, and helpers with which other checks read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.checks import CheckMessage
from django.db import DEFAULT_DB_ALIAS, connections, router

from django_durable_tasks import conf, registry
from django_durable_tasks.celery import zones
from django_durable_tasks.checks.findings import FINDINGS
from django_durable_tasks.conf import InvalidSetting, Settings
from django_durable_tasks.encryption import current_key_id
from django_durable_tasks.engine.cluster import nodes
from django_durable_tasks.engine.limits import config
from django_durable_tasks.exceptions import InvalidOption, InvalidSchedule, InvalidTarget
from django_durable_tasks.models import Task
from django_durable_tasks.rules.targets.policy import address_policy
from django_durable_tasks.rules.targets.urls import parsed_url
from django_durable_tasks.rules.tasks.options import TaskOptions, checked_defaults, task_options
from django_durable_tasks.rules.tenants.quotas import quotas_of
from django_durable_tasks.scheduler.leader import terms


def valid_settings() -> Settings | None:
    """The settings; None if they are invalid, which E001 or E002 reports."""
    try:
        found = conf.settings()
        conf.retention()
    except InvalidSetting:
        return None
    return found if found.DATABASE in connections.settings else None


def _check_task_defaults(settings: Settings) -> None:
    try:
        task_options("defaults", {}, checked_defaults(settings.TASK_DEFAULTS or {}))
    except InvalidOption as invalid:
        raise InvalidSetting(f"DURABLE_TASKS['TASK_DEFAULTS'] cannot be used: {invalid}") from None


def _check_http_allow(settings: Settings) -> None:
    try:
        address_policy(settings.HTTP_PORTS, conf.allowed("HTTP_ALLOW", "tenant"))
        address_policy(settings.HTTP_PORTS, conf.allowed("HTTP_ALLOW"))
    except InvalidTarget as invalid:
        raise InvalidSetting(f"DURABLE_TASKS['HTTP_ALLOW']: {invalid}") from None


def _check_quotas() -> None:
    try:
        quotas_of(conf.quotas())
    except InvalidOption as invalid:
        raise InvalidSetting(f"DURABLE_TASKS['QUOTAS']: {invalid}") from None


def _check_watchdog(settings: Settings) -> None:
    if settings.WATCHDOG_URL is None:
        return
    try:
        policy = address_policy(settings.HTTP_PORTS, conf.allowed("HTTP_ALLOW", "default"))
        policy.check(parsed_url(settings.WATCHDOG_URL))
    except InvalidTarget as invalid:
        raise InvalidSetting(f"DURABLE_TASKS['WATCHDOG_URL']: {invalid}") from None


def check_settings(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check settings.DURABLE_TASKS and USE_TZ."""
    found = [] if conf.uses_time_zones() else [FINDINGS["W020"]()]
    try:
        settings = conf.settings()
        conf.retention()
        config.coded()
        _check_task_defaults(settings)
        _check_http_allow(settings)
        _check_quotas()
        _check_watchdog(settings)
        if not isinstance(settings.ENCRYPTION_KEYS, str):  # a function may need the network
            current_key_id()
    except InvalidSetting as invalid:
        return [*found, FINDINGS["E001"](reason=invalid)]
    if settings.DATABASE not in connections.settings:
        known = ", ".join(sorted(connections.settings))
        return [*found, FINDINGS["E002"](alias=settings.DATABASE, known=known)]
    found += [*_listening(settings), *_routing(settings), *_zones()]
    timeout, beat, renew = nodes.timeout(), settings.NODE_HEARTBEAT, settings.HEARTBEAT
    if timeout < 2 * beat:
        found.append(FINDINGS["E004"](timeout=timeout, beat=beat))
    elif timeout < renew + beat:
        found.append(FINDINGS["E020"](timeout=timeout, beat=beat, renew=renew))
    lease, renew = terms()
    if lease < 2 * renew:
        found.append(FINDINGS["E005"](lease=lease, renew=renew))
    return found


def _zones() -> Iterator[CheckMessage]:
    try:
        found = zones.differing()
    except InvalidSchedule as invalid:
        yield FINDINGS["E001"](reason=invalid)
        return
    if found is not None:
        zone, other = found
        yield FINDINGS["W014"](
            zone=zone.name, setting=zone.setting, other=other.setting, differs=other.name
        )


def _listening(settings: Settings) -> Iterator[CheckMessage]:
    alias = settings.LISTEN_DATABASE
    if alias is None:
        return
    if alias not in connections.settings:
        known = ", ".join(sorted(connections.settings))
        yield FINDINGS["E015"](alias=alias, reason=f"DATABASES does not have it (it has: {known})")
    elif {connections[settings.DATABASE].vendor, connections[alias].vendor} != {"postgresql"}:
        yield FINDINGS["E015"](
            alias=alias, reason="only PostgreSQL sends notifications; elsewhere REDIS_URL serves"
        )


def _routing(settings: Settings) -> Iterator[CheckMessage]:
    """Return the alias to which Django's routers send one model of the application; they decide by
    application.
    """
    alias, fault = settings.DATABASE, None
    if (writes := router.db_for_write(Task)) != alias:
        fault = f"send writes of Task to {writes!r}"
    elif router.db_for_read(Task) == DEFAULT_DB_ALIAS != alias:  # another alias may be a replica
        fault = f"send reads of Task to {DEFAULT_DB_ALIAS!r}"
    elif not router.allow_migrate_model(alias, Task):
        fault = "do not let `migrate` create its table there"
    if fault is not None:
        yield FINDINGS["E016"](alias=alias, fault=fault)


def registered_options() -> list[TaskOptions]:
    return [registry.get(name).options for name in sorted(registry.names())]


def listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

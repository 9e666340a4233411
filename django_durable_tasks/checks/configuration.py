"""The system checks of ``settings.DURABLE_TASKS``, of Celery's configuration, of task options
and of schedules in code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from string import Formatter
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage
from django.db import DEFAULT_DB_ALIAS, connections, router

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.celery import inspect
from django_durable_tasks.celery.routing import (
    api_queue_patterns,
    configured_queues,
    unreachable_beat_entries,
    user_of,
)
from django_durable_tasks.checks.findings import FINDINGS
from django_durable_tasks.cluster import nodes
from django_durable_tasks.conf import TENANT, InvalidSetting, Settings
from django_durable_tasks.decorators import stray_schedules
from django_durable_tasks.encryption import current_key_id
from django_durable_tasks.exceptions import DurableTasksError, InvalidOption, InvalidSchedule
from django_durable_tasks.limits import config
from django_durable_tasks.limits import scopes as limits
from django_durable_tasks.masking import masked
from django_durable_tasks.models import Task
from django_durable_tasks.schedules import sync
from django_durable_tasks.store.connections import on_sqlite
from django_durable_tasks.targets.addresses import address_policy, parsed_url
from django_durable_tasks.task_names import HTTP_CALLBACK_TASK
from django_durable_tasks.tasks.options import TaskOptions, checked_defaults, task_options

# The system check of ``settings.DURABLE_TASKS``, and helpers with which other checks read it.


def valid_settings() -> Settings | None:
    """The settings; None if they are invalid, which E001 or E002 reports."""
    try:
        found = conf.settings()
        conf.retention()
    except InvalidSetting:
        return None
    return found if found.DATABASE in connections.settings else None


@contextmanager
def _checking(setting: str) -> Iterator[None]:
    """Turn InvalidOption into InvalidSetting, which names the setting."""
    try:
        yield
    except InvalidOption as invalid:
        raise InvalidSetting(f"DURABLE_TASKS[{setting!r}]: {invalid}") from None


_NEEDED_APPS = {
    "django_durable_tasks.contrib.api": ("QUOTAS",),
    "django_durable_tasks.contrib.metrics": ("METRICS_TENANTS", "TRACES"),
    "django_durable_tasks.contrib.notifications": ("WATCHDOG_URL",),
}
"""Settings of an optional app, which may not be installed."""


def check_settings(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check settings.DURABLE_TASKS and USE_TZ."""
    found = [] if conf.uses_time_zones() else [FINDINGS["W020"]()]
    try:
        settings = conf.settings()
        conf.retention()
        config.coded()
        with _checking("TASK_DEFAULTS"):
            task_options("defaults", {}, checked_defaults(settings.TASK_DEFAULTS or {}))
        with _checking("HTTP_ALLOW"):
            address_policy(settings.HTTP_PORTS, conf.allowed("HTTP_ALLOW", "tenant"))
            address_policy(settings.HTTP_PORTS, conf.allowed("HTTP_ALLOW"))
        with _checking("WATCHDOG_URL"):
            if settings.WATCHDOG_URL is not None:
                policy = address_policy(settings.HTTP_PORTS, conf.allowed("HTTP_ALLOW", "default"))
                policy.check(parsed_url(settings.WATCHDOG_URL))
        if not isinstance(settings.ENCRYPTION_KEYS, str):  # a function may need the network
            current_key_id()
    except InvalidSetting as invalid:
        return [*found, FINDINGS["E001"](reason=invalid)]
    if settings.DATABASE not in connections.settings:
        known = ", ".join(sorted(connections.settings))
        return [*found, FINDINGS["E002"](alias=settings.DATABASE, known=known)]
    found += [*_listening(settings), *_routing(settings), *_zones()]
    for app, names in _NEEDED_APPS.items():
        if not apps.is_installed(app):
            used = [name for name in names if getattr(settings, name)]
            found += [FINDINGS["W022"](setting=name, app=app) for name in used]
    timeout, beat, renew = nodes.timeout(), settings.NODE_HEARTBEAT, settings.HEARTBEAT
    if timeout < 2 * beat:
        found.append(FINDINGS["E004"](timeout=timeout, beat=beat))
    elif timeout < renew + beat:
        found.append(FINDINGS["E020"](timeout=timeout, beat=beat, renew=renew))
    return found


def _zones() -> Iterator[CheckMessage]:
    try:
        found = inspect.differing()
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


# The system check of Celery's configuration: broker, serializers, eager mode and workers.


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
    return [*_broker(wiring), *_worker(wiring), *_messages()]


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


def _worker(wiring: inspect.CeleryConfiguration) -> Iterator[CheckMessage]:
    for setting, kinds in wiring.serializers.items():
        for kind in kinds:
            if kind in UNSAFE:
                yield FINDINGS["W021"](setting=setting, kind=kind)
    if not wiring.accepted & {"json", "application/json"}:
        yield FINDINGS["E009"](accepted=", ".join(sorted(wiring.accepted)))
    if wiring.eager:
        yield FINDINGS["W002"]()
        if wiring.eager_propagates:
            yield FINDINGS["W003"]()
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
    return [*found, *retry_queue_findings(settings.HTTP_RETRY_QUEUE), *_weights(), *_secret_keys()]


def retry_queue_findings(queue: str | None) -> Iterator[CheckMessage]:
    """Report a HTTP_RETRY_QUEUE that Celery's configuration does not have."""
    if queue is None:
        return
    try:
        ports.queue_of(HTTP_CALLBACK_TASK, queue)
    except DurableTasksError as error:
        yield FINDINGS["E021"](reason=error)


def _secret_keys() -> Iterator[CheckMessage]:
    """Report templates of keys with an argument that SECRET_NAMES names, at any depth."""
    names = conf.settings().SECRET_NAMES
    for name in sorted(registry.names()):
        options, parameters = registry.get(name).options, registry.get(name).positional_parameters
        templates = {options.unique, limits.key_of(options.rate_limit, options.max_concurrency)}
        for template in sorted(one for one in templates if isinstance(one, str)):
            automatic = 0
            for _, field, _, _ in Formatter().parse(template):
                if field is None:
                    continue
                first, *rest = re.findall(r"[^.\[\]]+", field) or [""]
                if not first:
                    first, automatic = str(automatic), automatic + 1
                if first.isdecimal():
                    last = min(int(first), len(parameters) - 1)
                    first = parameters[last] if parameters else first
                if any(masked({part: ""}, names)[part] for part in (first, *rest)):
                    yield FINDINGS["W023"](name=name, field=field, template=template)


def _weights() -> Iterator[CheckMessage]:
    try:
        coded = config.coded()
    except InvalidSetting:
        return  # reported as E001
    for task in registered_options():
        per_key = limits.per_key_of(task.rate_limit, task.max_concurrency)
        scopes = [limits.GLOBAL, limits.scope_of_task(task.name)]
        with suppress(DurableTasksError):  # without a queue in Celery's routing, the call fails
            scopes.insert(1, limits.scope_of_queue(ports.queue_of(task.name, task.queue)))
        bound = {scope: coded[scope] for scope in scopes if scope in coded}
        if per_key is not None:
            bound["of its key"] = per_key
        for scope, allowed in bound.items():
            if allowed.heaviest and task.weight > allowed.heaviest:
                yield FINDINGS["W013"](
                    name=task.name, weight=task.weight, scope=scope, most=allowed.heaviest
                )


def check_schedules(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check the schedules that are declared in code and settings."""
    if inspect.load_tasks() is not None or valid_settings() is None:
        return []  # reported as E018 or E001
    kinds = (
        ("E014", "reason", sync.declarations()[1]),
        ("W012", "function", stray_schedules()),
        ("W015", "reason", unreachable_beat_entries()),
    )
    return [
        FINDINGS[kind](name=name, **{fact: value})
        for kind, fact, facts in kinds
        for name, value in facts.items()
    ]

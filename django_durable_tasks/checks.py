"""System checks: report configurations that would lose, duplicate or delay work.

Each finding has an id, a text and a remedy. Only the check of the database connects, and only if
Django names the database (``migrate``, ``check --database``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from string import Formatter
from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core import checks
from django.core.checks import CheckMessage
from django.db import DEFAULT_DB_ALIAS, NotSupportedError, connections, router, transaction

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.celery import inspect, prepared_messages
from django_durable_tasks.cluster import nodes
from django_durable_tasks.conf import TENANT, InvalidSetting, Settings
from django_durable_tasks.decorators import stray_schedules
from django_durable_tasks.encryption import current_key_id
from django_durable_tasks.exceptions import DurableTasksError, InvalidOption, InvalidSchedule
from django_durable_tasks.limits import config
from django_durable_tasks.limits import scopes as limits
from django_durable_tasks.masking import masked
from django_durable_tasks.models import Task
from django_durable_tasks.models.fields import ExactCharField, exact_collation
from django_durable_tasks.registry import HTTP_CALLBACK_TASK
from django_durable_tasks.schedules import sync
from django_durable_tasks.store.connections import on_sqlite
from django_durable_tasks.store.dialects import text
from django_durable_tasks.targets.addresses import address_policy, parsed_url
from django_durable_tasks.tasks.options import TaskOptions, checked_defaults, task_options

# The findings: ids, texts and remedies.


@dataclass(frozen=True, slots=True)
class ProjectFinding:
    """One kind of finding: its id, its text (with fields to format) and its remedy."""

    id: str
    says: str
    hint: str

    @property
    def full_id(self) -> str:
        """Return the id with its prefix, as Django shows it and as SILENCED_SYSTEM_CHECKS expects
        it.
        """
        return f"durable_tasks.{self.id}"

    def __call__(self, **facts: Any) -> CheckMessage:
        kind = checks.Error if self.id.startswith("E") else checks.Warning
        return kind(self.says.format(**facts), hint=self.hint, id=self.full_id)


_FINDINGS = (
    ProjectFinding(
        "E001",
        "{reason}",
        "Correct this setting; docs/reference/settings.md lists every key of DURABLE_TASKS.",
    ),
    ProjectFinding(
        "E002",
        "DURABLE_TASKS['DATABASE'] is {alias!r}, which DATABASES does not have (it has: {known}).",
        "Write an alias of DATABASES, or leave the key out for 'default'.",
    ),
    ProjectFinding(
        "E004",
        "NODE_TIMEOUT is {timeout:g} s and NODE_HEARTBEAT {beat:g} s: after one late heartbeat a"
        " node is declared dead.",
        "Let NODE_TIMEOUT be at least 2 x NODE_HEARTBEAT; the defaults are 20 and 5.",
    ),
    ProjectFinding(
        "E006",
        "The lease of {names} is shorter than 2 x HEARTBEAT ({beat:g} s): runs in progress would"
        " be marked LOST.",
        "Give @durable_task(lease=...) at least twice the HEARTBEAT, or make HEARTBEAT shorter.",
    ),
    ProjectFinding(
        "E007",
        "Celery has no application of this project: tasks would go to Celery's default broker.",
        "Create one in <project>/celery.py: app = Celery('<project>');"
        " app.config_from_object('django.conf:settings', namespace='CELERY');"
        " app.autodiscover_tasks(); and import it in <project>/__init__.py: from .celery import app"
        " as celery_app",
    ),
    ProjectFinding(
        "E009",
        "CELERY_ACCEPT_CONTENT ({accepted}) has no 'json': workers would refuse every durable"
        " task.",
        "Add 'json' to CELERY_ACCEPT_CONTENT.",
    ),
    ProjectFinding(
        "E010",
        "The broker is Kombu's filesystem://, whose consumers lose messages and fail on partially"
        " written files.",
        "Write CELERY_BROKER_URL = 'durable-filesystem://': the same folder, written atomically.",
    ),
    ProjectFinding(
        "E011",
        "Kombu {found} is installed: before 5.4 workers on Redis stop consuming after a reconnect.",
        "Install kombu>=5.6.",
    ),
    ProjectFinding(
        "E012",
        "The database is not supported: {found}.",
        "Use PostgreSQL 14, MySQL 8.0.17, MariaDB 10.6 or SQLite 3.35, or newer.",
    ),
    ProjectFinding(
        "E013",
        "The isolation level is {found}: claims would wait for each other and read stale rows.",
        "Write 'isolation_level': 'read committed' in OPTIONS of this entry of DATABASES.",
    ),
    ProjectFinding(
        "E014",
        "The schedule {name!r} cannot be used: {reason}",
        "Correct @recurring or DURABLE_TASKS['SCHEDULES']; `manage.py durable sync --dry-run` shows"
        " the rest.",
    ),
    ProjectFinding(
        "E015",
        "DURABLE_TASKS['LISTEN_DATABASE'] is {alias!r}: {reason}.",
        "Name an entry of DATABASES that reaches the same PostgreSQL directly, or leave the key"
        " out.",
    ),
    ProjectFinding(
        "E016",
        "DURABLE_TASKS['DATABASE'] is {alias!r}, but DATABASE_ROUTERS {fault}: models and the"
        " admin would read other tables than the engine.",
        "Add 'django_durable_tasks.routers.DurableTasksRouter' to DATABASE_ROUTERS, before routers"
        " of your own.",
    ),
    ProjectFinding(
        "E017",
        "atomic=True of {names}, and transactions of {alias!r} are {level}: PostgreSQL refuses"
        " the success of a run during which the row was changed, for example by a heartbeat.",
        "Leave 'isolation_level' out of OPTIONS of this entry of DATABASES (and"
        " default_transaction_isolation of its role), or leave atomic=True out and begin a"
        " stricter transaction in the task function, which must then be idempotent.",
    ),
    ProjectFinding(
        "E018",
        "The modules of tasks cannot be imported: {reason}.",
        "Correct the module: a worker would not start, and its tasks are not registered in this"
        " process.",
    ),
    ProjectFinding(
        "E019",
        "The broker has no folder: {reason}.",
        "Write CELERY_BROKER_TRANSPORT_OPTIONS = {'data_folder': '/an/absolute/path'}.",
    ),
    ProjectFinding(
        "E020",
        "HEARTBEAT is {renew:g} s, NODE_HEARTBEAT {beat:g} s and NODE_TIMEOUT {timeout:g} s: a node"
        " that is late would lose healthy runs, between two renewals of their leases.",
        "Let NODE_TIMEOUT be at least HEARTBEAT + NODE_HEARTBEAT; the defaults are 20, 15 and 5.",
    ),
    ProjectFinding(
        "E021",
        "DURABLE_TASKS['HTTP_RETRY_QUEUE'] cannot be used: {reason}",
        "Declare the queue in CELERY_TASK_QUEUES and start a worker for it, or leave the key out.",
    ),
    ProjectFinding(
        "E022",
        "These columns regard different texts as equal (case, accents or trailing blanks), so that"
        " different keys would be one task: {columns}. Remedy: {remedy}",
        "Stop the schedulers and workers, execute the statements, and start them again. No row is"
        " changed.",
    ),
    ProjectFinding(
        "E023",
        "The encoding of the database or of its connection is {name}, which cannot store every"
        " text: an argument or an error message with other characters would raise an error.",
        "PostgreSQL: create the database with ENCODING 'UTF8'. MySQL, MariaDB: write 'charset':"
        " 'utf8mb4' in OPTIONS of this entry of DATABASES.",
    ),
    ProjectFinding(
        "E024",
        "{table} has rows, and {app} is not installed: limits of staff users and quotas of tenants"
        " do not apply.",
        "Add {app!r} to INSTALLED_APPS. If they are to end, delete the rows of the table.",
    ),
    ProjectFinding(
        "E025",
        "The transport of the broker cannot be loaded: {reason}.",
        "Correct CELERY_BROKER_URL, or install the package of its client. durable-database:// needs"
        " 'django_durable_tasks.contrib.database_transport' in INSTALLED_APPS, and `migrate`.",
    ),
    ProjectFinding(
        "W001",
        "visibility_timeout is {visible:g} s, the longest lease {lease:g} s: Redis delivers"
        " waiting messages repeatedly (the duplicates are ignored, but each costs a statement).",
        "Let CELERY_BROKER_TRANSPORT_OPTIONS['visibility_timeout'] be longer than the longest"
        " lease.",
    ),
    ProjectFinding(
        "W002",
        "Celery runs eagerly: task functions run in the process and thread of the caller, after"
        " COMMIT, without a worker or a lease.",
        "Set CELERY_TASK_ALWAYS_EAGER only in the settings of tests.",
    ),
    ProjectFinding(
        "W003",
        "CELERY_TASK_EAGER_PROPAGATES: an error of a task function is raised by the call of"
        " .delay(), after COMMIT. The task is retried nevertheless.",
        "Leave CELERY_TASK_EAGER_PROPAGATES out.",
    ),
    ProjectFinding(
        "W004",
        "The pool {pool!r} cannot interrupt a task function, but these tasks have time limits:"
        " {names}. A time limit then ends the lease, and only functions that call"
        " self.durable.check() stop.",
        "Use the prefork pool for them, write them with `async def`, or call self.durable.check()"
        " in long functions.",
    ),
    ProjectFinding(
        "W005",
        "CELERY_WORKER_PREFETCH_MULTIPLIER is {found}: a worker prefetches messages during a long"
        " run while others are idle, and these messages are republished.",
        "Write CELERY_WORKER_PREFETCH_MULTIPLIER = 1.",
    ),
    ProjectFinding(
        "W006",
        "CELERY_TASK_ACKS_LATE is set: durable tasks ignore it, because their rows survive a"
        " failure of the broker.",
        "Leave it out, unless Celery tasks that are not durable need it.",
    ),
    ProjectFinding(
        "W007",
        "CELERY_TASK_REJECT_ON_WORKER_LOST is set: durable tasks ignore it; other tasks that kill"
        " their worker are redelivered indefinitely.",
        "Leave it out, unless Celery tasks that are not durable need it.",
    ),
    ProjectFinding(
        "W008",
        "SQLite is not set up for several writers: {missing}.",
        "Write in OPTIONS: 'transaction_mode': 'IMMEDIATE', 'timeout': 20, 'init_command': "
        "'PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL'.",
    ),
    ProjectFinding(
        "W009",
        "No broker is configured: Celery would try amqp://guest@localhost.",
        "Write CELERY_BROKER_URL. Two brokers need no server: the database of the project"
        " ('durable-database://default', docs/how-to/broker_in_the_database.md) and a folder"
        " ('durable-filesystem://').",
    ),
    ProjectFinding(
        "W011",
        "atomic=True of {names} on SQLite: the function has the only write lock while it runs,"
        " and every other write waits for it.",
        "Keep such functions under a second, or keep the tables in PostgreSQL, MySQL or MariaDB.",
    ),
    ProjectFinding(
        "W012",
        "@recurring({name!r}) decorates {function}, which is not a durable task: it never runs.",
        "Add @durable_task to the function, above or below.",
    ),
    ProjectFinding(
        "W013",
        "{name} weighs {weight}, and the limit {scope} is {most}: it never starts.",
        "Give it a smaller weight=..., or raise the limit; with a given burst, a rate limit"
        " admits no heavier task.",
    ),
    ProjectFinding(
        "W014",
        "New schedules without timezone= use {zone} ({setting}), but {other} is {differs}.",
        "Set both to the same zone, or give each schedule its timezone=.",
    ),
    ProjectFinding(
        "W015",
        "beat cannot call the durable task of its schedule {name!r}: {reason}",
        "Name the queue in the options of this entry of CELERY_BEAT_SCHEDULE, or declare it with"
        " @recurring.",
    ),
    ProjectFinding(
        "W018",
        "{settings} {verb} False, the default before Celery 5.7: RabbitMQ 4.3 and newer refuse the"
        " queue, and a worker ends at its start with 541 INTERNAL_ERROR.",
        "Write CELERY_CONTROL_QUEUE_EXCLUSIVE = CELERY_EVENT_QUEUE_EXCLUSIVE = True, which works"
        " with every RabbitMQ, or install celery>=5.7.",
    ),
    ProjectFinding(
        "W019",
        "DURABLE_TASKS['QUEUE_ALLOW'] has {entry!r}, which is used for Celery tasks ({user}): the"
        " messages of queue_message to it are refused.",
        "Give messages for other programs queues and exchanges of their own, which no Celery worker"
        " consumes.",
    ),
    ProjectFinding(
        "W020",
        "USE_TZ is False: django.utils.timezone.now() returns a time without a zone, which durable"
        " tasks and schedules refuse. Their own columns have a zone.",
        "Give durable tasks times with a zone, such as datetime.datetime.now(datetime.UTC).",
    ),
    ProjectFinding(
        "W021",
        "{found}: anyone who can write to the broker could run code in the workers. Durable tasks"
        " do not use it: their messages are JSON.",
        "Write CELERY_ACCEPT_CONTENT = ['json'], CELERY_TASK_SERIALIZER = CELERY_RESULT_SERIALIZER"
        " = 'json' as soon as no other task needs it.",
    ),
    ProjectFinding(
        "W022",
        "DURABLE_TASKS[{setting!r}] has no effect without {app}.",
        "Add {app!r} to INSTALLED_APPS, and migrate.",
    ),
    ProjectFinding(
        "W023",
        "{name} has {field!r} in the template {template!r} of a key. SECRET_NAMES names this"
        " argument: keys are stored and shown unmasked and unencrypted.",
        "Derive the key from another argument, such as an id. Clients of the API need the scope"
        " `secrets` to create such a task.",
    ),
)
FINDINGS = {finding.id: finding for finding in _FINDINGS}
"""The text and the remedy of each finding, by its id."""


# The checks. Each yields its findings, and is registered with Django by ``register``.


_Check = Callable[..., list[CheckMessage]]
_checks: list[tuple[_Check, tuple[str, ...]]] = []


def _check(*tags: str) -> Callable[[Callable[..., Iterator[CheckMessage]]], _Check]:
    """Decorator: make a system check with these tags of a function that yields its findings."""

    def decorated(find: Callable[..., Iterator[CheckMessage]]) -> _Check:
        @wraps(find)
        def check(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
            return list(find(**kwargs))

        _checks.append((check, tags))
        return check

    return decorated


def register() -> None:
    """Register the checks with Django; called once by ``apps.ready()``."""
    for check, tags in _checks:
        checks.register(check, *tags, "durable_tasks")


def valid_settings() -> Settings | None:
    """The settings; None if they are invalid, which E001 or E002 reports."""
    try:
        settings = conf.settings()
        conf.retention()
    except InvalidSetting:
        return None
    return settings if settings.DATABASE in connections.settings else None


@contextmanager
def _checking(setting: str) -> Iterator[None]:
    """Turn InvalidOption into InvalidSetting, which names the setting."""
    try:
        yield
    except InvalidOption as invalid:
        raise InvalidSetting(f"DURABLE_TASKS[{setting!r}]: {invalid}") from None


def registered_options() -> list[TaskOptions]:
    return [registry.get(name).options for name in sorted(registry.names())]


def listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


_NEEDED_APPS = {
    "django_durable_tasks.contrib.api": ("QUOTAS",),
    "django_durable_tasks.contrib.metrics": ("METRICS_TENANTS", "TRACES"),
    "django_durable_tasks.contrib.notifications": ("WATCHDOG_URL",),
}
"""Settings of an optional app, which may not be installed."""


@_check()
def check_settings(**_: Any) -> Iterator[CheckMessage]:
    """Check settings.DURABLE_TASKS and USE_TZ."""
    if not django_settings.USE_TZ:
        yield FINDINGS["W020"]()
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
        yield FINDINGS["E001"](reason=invalid)
        return
    alias, known = settings.DATABASE, ", ".join(sorted(connections.settings))
    if alias not in connections.settings:
        yield FINDINGS["E002"](alias=alias, known=known)
        return
    listen = settings.LISTEN_DATABASE
    if listen is not None and listen not in connections.settings:
        reason = f"DATABASES does not have it (it has: {known})"
        yield FINDINGS["E015"](alias=listen, reason=reason)
    elif listen is not None and {connections[name].vendor for name in (alias, listen)} != {
        "postgresql"
    }:
        reason = "only PostgreSQL sends notifications; elsewhere REDIS_URL serves"
        yield FINDINGS["E015"](alias=listen, reason=reason)
    # Django's routers are asked about one model, because they decide by application.
    fault = None
    if (writes := router.db_for_write(Task)) != alias:
        fault = f"send writes of Task to {writes!r}"
    elif router.db_for_read(Task) == DEFAULT_DB_ALIAS != alias:  # another alias may be a replica
        fault = f"send reads of Task to {DEFAULT_DB_ALIAS!r}"
    elif not router.allow_migrate_model(alias, Task):
        fault = "do not let `migrate` create its table there"
    if fault is not None:
        yield FINDINGS["E016"](alias=alias, fault=fault)
    try:
        differing = inspect.differing()
    except InvalidSchedule as invalid:
        differing = None
        yield FINDINGS["E001"](reason=invalid)
    if differing is not None:
        zone, conflicting = differing
        yield FINDINGS["W014"](
            zone=zone.name,
            setting=zone.setting,
            other=conflicting.setting,
            differs=conflicting.name,
        )
    for app, names in _NEEDED_APPS.items():
        if not apps.is_installed(app):
            used = [name for name in names if getattr(settings, name)]
            yield from (FINDINGS["W022"](setting=name, app=app) for name in used)
    timeout, beat, renew = nodes.timeout(), settings.NODE_HEARTBEAT, settings.HEARTBEAT
    if timeout < 2 * beat:
        yield FINDINGS["E004"](timeout=timeout, beat=beat)
    elif timeout < renew + beat:
        yield FINDINGS["E020"](timeout=timeout, beat=beat, renew=renew)


@_check()
def check_tasks(**_: Any) -> Iterator[CheckMessage]:
    """Check the options of the durable tasks that are registered in this project."""
    problem, settings = inspect.load_tasks(), valid_settings()
    if problem is not None:
        yield FINDINGS["E018"](reason=problem)
    if settings is None:
        return
    short = [
        task.name
        for task in registered_options()
        if task.lease is not None and task.lease < 2 * settings.HEARTBEAT
    ]
    if short:
        yield FINDINGS["E006"](names=listed(short), beat=settings.HEARTBEAT)
    atomic = [task.name for task in registered_options() if task.atomic]
    if atomic and on_sqlite():
        yield FINDINGS["W011"](names=listed(atomic))
    yield from retry_queue_findings(settings.HTTP_RETRY_QUEUE)
    try:
        coded = config.coded()
    except InvalidSetting:
        weighed = []  # reported as E001
    else:
        weighed = registered_options()
    for task in weighed:
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
    # Templates of keys with an argument that SECRET_NAMES names, at any depth.
    for name in sorted(registry.names()):
        options, parameters = registry.get(name).options, registry.get(name).positional_parameters
        templates = {options.unique, limits.key_of(options.rate_limit, options.max_concurrency)}
        for template in sorted(key for key in templates if isinstance(key, str)):
            automatic = 0
            for _literal, field, _spec, _conversion in Formatter().parse(template):
                if field is None:
                    continue
                first, *members = re.findall(r"[^.\[\]]+", field) or [""]
                if not first:
                    first, automatic = str(automatic), automatic + 1
                if first.isdecimal():
                    last = min(int(first), len(parameters) - 1)
                    first = parameters[last] if parameters else first
                secret_names = settings.SECRET_NAMES
                if any(masked({part: ""}, secret_names)[part] for part in (first, *members)):
                    yield FINDINGS["W023"](name=name, field=field, template=template)


def retry_queue_findings(queue: str | None) -> Iterator[CheckMessage]:
    """Report a HTTP_RETRY_QUEUE that Celery's configuration does not have."""
    if queue is None:
        return
    try:
        ports.queue_of(HTTP_CALLBACK_TASK, queue)
    except DurableTasksError as error:
        yield FINDINGS["E021"](reason=error)


@_check()
def check_schedules(**_: Any) -> Iterator[CheckMessage]:
    """Check the schedules that are declared in code and settings."""
    if inspect.load_tasks() is not None or valid_settings() is None:
        return  # reported as E018 or E001
    kinds = (
        ("E014", "reason", sync.declarations()[1]),
        ("W012", "function", stray_schedules()),
        ("W015", "reason", prepared_messages.unreachable_beat_entries()),
    )
    for kind, fact, facts in kinds:
        for name, value in facts.items():
            yield FINDINGS[kind](name=name, **{fact: value})


# The system check of Celery's configuration: broker, serializers, eager mode and workers.


OLDEST_KOMBU = (5, 4)


UNSAFE = frozenset({"pickle", "yaml", "application/x-python-serialize", "application/x-yaml"})


_THREADS = ("threads", "solo")
UNTIMED_POOLS = (*_THREADS, "gevent", "eventlet")

_SLUG = "tenant"


@_check()
def check_celery(**_: Any) -> Iterator[CheckMessage]:
    """Check that this project has a Celery app, and check the settings of that app."""
    if inspect.kombu_version() < OLDEST_KOMBU:
        yield FINDINGS["E011"](found=".".join(map(str, inspect.kombu_version())))
        return
    if not inspect.is_configured():
        yield FINDINGS["E007"]()
        return
    if (problem := inspect.transport_problem()) is not None:
        yield FINDINGS["E025"](reason=problem)
        return
    wiring = inspect.read()
    settings = valid_settings()
    if not wiring.broker_is_set:
        yield FINDINGS["W009"]()
    elif inspect.is_rabbitmq(wiring.transport) and wiring.transient_queues:
        settings_of = [f"CELERY_{kind.upper()}_QUEUE_EXCLUSIVE" for kind in wiring.transient_queues]
        verb = "is" if len(settings_of) == 1 else "are"
        yield FINDINGS["W018"](settings=" and ".join(settings_of), verb=verb)
    if wiring.transport == "filesystem":
        yield FINDINGS["E010"]()
    if wiring.folder_problem is not None:
        yield FINDINGS["E019"](reason=wiring.folder_problem)
    if settings is not None and wiring.visibility_timeout is not None:
        leases = [task.lease for task in registered_options() if task.lease is not None]
        longest = max([settings.LEASE, *leases])
        if wiring.visibility_timeout < longest:
            yield FINDINGS["W001"](visible=wiring.visibility_timeout, lease=longest)
    unsafe = [
        f"{setting} has {kind!r}"
        for setting, kinds in wiring.serializers.items()
        for kind in kinds
        if kind in UNSAFE
    ]
    if unsafe:
        yield FINDINGS["W021"](found=", ".join(unsafe))
    if not wiring.accepted & {"json", "application/json"}:
        yield FINDINGS["E009"](accepted=", ".join(sorted(wiring.accepted)))
    if wiring.eager:
        yield FINDINGS["W002"]()
        if wiring.eager_propagates:
            yield FINDINGS["W003"]()
    limited = [
        name
        for name in sorted(registry.names())
        if registry.get(name).options.is_limited_in_time
        and not (registry.get(name).is_async and wiring.pool in _THREADS)
    ]
    if limited and wiring.pool in UNTIMED_POOLS:
        yield FINDINGS["W004"](pool=wiring.pool, names=listed(limited))
    if wiring.prefetch_multiplier != 1 and not ports.takes_tasks():
        yield FINDINGS["W005"](found=wiring.prefetch_multiplier)
    if wiring.acks_late:
        yield FINDINGS["W006"]()
    if wiring.reject_on_worker_lost:
        yield FINDINGS["W007"]()
    # Queues that only workers know are refused when a message is published, because this check does
    # not read the database.
    if settings is None or not settings.QUEUE_ALLOW:
        return
    # Any slug does: the same stands for the tenant in both settings.
    configured, patterns = (
        prepared_messages.configured_queues(),
        prepared_messages.api_queue_patterns(_SLUG),
    )
    for entry in settings.QUEUE_ALLOW:
        name = entry.removeprefix("exchange:")
        form = re.compile(re.escape(name).replace(re.escape(TENANT), "[-a-zA-Z0-9_]+"))
        users = [used for queue, used in configured.items() if form.fullmatch(queue)]
        user = (
            users[0]
            if users
            else prepared_messages.user_of(name.replace(TENANT, _SLUG), configured, patterns)
        )
        if user is not None:
            yield FINDINGS["W019"](entry=entry, user=user)


# The system check of the database server. It connects.


OLDEST: dict[str, tuple[int, ...]] = {
    "PostgreSQL": (14,),
    "MySQL": (8, 0, 17),
    "MariaDB": (10, 6),
    "SQLite": (3, 35),
}


_API = "django_durable_tasks.contrib.api"
_LIMITING = ("durable_tasks_staff_tenant", "durable_tasks_tenant_quota")
_SHOW_ENCODING = {
    "postgresql": "SHOW server_encoding",
    "mysql": "SHOW VARIABLES LIKE 'character_set_connection'",
}


@_check(checks.Tags.database)
def check_database(databases: Iterable[str] | None = None, **_: Any) -> Iterator[CheckMessage]:
    """Check the server of the database that stores the tasks; connects."""
    settings = valid_settings()
    if settings is None or settings.DATABASE not in (databases or ()):
        return
    connection: Any = connections[settings.DATABASE]
    try:
        version = tuple(connection.get_database_version())
    except NotSupportedError as too_old:
        yield FINDINGS["E012"](found=str(too_old).rstrip("."))
        return
    product = connection.display_name
    if product not in OLDEST or version < OLDEST[product]:
        yield FINDINGS["E012"](found=f"{product} {'.'.join(map(str, version))}")
        return
    # Columns with another collation than their field has: of tables that were converted, or created
    # by an older release.
    find_columns, rows = text("inexact_columns", connection.vendor), list[Any]()
    exact, collation = exact_columns(), exact_collation(connection)
    if find_columns is not None:
        with connection.cursor() as cursor:
            cursor.execute(find_columns, {"exact": collation})
            rows = [row for row in cursor.fetchall() if row[1] in exact.get(row[0], ())]
    if rows:
        remedy = "change them to the default collation of the database"
        if collation is not None:
            remedy = " ".join(
                f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE {collation};"
                for table in dict.fromkeys(table for table, _, _ in rows)
            )
        names = listed([f"{table}.{column} ({name})" for table, column, name in rows])
        yield FINDINGS["E022"](columns=names, remedy=remedy)
    if connection.vendor in _SHOW_ENCODING:
        with connection.cursor() as cursor:
            cursor.execute(_SHOW_ENCODING[connection.vendor])
            name = str(cursor.fetchone()[-1])
        if name not in ("UTF8", "utf8mb4"):
            yield FINDINGS["E023"](name=name)
    if not apps.is_installed(_API):
        # Nothing enforces limits of users and tenants if the app was removed.
        for table in {*_LIMITING} & {*connection.introspection.table_names()}:
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT 1 FROM {connection.ops.quote_name(table)} LIMIT 1")  # noqa: S608 - a constant
                has_rows = cursor.fetchone() is not None
            if has_rows:
                yield FINDINGS["E024"](table=table, app=_API)
    if connection.vendor == "mysql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')"
            )
            levels = {str(value).replace("-", " ").upper() for _, value in cursor.fetchall()}
        if levels != {"READ COMMITTED"}:
            yield FINDINGS["E013"](found=", ".join(sorted(levels)))
    elif connection.vendor == "postgresql":
        alias = settings.DATABASE
        atomic = [task.name for task in registered_options() if task.atomic]
        if not atomic:
            return
        with transaction.atomic(using=alias), connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            level = str(cursor.fetchone()[0]).upper()
        if level not in ("READ COMMITTED", "READ UNCOMMITTED"):
            yield FINDINGS["E017"](names=listed(atomic), alias=alias, level=level)
    elif connection.vendor == "sqlite" and not connection.is_in_memory_db():
        missing, options = list[str](), connection.settings_dict.get("OPTIONS") or {}
        if str(options.get("transaction_mode")).upper() != "IMMEDIATE":
            missing.append("transactions do not begin IMMEDIATE")
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode")
            mode = str(cursor.fetchone()[0])
        if mode.lower() != "wal":
            missing.append(f"the journal is {mode!r}, not WAL")
        if missing:
            yield FINDINGS["W008"](missing="; ".join(missing))


def exact_columns() -> dict[str, set[str]]:
    """Return the columns of each table that compare texts exactly."""
    columns: dict[str, set[str]] = {}
    for model in apps.get_models():
        for field in model._meta.local_fields:
            if type(field) is ExactCharField:
                columns.setdefault(model._meta.db_table, set()).add(str(field.column))
    return columns

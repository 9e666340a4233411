"""System checks: what would lose, double or hold up work is said when Django starts, with what to write instead.

Only the check of the database connects, and only when Django names our database (``migrate``, ``check --database``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.core import checks
from django.core.checks import CheckMessage
from django.db import DEFAULT_DB_ALIAS, NotSupportedError, connections, router, transaction

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.celery import wiring, zones
from django_durable_tasks.celery.addresses import unreachable_beat_entries
from django_durable_tasks.conf import InvalidSetting, Settings
from django_durable_tasks.decorators import stray_schedules
from django_durable_tasks.exceptions import DurableTasksError, InvalidOption, InvalidSchedule
from django_durable_tasks.lifecycle import allowances, declared, nodes
from django_durable_tasks.lifecycle.connections import on_sqlite
from django_durable_tasks.models import Task
from django_durable_tasks.rules import limits
from django_durable_tasks.rules.options import TaskOptions, checked_defaults, task_options
from django_durable_tasks.scheduler.leader import terms

OLDEST: dict[str, tuple[int, ...]] = {
    "PostgreSQL": (14,), "MySQL": (8, 0, 13), "MariaDB": (10, 6), "SQLite": (3, 35),
}  # fmt: skip
OLDEST_KOMBU = (5, 4)
UNSAFE = frozenset({"pickle", "yaml", "application/x-python-serialize", "application/x-yaml"})
UNTIMED_POOLS = ("threads", "solo", "gevent", "eventlet")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that may be wrong: its id, what it says (with the facts filled in), and what to write."""

    id: str
    says: str
    hint: str

    @property
    def full_id(self) -> str:
        """Return the id as Django shows it and SILENCED_SYSTEM_CHECKS takes it."""
        return f"durable_tasks.{self.id}"

    def __call__(self, **facts: Any) -> CheckMessage:
        kind = checks.Error if self.id.startswith("E") else checks.Warning
        return kind(self.says.format(**facts), hint=self.hint, id=self.full_id)


_ALL = (
    Finding("E001", "{reason}", "Correct this setting; docs/reference/settings.md lists every key of DURABLE_TASKS."),
    Finding("E002", "DURABLE_TASKS['DATABASE'] is {alias!r}, which DATABASES does not have (it has: {known}).",
            "Write an alias of DATABASES, or leave the key out for 'default'."),
    Finding("E003", "USE_TZ is False: a due time would be ambiguous for an hour each autumn.", "Write USE_TZ = True."),
    Finding("E004", "NODE_TIMEOUT is {timeout:g} s and NODE_HEARTBEAT {beat:g} s: one late heartbeat kills a node.",
            "Let NODE_TIMEOUT be at least 2 x NODE_HEARTBEAT; the defaults are 20 and 5."),
    Finding("E005", "LEADER_LEASE is {lease:g} s and LEADER_RENEW {renew:g} s: one late renewal deposes the leader.",
            "Let LEADER_LEASE be at least 2 x LEADER_RENEW; the defaults are 4 and 1, on SQLite 20 and 5."),
    Finding("E006", "The lease of {names} is shorter than 2 x HEARTBEAT ({beat:g} s): live runs would be called lost.",
            "Give @durable_task(lease=...) at least twice the HEARTBEAT, or make HEARTBEAT shorter."),
    Finding("E007", "Celery has no application of this project: tasks would go to a broker that nobody listens to.",
            "Make one in <project>/celery.py: app = Celery('<project>'); "
            "app.config_from_object('django.conf:settings', namespace='CELERY'); app.autodiscover_tasks(); "
            "and import it in <project>/__init__.py: from .celery import app as celery_app"),
    Finding("E008", "{setting} has {kind!r}: who can write to the broker could run code in the workers.",
            "Write CELERY_ACCEPT_CONTENT = ['json'], CELERY_TASK_SERIALIZER = CELERY_RESULT_SERIALIZER = 'json'."),
    Finding("E009", "CELERY_ACCEPT_CONTENT ({accepted}) has no 'json': workers would refuse every durable task.",
            "Add 'json' to CELERY_ACCEPT_CONTENT."),
    Finding("E010", "The broker is Kombu's filesystem://, whose consumers lose messages and die of half-written files.",
            "Write CELERY_BROKER_URL = 'durable-filesystem://': the same folder, written atomically."),
    Finding("E011", "Kombu {found} is installed: before 5.4 workers on Redis stop consuming after a reconnect.",
            "Install kombu>=5.6."),
    Finding("E012", "{found} is too old or unknown to us.",
            "Use PostgreSQL 14, MySQL 8.0.13, MariaDB 10.6 or SQLite 3.35, or newer."),
    Finding("E013", "The isolation level is {found}: claims would wait for each other and read stale rows.",
            "Write 'isolation_level': 'read committed' in OPTIONS of this entry of DATABASES."),
    Finding("E014", "The schedule {name!r} cannot be used: {reason}",
            "Correct @recurring or DURABLE_TASKS['SCHEDULES']; `manage.py durable sync --dry-run` shows the rest."),
    Finding("E015", "DURABLE_TASKS['LISTEN_DATABASE'] is {alias!r}: {reason}.",
            "Name an entry of DATABASES that reaches the same PostgreSQL directly, or leave the key out."),
    Finding("E016", "DURABLE_TASKS['DATABASE'] is {alias!r}, but DATABASE_ROUTERS {fault}: models and the admin would "
            "show other tables than the tasks are in.",
            "Add 'django_durable_tasks.routers.DurableTasksRouter' to DATABASE_ROUTERS, before routers of your own."),
    Finding("E017", "atomic=True of {names}, and transactions of {alias!r} are {level}: PostgreSQL refuses the success "
            "of a body during which the row was changed, for example by a heartbeat.",
            "Leave 'isolation_level' out of OPTIONS of this entry of DATABASES (and default_transaction_isolation of "
            "its role), or leave atomic=True out and begin a stricter transaction in the body, made idempotent."),
    Finding("E018", "The modules of tasks cannot be imported: {reason}.",
            "Correct the module: a worker would not start, and this process does not know its tasks."),
    Finding("E019", "The broker has no folder: {reason}.",
            "Write CELERY_BROKER_TRANSPORT_OPTIONS = {'data_folder': '/an/absolute/path'}."),
    Finding("E020", "HEARTBEAT is {renew:g} s, NODE_HEARTBEAT {beat:g} s and NODE_TIMEOUT {timeout:g} s: a node "
            "that is late would lose healthy runs, between two renewals of their leases.",
            "Let NODE_TIMEOUT be at least HEARTBEAT + NODE_HEARTBEAT; the defaults are 20, 15 and 5."),
    Finding("W001", "visibility_timeout is {visible:g} s, the longest lease {lease:g} s: Redis delivers waiting "
            "messages again and again (the doubles are dropped, but each costs a statement).",
            "Let CELERY_BROKER_TRANSPORT_OPTIONS['visibility_timeout'] be longer than the longest lease."),
    Finding("W002", "Celery runs eagerly: bodies run in the process and thread of the caller, after COMMIT, and no "
            "worker or lease watches over them.",
            "Set CELERY_TASK_ALWAYS_EAGER only in the settings of tests."),
    Finding("W003", "CELERY_TASK_EAGER_PROPAGATES: a body's error is raised where .delay() stood, after COMMIT; the "
            "row keeps its retry all the same.",
            "Leave CELERY_TASK_EAGER_PROPAGATES out."),
    Finding("W004", "The pool {pool!r} cannot interrupt a body, but these tasks have time limits: {names}. A limit "
            "there ends the lease, and only a body that asks self.durable.check() stops.",
            "Use the prefork pool for them, or call self.durable.check() in long bodies."),
    Finding("W005", "CELERY_WORKER_PREFETCH_MULTIPLIER is {found}: a worker hoards messages behind a long run while "
            "others are idle, and the hoarded are republished elsewhere.",
            "Write CELERY_WORKER_PREFETCH_MULTIPLIER = 1."),
    Finding("W006", "CELERY_TASK_ACKS_LATE is set: durable tasks ignore it, because their rows outlive the broker.",
            "Leave it out, unless Celery tasks that are not durable need it."),
    Finding("W007", "CELERY_TASK_REJECT_ON_WORKER_LOST is set: durable tasks ignore it; other tasks that kill their "
            "worker are delivered without end.",
            "Leave it out, unless Celery tasks that are not durable need it."),
    Finding("W008", "SQLite is not set up for several writers: {missing}.",
            "Write in OPTIONS: 'transaction_mode': 'IMMEDIATE', 'timeout': 20, 'init_command': "
            "'PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL'."),
    Finding("W009", "No broker is configured: Celery would try amqp://guest@localhost.",
            "Write CELERY_BROKER_URL; without a server 'durable-filesystem://' serves."),
    Finding("W011", "atomic=True of {names} on SQLite: the body holds the only writer while it runs, so that every "
            "other write waits for it.",
            "Keep such bodies under a second, or keep the tables in PostgreSQL, MySQL or MariaDB."),
    Finding("W012", "@recurring({name!r}) stands on {function}, which is no durable task: it never runs.",
            "Write @durable_task on it, above or below."),
    Finding("W013", "{name} weighs {weight}, and the whole limit {scope} is {most}: it never starts.",
            "Give it a smaller weight=..., or raise the limit; a rate whose burst was given holds no more than that."),
    Finding("W014", "New schedules without timezone= use {zone} ({setting}), but {other} is {differs}.",
            "Set DURABLE_TASKS['TIMEZONE'] to the one that you mean, or give each schedule its timezone=."),
    Finding("W015", "beat cannot call the durable task of its schedule {name!r}: {reason}",
            "Name the queue in the options of this entry of CELERY_BEAT_SCHEDULE, or declare it with @recurring."),
)  # fmt: skip

FINDINGS: dict[str, Finding] = {finding.id: finding for finding in _ALL}


def _settings() -> Settings | None:
    """The settings, or None where E001 or E002 has said what is wrong with them."""
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


def check_settings(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check settings.DURABLE_TASKS and USE_TZ."""
    found = [] if conf.uses_time_zones() else [FINDINGS["E003"]()]
    try:
        settings = conf.settings()
        conf.retention()
        allowances.coded()
        _check_task_defaults(settings)
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
        yield FINDINGS["W014"](zone=zone.name, setting=zone.setting, other=other.setting, differs=other.name)


def _listening(settings: Settings) -> Iterator[CheckMessage]:
    alias = settings.LISTEN_DATABASE
    if alias is None:
        return
    if alias not in connections.settings:
        known = ", ".join(sorted(connections.settings))
        yield FINDINGS["E015"](alias=alias, reason=f"DATABASES does not have it (it has: {known})")
    elif {connections[settings.DATABASE].vendor, connections[alias].vendor} != {"postgresql"}:
        yield FINDINGS["E015"](alias=alias, reason="only PostgreSQL sends notifications; elsewhere REDIS_URL serves")


def _routing(settings: Settings) -> Iterator[CheckMessage]:
    """Ask Django's routers about one model: they decide by application."""
    alias, fault = settings.DATABASE, None
    if (writes := router.db_for_write(Task)) != alias:
        fault = f"send writes of Task to {writes!r}"
    elif router.db_for_read(Task) == DEFAULT_DB_ALIAS != alias:  # another alias may be a replica
        fault = f"send reads of Task to {DEFAULT_DB_ALIAS!r}"
    elif not router.allow_migrate_model(alias, Task):
        fault = "do not let `migrate` create its table there"
    if fault is not None:
        yield FINDINGS["E016"](alias=alias, fault=fault)


def check_tasks(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check the options of the durable tasks that this project has."""
    problem, settings = wiring.load_tasks(), _settings()
    found = [] if problem is None else [FINDINGS["E018"](reason=problem)]
    if settings is None:
        return found
    short = [task.name for task in _options() if task.lease is not None and task.lease < 2 * settings.HEARTBEAT]
    if short:
        found.append(FINDINGS["E006"](names=_listed(short), beat=settings.HEARTBEAT))
    atomic = [task.name for task in _options() if task.atomic]
    if atomic and on_sqlite():
        found.append(FINDINGS["W011"](names=_listed(atomic)))
    return [*found, *_weights()]


def _weights() -> Iterator[CheckMessage]:
    try:
        coded = allowances.coded()
    except InvalidSetting:
        return  # E001 has said so
    for task in _options():
        per_key = limits.per_key_of(task.rate_limit, task.max_concurrency)
        scopes = (limits.GLOBAL, *_of_queue(task), limits.of_task(task.name))
        bound = {scope: coded[scope] for scope in scopes if scope in coded}
        if per_key is not None:
            bound["of its key"] = per_key
        for scope, allowed in bound.items():
            if allowed.heaviest and task.weight > allowed.heaviest:
                yield FINDINGS["W013"](name=task.name, weight=task.weight, scope=scope, most=allowed.heaviest)


def _of_queue(task: TaskOptions) -> list[str]:
    """Return the scope of the task's queue; none if Celery's routing gives it no queue, which its calls report."""
    try:
        return [limits.of_queue(ports.queue_of(task.name, task.queue))]
    except DurableTasksError:
        return []


def check_schedules(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check the schedules that code and settings declare."""
    if wiring.load_tasks() is not None or _settings() is None:
        return []  # E018 or E001 has said so
    bad = [FINDINGS["E014"](name=name, reason=reason) for name, reason in declared.declarations()[1].items()]
    stray = [FINDINGS["W012"](name=name, function=function) for name, function in stray_schedules().items()]
    beat = [FINDINGS["W015"](name=name, reason=reason) for name, reason in unreachable_beat_entries().items()]
    return [*bad, *stray, *beat]


def _options() -> list[TaskOptions]:
    return [registry.get(name).options for name in sorted(registry.names())]


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def check_celery(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check that Celery is wired to this project, and what it was told."""
    if wiring.kombu_version() < OLDEST_KOMBU:
        return [FINDINGS["E011"](found=".".join(map(str, wiring.kombu_version())))]
    if not wiring.is_configured():
        return [FINDINGS["E007"]()]
    told = wiring.read()
    return [*_broker(told), *_serializers(told), *_eager(told), *_worker(told)]


def _broker(told: wiring.Wiring) -> Iterator[CheckMessage]:
    settings = _settings()
    if not told.broker_is_set:
        yield FINDINGS["W009"]()
    if told.transport == "filesystem":
        yield FINDINGS["E010"]()
    if told.folder_problem is not None:
        yield FINDINGS["E019"](reason=told.folder_problem)
    if settings is None or told.visibility_timeout is None:
        return
    longest = max([settings.LEASE, *(task.lease for task in _options() if task.lease is not None)])
    if told.visibility_timeout < longest:
        yield FINDINGS["W001"](visible=told.visibility_timeout, lease=longest)


def _serializers(told: wiring.Wiring) -> Iterator[CheckMessage]:
    for setting, kinds in told.serializers.items():
        for kind in kinds:
            if kind in UNSAFE:
                yield FINDINGS["E008"](setting=setting, kind=kind)
    if not told.accepted & {"json", "application/json"}:
        yield FINDINGS["E009"](accepted=", ".join(sorted(told.accepted)))


def _eager(told: wiring.Wiring) -> Iterator[CheckMessage]:
    if told.eager:
        yield FINDINGS["W002"]()
        if told.eager_propagates:
            yield FINDINGS["W003"]()


def _worker(told: wiring.Wiring) -> Iterator[CheckMessage]:
    limited = [task.name for task in _options() if task.timeout is not None or task.soft_timeout is not None]
    if limited and told.pool in UNTIMED_POOLS:
        yield FINDINGS["W004"](pool=told.pool, names=_listed(limited))
    if told.prefetch_multiplier != 1:
        yield FINDINGS["W005"](found=told.prefetch_multiplier)
    if told.acks_late:
        yield FINDINGS["W006"]()
    if told.reject_on_worker_lost:
        yield FINDINGS["W007"]()


def check_database(app_configs: Any = None, databases: Iterable[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check the server that holds the tables; connects."""
    settings = _settings()
    if settings is None or settings.DATABASE not in (databases or ()):
        return []
    connection = connections[settings.DATABASE]
    try:
        version = tuple(connection.get_database_version())
    except NotSupportedError as too_old:
        return [FINDINGS["E012"](found=str(too_old).rstrip("."))]
    product = connection.display_name
    if product not in OLDEST or version < OLDEST[product]:
        return [FINDINGS["E012"](found=f"{product} {'.'.join(map(str, version))}")]
    if connection.vendor == "mysql":
        return list(_isolation(connection))
    if connection.vendor == "postgresql":
        return list(_isolation_of_atomic(connection, settings.DATABASE))
    return list(_sqlite(connection)) if connection.vendor == "sqlite" else []


def _isolation(connection: Any) -> Iterator[CheckMessage]:
    with connection.cursor() as cursor:
        cursor.execute("SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')")
        levels = {str(value).replace("-", " ").upper() for _, value in cursor.fetchall()}
    if levels != {"READ COMMITTED"}:
        yield FINDINGS["E013"](found=", ".join(sorted(levels)))


def _isolation_of_atomic(connection: Any, alias: str) -> Iterator[CheckMessage]:
    names = [task.name for task in _options() if task.atomic]
    if not names:
        return
    with transaction.atomic(using=alias), connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        level = str(cursor.fetchone()[0]).upper()
    if level not in ("READ COMMITTED", "READ UNCOMMITTED"):
        yield FINDINGS["E017"](names=_listed(names), alias=alias, level=level)


def _sqlite(connection: Any) -> Iterator[CheckMessage]:
    if connection.is_in_memory_db():
        return
    missing = []
    if str((connection.settings_dict.get("OPTIONS") or {}).get("transaction_mode")).upper() != "IMMEDIATE":
        missing.append("transactions do not begin IMMEDIATE")
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        mode = str(cursor.fetchone()[0])
    if mode.lower() != "wal":
        missing.append(f"the journal is {mode!r}, not WAL")
    if missing:
        yield FINDINGS["W008"](missing="; ".join(missing))


def register() -> None:
    """Make the checks known to Django; called once by ``apps.ready()``."""
    for check in (check_settings, check_tasks, check_schedules, check_celery):
        checks.register(check, "durable_tasks")
    checks.register(check_database, checks.Tags.database, "durable_tasks")

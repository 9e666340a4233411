"""The findings of the system checks: ids, texts and remedies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from django.core import checks
from django.core.checks import CheckMessage


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


class _Texts(NamedTuple):
    says: str
    hint: str


_TEXTS: dict[str, _Texts] = {
    "E001": _Texts(
        "{reason}",
        "Correct this setting; docs/reference/settings.md lists every key of DURABLE_TASKS.",
    ),
    "E002": _Texts(
        "DURABLE_TASKS['DATABASE'] is {alias!r}, which DATABASES does not have (it has: {known}).",
        "Write an alias of DATABASES, or leave the key out for 'default'.",
    ),
    "E004": _Texts(
        "NODE_TIMEOUT is {timeout:g} s and NODE_HEARTBEAT {beat:g} s: after one late heartbeat a"
        " node is declared dead.",
        "Let NODE_TIMEOUT be at least 2 x NODE_HEARTBEAT; the defaults are 20 and 5.",
    ),
    "E006": _Texts(
        "The lease of {names} is shorter than 2 x HEARTBEAT ({beat:g} s): runs in progress would"
        " be marked LOST.",
        "Give @durable_task(lease=...) at least twice the HEARTBEAT, or make HEARTBEAT shorter.",
    ),
    "E007": _Texts(
        "Celery has no application of this project: tasks would go to Celery's default broker.",
        "Create one in <project>/celery.py: app = Celery('<project>');"
        " app.config_from_object('django.conf:settings', namespace='CELERY');"
        " app.autodiscover_tasks(); and import it in <project>/__init__.py: from .celery import app"
        " as celery_app",
    ),
    "E009": _Texts(
        "CELERY_ACCEPT_CONTENT ({accepted}) has no 'json': workers would refuse every durable"
        " task.",
        "Add 'json' to CELERY_ACCEPT_CONTENT.",
    ),
    "E010": _Texts(
        "The broker is Kombu's filesystem://, whose consumers lose messages and fail on partially"
        " written files.",
        "Write CELERY_BROKER_URL = 'durable-filesystem://': the same folder, written atomically.",
    ),
    "E011": _Texts(
        "Kombu {found} is installed: before 5.4 workers on Redis stop consuming after a reconnect.",
        "Install kombu>=5.6.",
    ),
    "E012": _Texts(
        "The database is not supported: {found}.",
        "Use PostgreSQL 14, MySQL 8.0.17, MariaDB 10.6 or SQLite 3.35, or newer.",
    ),
    "E013": _Texts(
        "The isolation level is {found}: claims would wait for each other and read stale rows.",
        "Write 'isolation_level': 'read committed' in OPTIONS of this entry of DATABASES.",
    ),
    "E014": _Texts(
        "The schedule {name!r} cannot be used: {reason}",
        "Correct @recurring or DURABLE_TASKS['SCHEDULES']; `manage.py durable sync --dry-run` shows"
        " the rest.",
    ),
    "E015": _Texts(
        "DURABLE_TASKS['LISTEN_DATABASE'] is {alias!r}: {reason}.",
        "Name an entry of DATABASES that reaches the same PostgreSQL directly, or leave the key"
        " out.",
    ),
    "E016": _Texts(
        "DURABLE_TASKS['DATABASE'] is {alias!r}, but DATABASE_ROUTERS {fault}: models and the"
        " admin would read other tables than the engine.",
        "Add 'django_durable_tasks.routers.DurableTasksRouter' to DATABASE_ROUTERS, before routers"
        " of your own.",
    ),
    "E017": _Texts(
        "atomic=True of {names}, and transactions of {alias!r} are {level}: PostgreSQL refuses"
        " the success of a run during which the row was changed, for example by a heartbeat.",
        "Leave 'isolation_level' out of OPTIONS of this entry of DATABASES (and"
        " default_transaction_isolation of its role), or leave atomic=True out and begin a"
        " stricter transaction in the task function, which must then be idempotent.",
    ),
    "E018": _Texts(
        "The modules of tasks cannot be imported: {reason}.",
        "Correct the module: a worker would not start, and its tasks are not registered in this"
        " process.",
    ),
    "E019": _Texts(
        "The broker has no folder: {reason}.",
        "Write CELERY_BROKER_TRANSPORT_OPTIONS = {'data_folder': '/an/absolute/path'}.",
    ),
    "E020": _Texts(
        "HEARTBEAT is {renew:g} s, NODE_HEARTBEAT {beat:g} s and NODE_TIMEOUT {timeout:g} s: a node"
        " that is late would lose healthy runs, between two renewals of their leases.",
        "Let NODE_TIMEOUT be at least HEARTBEAT + NODE_HEARTBEAT; the defaults are 20, 15 and 5.",
    ),
    "E021": _Texts(
        "DURABLE_TASKS['HTTP_RETRY_QUEUE'] cannot be used: {reason}",
        "Declare the queue in CELERY_TASK_QUEUES and start a worker for it, or leave the key out.",
    ),
    "E022": _Texts(
        "These columns regard different texts as equal (case, accents or trailing blanks), so that"
        " different keys would be one task: {columns}. Remedy: {remedy}",
        "Stop the schedulers and workers, execute the statements, and start them again. No row is"
        " changed.",
    ),
    "E023": _Texts(
        "The encoding of the database or of its connection is {name}, which cannot store every"
        " text: an argument or an error message with other characters would raise an error.",
        "PostgreSQL: create the database with ENCODING 'UTF8'. MySQL, MariaDB: write 'charset':"
        " 'utf8mb4' in OPTIONS of this entry of DATABASES.",
    ),
    "E024": _Texts(
        "{table} has rows, and {app} is not installed: limits of staff users and quotas of tenants"
        " do not apply.",
        "Add {app!r} to INSTALLED_APPS. If they are to end, delete the rows of the table.",
    ),
    "W001": _Texts(
        "visibility_timeout is {visible:g} s, the longest lease {lease:g} s: Redis delivers"
        " waiting messages repeatedly (the duplicates are ignored, but each costs a statement).",
        "Let CELERY_BROKER_TRANSPORT_OPTIONS['visibility_timeout'] be longer than the longest"
        " lease.",
    ),
    "W002": _Texts(
        "Celery runs eagerly: task functions run in the process and thread of the caller, after"
        " COMMIT, without a worker or a lease.",
        "Set CELERY_TASK_ALWAYS_EAGER only in the settings of tests.",
    ),
    "W003": _Texts(
        "CELERY_TASK_EAGER_PROPAGATES: an error of a task function is raised by the call of"
        " .delay(), after COMMIT. The task is retried nevertheless.",
        "Leave CELERY_TASK_EAGER_PROPAGATES out.",
    ),
    "W004": _Texts(
        "The pool {pool!r} cannot interrupt a task function, but these tasks have time limits:"
        " {names}. A time limit then ends the lease, and only functions that call"
        " self.durable.check() stop.",
        "Use the prefork pool for them, or call self.durable.check() in long functions.",
    ),
    "W005": _Texts(
        "CELERY_WORKER_PREFETCH_MULTIPLIER is {found}: a worker prefetches messages during a long"
        " run while others are idle, and these messages are republished.",
        "Write CELERY_WORKER_PREFETCH_MULTIPLIER = 1.",
    ),
    "W006": _Texts(
        "CELERY_TASK_ACKS_LATE is set: durable tasks ignore it, because their rows survive a"
        " failure of the broker.",
        "Leave it out, unless Celery tasks that are not durable need it.",
    ),
    "W007": _Texts(
        "CELERY_TASK_REJECT_ON_WORKER_LOST is set: durable tasks ignore it; other tasks that kill"
        " their worker are redelivered indefinitely.",
        "Leave it out, unless Celery tasks that are not durable need it.",
    ),
    "W008": _Texts(
        "SQLite is not set up for several writers: {missing}.",
        "Write in OPTIONS: 'transaction_mode': 'IMMEDIATE', 'timeout': 20, 'init_command': "
        "'PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL'.",
    ),
    "W009": _Texts(
        "No broker is configured: Celery would try amqp://guest@localhost.",
        "Write CELERY_BROKER_URL; 'durable-filesystem://' needs no server.",
    ),
    "W011": _Texts(
        "atomic=True of {names} on SQLite: the function has the only write lock while it runs,"
        " and every other write waits for it.",
        "Keep such functions under a second, or keep the tables in PostgreSQL, MySQL or MariaDB.",
    ),
    "W012": _Texts(
        "@recurring({name!r}) decorates {function}, which is not a durable task: it never runs.",
        "Add @durable_task to the function, above or below.",
    ),
    "W013": _Texts(
        "{name} weighs {weight}, and the limit {scope} is {most}: it never starts.",
        "Give it a smaller weight=..., or raise the limit; with a given burst, a rate limit"
        " admits no heavier task.",
    ),
    "W014": _Texts(
        "New schedules without timezone= use {zone} ({setting}), but {other} is {differs}.",
        "Set both to the same zone, or give each schedule its timezone=.",
    ),
    "W015": _Texts(
        "beat cannot call the durable task of its schedule {name!r}: {reason}",
        "Name the queue in the options of this entry of CELERY_BEAT_SCHEDULE, or declare it with"
        " @recurring.",
    ),
    "W018": _Texts(
        "{settings} is False, the default before Celery 5.7: RabbitMQ 4.3 and newer refuse the"
        " queue, and a worker ends at its start with 541 INTERNAL_ERROR.",
        "Write CELERY_CONTROL_QUEUE_EXCLUSIVE = CELERY_EVENT_QUEUE_EXCLUSIVE = True, which works"
        " with every RabbitMQ, or install celery>=5.7.",
    ),
    "W019": _Texts(
        "DURABLE_TASKS['QUEUE_ALLOW'] has {entry!r}, which is used for Celery tasks ({user}): the"
        " messages of queue_message to it are refused.",
        "Give messages for other programs queues and exchanges of their own, which no Celery worker"
        " consumes.",
    ),
    "W020": _Texts(
        "USE_TZ is False: django.utils.timezone.now() returns a time without a zone, which durable"
        " tasks and schedules refuse. Their own columns have a zone.",
        "Give durable tasks times with a zone, such as datetime.datetime.now(datetime.UTC).",
    ),
    "W021": _Texts(
        "{setting} has {kind!r}: anyone who can write to the broker could run code in the workers."
        " Durable tasks do not use it: their messages are JSON.",
        "Write CELERY_ACCEPT_CONTENT = ['json'], CELERY_TASK_SERIALIZER = CELERY_RESULT_SERIALIZER"
        " = 'json' as soon as no other task needs it.",
    ),
    "W022": _Texts(
        "DURABLE_TASKS[{setting!r}] has no effect without {app}.",
        "Add {app!r} to INSTALLED_APPS, and migrate.",
    ),
    "W023": _Texts(
        "{name} has {field!r} in the template {template!r} of a key. SECRET_NAMES names this"
        " argument: keys are stored and shown unmasked and unencrypted.",
        "Derive the key from another argument, such as an id. Clients of the API need the scope"
        " `secrets` to create such a task.",
    ),
}
"""The text and the remedy of each finding, by its id."""


FINDINGS: dict[str, ProjectFinding] = {
    name: ProjectFinding(name, *texts) for name, texts in _TEXTS.items()
}

"""Settings of the package: reads ``settings.DURABLE_TASKS`` once into a frozen, typed object.

No other module reads ``django.conf.settings``. The ``help`` of each field is its documentation:
docs/reference/settings.md is generated from it.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from django_durable_tasks.conf_checks import InvalidSetting as InvalidSetting
from django_durable_tasks.conf_checks import (
    allowed_in,
    check_encryption,
    check_limits,
    check_list_of_names,
    check_names,
    check_schedules,
    check_task_defaults,
    check_verify_cron,
    checked_seconds,
    checked_value,
)
from django_durable_tasks.conf_fields import count, duration, value
from django_durable_tasks.conf_interfaces import InterfaceOptions, check_interfaces
from django_durable_tasks.conf_monitoring import MonitoringOptions, check_monitoring
from django_durable_tasks.conf_notifications import NotificationOptions, check_notifications
from django_durable_tasks.did_you_mean import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(InterfaceOptions, NotificationOptions, MonitoringOptions):
    """The settings of django_durable_tasks; durations in seconds."""

    LEASE: float = duration(
        60, "How long a run may stay silent before its row is given to another run."
    )
    HEARTBEAT: float = duration(
        15, "How often a process renews the leases of all its runs with one UPDATE."
    )
    NODE_HEARTBEAT: float = duration(5, "The interval of the heartbeats of schedulers and workers.")
    NODE_TIMEOUT: float | None = duration(
        None,
        "A node without a heartbeat for this time is declared dead: its runs are marked LOST, its"
        " claimed tasks republished. None: 20, on SQLite 60.",
    )
    LEADER_LEASE: float | None = duration(
        None, "How long a leader stays leader unseen. None: 4, on SQLite 20."
    )
    LEADER_RENEW: float | None = duration(
        None, "How often the leader renews. None: 1, on SQLite 5."
    )
    REPUBLISH_AFTER: float = duration(
        15,
        "How long a published row waits for its start before the tasks of its queue are compared"
        " with the messages of the broker; also the time between two messages of one row.",
    )
    REPUBLISH_AFTER_MAX: float = duration(
        300,
        "If a broker cannot count its messages, the wait between two messages of a task doubles up"
        " to this. If other messages hide that all of a queue are lost, one row is republished"
        " after this.",
    )
    POLL: float = duration(1, "How long a scheduler sleeps when nothing is due.")
    LOOKAHEAD: float = duration(
        2,
        "How far ahead a scheduler reads rows, to publish each at its instant; what is due sooner"
        " wakes it.",
    )
    BATCH_SIZE: int = count(500, "How many rows one claim, sweep or prune statement takes at most.")
    SKEW_MAX: float = duration(
        2,
        "A host clock further from the database's than this, and a step of the database's clock by"
        " more than this, is logged, and makes `durable status` exit with 1.",
    )
    STALLED_AFTER: float = duration(
        60,
        "A scheduler is stalled if it has not polled for this time. A worker is stalled if it has"
        " free processes and has started no task for this time, although tasks of its queues were"
        " republished. `durable health` fails for a stalled node.",
    )
    DATABASE: str = value(
        "default",
        "The alias of the database that holds the tables; another one than 'default' needs"
        " DurableTasksRouter.",
    )
    LISTEN_DATABASE: str | None = value(
        None,
        "The alias of a direct connection to DATABASE, for notifications, where DATABASE is behind"
        " a pooler.",
    )
    REGION: str = value(
        "", "The name of this region: each has a leader, a due index and wake-ups of its own."
    )
    REDIS_URL: str | None = value(
        None,
        "Redis for the due index and wake-ups, 'redis://cache:6379/3'. None: each scheduler has its"
        " own index.",
    )
    FAST_PATH: bool = value(
        True, "Publish a task that is due now right after COMMIT instead of at the next poll."
    )
    QUEUE_WINDOW: int | None = count(
        None,
        "How many messages may wait per queue. None: 2 x concurrency + the starts of one second, at"
        " least 50.",
    )
    LIMITS: Mapping[str, Mapping[str, Any]] | None = value(
        None,
        "Limits by scope: {'queue:emails': {'max_concurrency': 5, 'rate': '100/s', 'burst': 10},"
        " 'tenant:7': ...}; scopes are global, queue:<name>, task:<name>, tenant:<id> and"
        " key:<text>.",
    )
    PRIORITY_AGING: float | None = duration(
        None,
        "Each time a due task has waited for this time, its priority is raised by one. None:"
        " never.",
    )
    TASK_DEFAULTS: Mapping[str, Any] | None = value(
        None,
        "Defaults for the options of @durable_task, {'max_attempts': 3, 'backoff_base': 10,"
        " 'timeout': 600}; read when a module with tasks is imported. An option of the decorator or"
        " a retry option of Celery's counts before them.",
    )
    PAYLOAD_MAX_BYTES: int = count(
        65_536, "The largest arguments, as JSON in bytes; at most 262,144."
    )
    RESULT_MAX_BYTES: int = count(65_536, "The largest result, as JSON in bytes.")
    WORKFLOW_MAX_TASKS: int = count(
        10_000, "The most tasks of one workflow, those added while it runs included."
    )
    WORKFLOW_MAX_EDGES: int = count(50_000, "The most edges of one workflow.")
    RESULT_WRITE_TIMEOUT: float = duration(
        300, "How long an ending that cannot be written is tried again."
    )
    PUBLISH_TIMEOUT: float = duration(2, "The longest wait for the broker in one publish.")
    BROKER_BACKOFF: float = duration(
        5,
        "How long nothing is published after the broker failed; to a queue that it rejects at"
        " first.",
    )
    UNKNOWN_TASK_DELAY: float = duration(
        30,
        "How long a task waits at most after a worker without its function received it, while"
        " another worker of its queue may have the function.",
    )
    ACCEPT_PLAIN_MESSAGES: bool = value(
        False,
        "Let workers create tasks from plain messages for durable tasks, with the arguments that"
        " they carry: those published before the task was durable, by `celery call`, or by another"
        " project.",
    )
    RETENTION: Mapping[str, Any] | None = value(
        None,
        "How long ended tasks are kept, by status. Tasks of a status with None are never deleted."
        " None: a week, FAILED 30 days.",
    )
    LEDGER_RETENTION: float = duration(
        31_536_000,
        "How long the ledger of recurring tasks is kept; a backfill cannot reach further back. One"
        " year.",
    )
    SCHEDULES: Mapping[str, Mapping[str, Any]] | None = value(
        None,
        "Schedules by name: {'task': 'shop.tasks.report', 'cron': '30 2 * * *', ...}; `durable"
        " sync` makes rows.",
    )
    TIMEZONE: str | None = value(
        None,
        "The zone of new schedules without `timezone=`. None: CELERY_TIMEZONE, else TIME_ZONE.",
    )
    SYNC_SCHEDULES_ON_MIGRATE: bool = value(
        False, "Do what `durable sync` does after each `migrate` of our tables."
    )
    PLAIN_CELERY_TASKS: Sequence[str] = value(
        (),
        "The Celery tasks, not durable ones, that imported schedules of beat may send; a list of"
        " names.",
    )
    VERIFY_CRON: str | None = value(
        None,
        "When the tables are verified by themselves: a cron text, '40 3 * * *'; `durable sync`"
        " makes the schedule.",
    )
    DEAD_LETTERS_MAX: int = count(
        0, "More open dead letters than this warn and make `durable status` exit with 1."
    )
    OLDEST_DUE_MAX: float = duration(
        60, "An older due row than this makes `durable status` exit with 1."
    )
    SECRET_NAMES: str = value(
        r"password|passwd|secret|token|api[_-]?key|authorization|cookie|session|private|credential|card|cvv|ssn|iban",
        "Values under names that match this pattern are masked in tracebacks, the admin and"
        " listings.",
    )
    AUDIT_RETENTION: float = duration(31_536_000, "How long audit entries are kept; a year.")
    ENCRYPTION_KEYS: Sequence[str] = value(
        (),
        "Keys that encrypt arguments, results and destinations of notifications in the database,"
        " the current one first, as 'ID:KEY' (32 bytes in Base64); or the dotted path of a function"
        " that returns them.",
    )


def read(raw: Mapping[str, Any]) -> Settings:
    """Convert the mapping into Settings; an unknown key raises InvalidSetting with the closest
    valid key.
    """
    specs = {spec.name: spec for spec in dataclasses.fields(Settings)}
    for key in raw:
        if key not in specs:
            hint = did_you_mean(key, specs, cutoff=0.5)
            raise InvalidSetting(f"DURABLE_TASKS has no key {key!r}. {hint}".strip())
    found = Settings(
        **{
            key: checked_value(key, specs[key].metadata["kind"], value, specs[key].default)
            for key, value in raw.items()
        }
    )
    if found.HEARTBEAT * 2 > found.LEASE:
        raise InvalidSetting(
            f"DURABLE_TASKS['LEASE'] is {found.LEASE:g}: it must be at least 2 x HEARTBEAT."
        )
    if not found.BATCH_SIZE:
        raise InvalidSetting(
            "DURABLE_TASKS['BATCH_SIZE'] is 0: nothing would ever be dispatched; give 1 or more."
        )
    try:
        re.compile(found.SECRET_NAMES)
    except (re.error, TypeError) as error:
        raise InvalidSetting(
            f"DURABLE_TASKS['SECRET_NAMES'] is no regular expression: {error}."
        ) from None
    if found.PAYLOAD_MAX_BYTES > 262_144:
        raise InvalidSetting("DURABLE_TASKS['PAYLOAD_MAX_BYTES'] may be at most 262144.")
    check_names(found.REDIS_URL, found.REGION)
    check_schedules(found.SCHEDULES)
    check_verify_cron(found.VERIFY_CRON)
    check_limits(found.LIMITS)
    check_task_defaults(found.TASK_DEFAULTS)
    check_list_of_names("PLAIN_CELERY_TASKS", found.PLAIN_CELERY_TASKS)
    check_interfaces(found)
    check_notifications(found)
    check_encryption(found.ENCRYPTION_KEYS)
    check_monitoring(found)
    return found


_KEPT = {
    "SUCCESS": 604_800,
    "FAILED": 2_592_000,
    "CANCELLED": 604_800,
    "SKIPPED": 604_800,
    "EXPIRED": 604_800,
}


def retention() -> dict[str, float | None]:
    """Return for each final status how long (seconds) its rows are kept; None keeps them
    indefinitely.
    """
    given = settings().RETENTION or {}
    for status in given:
        if status not in _KEPT:
            raise InvalidSetting(
                f"DURABLE_TASKS['RETENTION'] has no status {status!r}; it has: {', '.join(_KEPT)}."
            )
    return {
        status: checked_seconds(f"RETENTION[{status}]", kept)
        for status, kept in {**_KEPT, **given}.items()
    }


TENANT = "{tenant}"
"""Stands for the slug of a tenant in an entry of a list of what is allowed."""


def names_tenants(key: str) -> bool:
    """Return whether the entries of this list of what is allowed differ between tenants."""
    given = getattr(settings(), key)
    return isinstance(given, Mapping) or any(TENANT in entry for entry in given)


def allowed(key: str, slug: str | None = None) -> tuple[str, ...]:
    """Return the entries of API_TASKS, HTTP_ALLOW or NOTIFICATION_EMAIL_ALLOW for the tenant with
    this slug: those of all tenants ("*") and its own. None: the entries for any tenant.
    """
    return allowed_in(getattr(settings(), key), slug)


_QUOTAS = {
    "recurring_tasks": 1_000,
    # One run a minute. With 1,000 recurring tasks a tenant creates at most 17 tasks a second.
    "runs_per_day": 1_440,
    "calendars": 100,
    "requests": "6000/m",
}
"""The quotas that QUOTAS does not contain, so that a new tenant is bounded without an operator."""


def quotas() -> dict[str, Any]:
    """Return the quotas of tenants without values of their own."""
    return {**_QUOTAS, **(settings().QUOTAS or {})}


@functools.cache
def settings() -> Settings:
    """Return the current settings; raises InvalidSetting."""
    return read(getattr(django_settings, "DURABLE_TASKS", {}))


def beat_knows_zones() -> bool:
    """Return whether django-celery-beat interprets a crontab in the crontab's own zone
    (DJANGO_CELERY_BEAT_TZ_AWARE).
    """
    return bool(getattr(django_settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True))


def time_zone() -> str:
    """Return TIME_ZONE."""
    return str(django_settings.TIME_ZONE)


def celery_time_zone() -> object:
    """Return CELERY_TIMEZONE, also in a process that has not created the project's Celery app."""
    return getattr(django_settings, "CELERY_TIMEZONE", None)


def uses_time_zones() -> bool:
    """Return whether Django stores aware datetimes (USE_TZ)."""
    return bool(django_settings.USE_TZ)


def _forget(*, setting: str, **_: object) -> None:
    if setting == "DURABLE_TASKS":
        settings.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_durable_tasks.conf")

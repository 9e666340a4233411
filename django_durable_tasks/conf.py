"""Settings of the package: reads ``settings.DURABLE_TASKS`` once into a frozen, typed object."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_durable_tasks.texts import did_you_mean

# Checks of single settings in ``DURABLE_TASKS``; each is called with the key and the value, unless
# this is None, and raises InvalidSetting.


class InvalidSetting(ImproperlyConfigured):
    """A key or value in settings.DURABLE_TASKS cannot be used."""

    @classmethod
    def of(cls, key: str, value: object, remedy: str) -> InvalidSetting:
        """Return the error for a key, its value and what to write instead."""
        return cls(f"DURABLE_TASKS[{key!r}] is {value!r}: {remedy}")


_SHORTEST_KEY = 32
_ENDLESS = 100 * 31_557_600  # the longest duration that every database can add to its current time


def checked_seconds(key: str, value: object) -> float | None:
    """Return a duration in seconds; None stays None."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _ENDLESS:
        raise InvalidSetting.of(key, value, "give seconds > 0 or a timedelta.")
    return float(value)


def check_count(key: str, value: object) -> None:
    """Check that a setting is a whole number of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidSetting.of(key, value, "give a whole number of 0 or more.")


def check_ports(key: str, value: object) -> None:
    """Check that a setting is a list of ports."""
    if not isinstance(value, list | tuple) or not all(
        type(port) is int and 0 < port < 65_536 for port in value
    ):
        raise InvalidSetting.of(key, value, "give a list of ports.")


def check_signing_keys(key: str, value: object) -> None:
    """Check that a setting is a list of keys that are long enough."""
    if not isinstance(value, list | tuple) or not all(
        isinstance(entry, str) and len(entry) >= _SHORTEST_KEY for entry in value
    ):
        # The keys are omitted from the text, because they are secret.
        raise InvalidSetting(
            f"DURABLE_TASKS[{key!r}]: give a list of random strings of at least {_SHORTEST_KEY}"
            " characters."
        )


def check_encryption_keys(key: str, value: object) -> None:
    """Check the type of a setting with encryption keys. The keyring checks the keys."""
    if isinstance(value, str) and ":" not in value:
        return
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
        # The keys are omitted from the text, because they are secret.
        raise InvalidSetting(
            f"DURABLE_TASKS[{key!r}]: give a list of 'ID:KEY' strings, or the dotted path of a"
            " function that returns it."
        )


def check_list_of_names(key: str, value: object, of: str = "names") -> None:
    """Check that a setting is a list of strings. ``of``: what they are, for the error."""
    if (
        not isinstance(value, Iterable)
        or isinstance(value, str | bytes | Mapping)
        or not all(isinstance(name, str) for name in value)
    ):
        raise InvalidSetting.of(key, value, f"give a list of {of}.")


_SLUG = "a-zA-Z0-9_-"
_AMBIGUOUS = re.compile(rf"[]*?{_SLUG}]{{tenant}}|{{tenant}}[\[*?{_SLUG}]")


def check_patterns(key: str, value: object) -> None:
    """Check a list of patterns in which ``{tenant}`` is separated from the rest.

    A slug may contain hyphens: ``{tenant}-*`` of the tenant acme would match ``acme-eu-mail`` of
    the tenant acme-eu.
    """
    check_list_of_names(key, value)
    for entry in value if isinstance(value, Iterable) else ():
        if set("*?[") & set(entry) and _AMBIGUOUS.search(entry):
            raise InvalidSetting(
                f"DURABLE_TASKS[{key!r}] has {entry!r}, which matches queues of several tenants:"
                " separate {tenant} by a character that no slug has, such as '{tenant}.*'."
            )


def check_allowed(key: str, value: object, of: str = "names") -> None:
    """Check that a setting is a list of strings, or a mapping of tenants' slugs to such lists."""
    for entries in value.values() if isinstance(value, Mapping) else (value,):
        check_list_of_names(key, entries, of)


def allowed_in(setting: Any, slug: str | None) -> tuple[str, ...]:
    """Return the entries of such a setting for a tenant; None: those of all tenants together."""
    if not isinstance(setting, Mapping):
        entries = tuple(setting)
    elif slug is None:
        entries = tuple(entry for several in setting.values() for entry in several)
    else:
        entries = (*setting.get("*", ()), *(setting.get(slug, ()) if slug != "*" else ()))
    return entries if slug is None else tuple(entry.replace("{tenant}", slug) for entry in entries)


def check_text(key: str, value: object) -> None:
    """Check that a setting is a non-empty text."""
    if not isinstance(value, str) or not value:
        raise InvalidSetting(f"DURABLE_TASKS[{key!r}]: give a non-empty text or None.")


def check_redis_url(key: str, value: object) -> None:
    """Check that a setting is a URL of Redis."""
    if not isinstance(value, str) or not value.startswith(("redis://", "rediss://", "unix://")):
        raise InvalidSetting(
            f"DURABLE_TASKS[{key!r}] is no address of Redis: give redis://, rediss:// or unix://."
        )
    try:
        urlsplit(value).port  # noqa: B018 - it is read for its error
    except ValueError:
        # The text of the error is omitted, because it contains a part of the password.
        raise InvalidSetting(
            f"DURABLE_TASKS[{key!r}] cannot be read: spell / # ? and @ in its password as %2F %23"
            " %3F and %40."
        ) from None


def check_region(key: str, value: object) -> None:
    """Check that a setting is a short name."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{0,50}", value):
        raise InvalidSetting.of(
            key, value, "give up to 50 letters, digits, dots, hyphens or underscores."
        )


def check_mapping(key: str, value: object, of: str) -> None:
    """Check that a setting is a mapping. ``of``: what it maps, for the error."""
    if not isinstance(value, Mapping):
        raise InvalidSetting.of(key, value, f"give a mapping of {of}.")


def check_schedules(key: str, value: object) -> None:
    """Check the schedules that settings declare."""
    check_mapping(key, value, "names to schedules")
    for name, schedule in value.items() if isinstance(value, Mapping) else ():
        if not isinstance(schedule, Mapping) or not isinstance(schedule.get("task"), str):
            raise InvalidSetting(
                f"DURABLE_TASKS[{key!r}][{name!r}] is {schedule!r}: give a mapping whose 'task' is"
                " the registered name of a durable task."
            )


def check_batch_size(key: str, value: int) -> None:
    """Check that statements of this many rows make progress."""
    check_count(key, value)
    if not value:
        remedy = "nothing would ever be dispatched; give 1 or more."
        raise InvalidSetting.of(key, value, remedy)


def check_payload(key: str, value: int) -> None:
    """Check that arguments of this many bytes fit a message."""
    check_count(key, value)
    if value > 262_144:
        raise InvalidSetting(f"DURABLE_TASKS[{key!r}] may be at most 262144.")


def check_pattern(key: str, value: Any) -> None:
    """Check that a setting is a regular expression."""
    try:
        re.compile(value)
    except (re.error, TypeError) as error:
        raise InvalidSetting(f"DURABLE_TASKS[{key!r}] is no regular expression: {error}.") from None


# The kinds of settings. The ``help`` of each field is its documentation.


Check = Callable[[str, Any], None]


def duration(default: float | None, help: str) -> Any:
    """Return the field of a duration in seconds."""
    return field(default=default, metadata={"help": help, "kind": "duration", "check": None})


def count(default: int | None, help: str, check: Check = check_count) -> Any:
    """Return the field of a whole number of 0 or more."""
    return field(default=default, metadata={"help": help, "kind": "count", "check": check})


def value(default: Any, help: str, check: Check | None = None) -> Any:
    """Return the field of another value."""
    return field(default=default, metadata={"help": help, "kind": "value", "check": check})


# The ``help`` of each field is its documentation:
# docs/reference/settings.md is generated from it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of django_durable_tasks; durations in seconds."""

    # Metrics and traces.
    METRICS_TENANTS: bool = value(
        False, "Count for each tenant, and add the label `tenant` to the metrics of tasks."
    )
    TRACES: bool = value(
        False,
        "Create spans of OpenTelemetry for the creation and the attempts of tasks; needs"
        " `django_durable_tasks.contrib.metrics` and the extra [otel].",
    )

    # Notifications and the watchdog.
    NOTIFICATION_EMAIL_ALLOW: Sequence[str] | Mapping[str, Sequence[str]] = value(
        (),
        "The addresses to which notifications may be sent by e-mail; addresses or patterns such as"
        " '*@example.com'. Empty: none. A list is for all tenants; a mapping of the slugs of"
        " tenants, '*' for all, to such lists gives each its own: {'acme': ['*@acme.example']}.",
        check_allowed,
    )
    NOTIFICATION_EMAIL_FROM: str | None = value(
        None, "The sender of notifications by e-mail. None: DEFAULT_FROM_EMAIL.", check_text
    )
    WATCHDOG_URL: str | None = value(
        None,
        "A URL of an external monitor. Each minute a scheduler creates a task that a worker runs,"
        " and the task sends a request to this URL. The monitor alarms if the requests stop.",
        check_text,
    )

    # The HTTP API, HTTP callbacks and messages to other programs.
    API_SESSIONS: bool = value(
        False,
        "Let staff users of Django use the HTTP API with the session of the admin, with the"
        " permissions of their user and a CSRF token for each write.",
    )
    API_TASKS: Sequence[str] | Mapping[str, Sequence[str]] = value(
        ("django_durable_tasks.http_callback", "django_durable_tasks.queue_message"),
        "The durable tasks that clients of the HTTP API may create; names or patterns such as"
        " 'billing.*', or a mapping of the slugs of tenants, '*' for all, to such lists.",
        check_allowed,
    )
    API_QUEUES: Sequence[str] = value(
        (),
        "The queues that clients of the HTTP API may choose; names or patterns such as 'acme.*' or"
        " '{tenant}.*', in which {tenant} stands for the slug of the client's tenant. Empty: each"
        " task goes to its own queue.",
        check_patterns,
    )
    QUOTAS: Mapping[str, Any] | None = value(
        None,
        "Quotas of each tenant that has no other value of its own: {'open_tasks': 10_000,"
        " 'recurring_tasks': 100, 'runs_per_day': 1_440, 'calendars': 100, 'payload_bytes': 16_384,"
        " 'requests': '600/m'}. Without a value of their own 'recurring_tasks' are 1,000,"
        " 'runs_per_day' of each of them 1,440, 'calendars' 100, and 'requests' of the HTTP API"
        " 6000/m (None: no limit); the others are without limit. The quotas apply to what is"
        " created through the HTTP API and by schedules, and all but 'requests' not to the default"
        " tenant. Needs `django_durable_tasks.contrib.api`.",
        partial(check_mapping, of="quotas to numbers"),
    )
    HTTP_ALLOW: Sequence[str] | Mapping[str, Sequence[str]] = value(
        (),
        "Hosts, 'host:port' or networks that HTTP callbacks may reach although their addresses are"
        " not public: ['billing.internal:8080', '10.1.0.0/16']; of all tenants, unless it is a"
        " mapping of the slugs of tenants, '*' for all, to such lists:"
        " {'default': ['billing.internal:8080']}.",
        partial(check_allowed, of="hosts, host:port or networks"),
    )
    HTTP_PORTS: Sequence[int] = value(
        (80, 443, 8080, 8443),
        "The ports that HTTP callbacks may use without an entry of HTTP_ALLOW.",
        check_ports,
    )
    HTTP_TIMEOUT: float = duration(
        15, "The longest duration of an attempt of an HTTP callback without `timeout=`."
    )
    HTTP_SIGNING_KEYS: Sequence[str] = value(
        (),
        "Keys from which the signing secret of each endpoint is derived, the current one first. A"
        " request has a signature for each key. Without a key requests are not signed.",
        check_signing_keys,
    )
    HTTP_ENDPOINT_CONCURRENCY: int | None = count(
        None,
        "The most HTTP callbacks to one endpoint at the same time. None: no limit, except those of"
        " LIMITS and of operators. For a tenant other than the default one all hosts of a domain"
        " are one endpoint, whatever its callbacks pass as `endpoint`.",
    )
    HTTP_RETRY_QUEUE: str | None = value(
        None,
        "The queue of HTTP callbacks after their first failed attempt, so that retries do not delay"
        " first attempts. A worker must consume it. None: they stay in their queue.",
        check_text,
    )
    HTTP_BREAKER_FAILURES: int = count(
        5,
        "After this number of requests in a row without an answer, or with 429, 502, 503 or 504,"
        " callbacks to an endpoint wait for 30 s, and twice as long after each failed probe, up to"
        " 10 minutes. 0: never.",
    )
    QUEUE_ALLOW: Sequence[str] = value(
        (),
        "The queues and exchanges to which queue_message may publish: ['invoices',"
        " 'exchange:events', 'customer.{tenant}']. {tenant} stands for the slug of the task's"
        " tenant, so that no tenant reaches the queue of another one.",
        check_list_of_names,
    )

    # The core.
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
        None,
        "How long a leader stays leader unseen; it renews its lease four times in this time, at"
        " least every second. None: 4, on SQLite 20, with a renewal every 5 seconds.",
    )
    REPUBLISH_AFTER: float = duration(
        15,
        "How long a published row waits for its start before the tasks of its queue are compared"
        " with the messages of the broker; also the time between two messages of one row.",
    )
    POLL: float = duration(1, "How long a scheduler sleeps when nothing is due.")
    LOOKAHEAD: float = duration(
        2,
        "How far ahead a scheduler reads rows, to publish each at its instant; what is due sooner"
        " wakes it.",
    )
    BATCH_SIZE: int = count(
        500, "How many rows one claim, sweep or prune statement takes at most.", check_batch_size
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
        "",
        "The name of this region: each has a leader, a due index and wake-ups of its own.",
        check_region,
    )
    REDIS_URL: str | None = value(
        None,
        "Redis for the due index and wake-ups, 'redis://cache:6379/3'. None: each scheduler has its"
        " own index.",
        check_redis_url,
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
        " 'tenant:7': ...}; scopes are global, queue:<name>, task:<name>, tenant:<id>,"
        " tenant:* (each tenant but the default one) and key:<text>.",
        partial(check_mapping, of="scopes to limits"),
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
        partial(check_mapping, of="options to values"),
    )
    PAYLOAD_MAX_BYTES: int = count(
        65_536, "The largest arguments, as JSON in bytes; at most 262,144.", check_payload
    )
    RESULT_MAX_BYTES: int = count(65_536, "The largest result, as JSON in bytes.")
    WORKFLOW_MAX_TASKS: int = count(
        10_000, "The most tasks of one workflow, those added while it runs included."
    )
    RESULT_WRITE_TIMEOUT: float = duration(
        300, "How long an ending that cannot be written is tried again."
    )
    PUBLISH_TIMEOUT: float = duration(2, "The longest wait for the broker in one publish.")
    BROKER_BACKOFF: float = duration(
        5,
        "How long nothing is published after the broker failed; to a queue that it rejects at"
        " first.",
    )
    ACCEPT_PLAIN_MESSAGES: bool = value(
        False,
        "Let workers create tasks from plain messages for durable tasks, with the arguments that"
        " they carry: those published before the task was durable, by `celery call`, or by another"
        " project.",
    )
    RETENTION: Mapping[str, Any] | None = value(
        None,
        "How long rows are kept; with None as a value they are never deleted. By the status of"
        " ended tasks (FAILED 30 days, the others a week), 'LEDGER' of the fire times of schedules,"
        " which also says how far back a backfill can reach, 'AUDIT' (both a year), 'NOTIFICATIONS'"
        " of events (30 days) and 'METRICS' of the counts of charts (two days; totals are kept"
        " indefinitely): {'SUCCESS': 86_400, 'AUDIT': None}.",
    )
    SCHEDULES: Mapping[str, Mapping[str, Any]] | None = value(
        None,
        "Schedules by name: {'task': 'shop.tasks.report', 'cron': '30 2 * * *', ...}; `durable"
        " sync` makes rows.",
        check_schedules,
    )
    SYNC_SCHEDULES_ON_MIGRATE: bool = value(
        False, "Do what `durable sync` does after each `migrate` of our tables."
    )
    PLAIN_CELERY_TASKS: Sequence[str] = value(
        (),
        "The Celery tasks, not durable ones, that imported schedules of beat may send; a list of"
        " names.",
        check_list_of_names,
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
        check_pattern,
    )
    ENCRYPTION_KEYS: Sequence[str] = value(
        (),
        "Keys that encrypt arguments, results and destinations of notifications in the database,"
        " the current one first, as 'ID:KEY' (32 bytes in Base64); or the dotted path of a function"
        " that returns them.",
        check_encryption_keys,
    )


_INSTALLED = "Leave it out: it is on if django_durable_tasks.contrib.{} is in INSTALLED_APPS."
_REMOVED = {
    "API": _INSTALLED.format("api"),
    "HTTP_BREAKER_PAUSE": "Leave it out: the pause begins with 30 s; see HTTP_BREAKER_FAILURES.",
    "METRICS": _INSTALLED.format("metrics"),
    "NOTIFICATIONS": _INSTALLED.format("notifications"),
    "LEADER_RENEW": "Leave it out: LEADER_LEASE is renewed four times in its duration.",
}
"""What to do instead of setting a key that no longer exists."""


def read(raw: Mapping[str, Any]) -> Settings:
    """Convert the mapping into Settings; an unknown key raises InvalidSetting with the closest
    valid key, or with what replaces a key that was removed.
    """
    specs = {spec.name: spec for spec in dataclasses.fields(Settings)}
    for key in raw:
        if key not in specs:
            hint = _REMOVED.get(key) or did_you_mean(key, specs, cutoff=0.5)
            raise InvalidSetting(f"DURABLE_TASKS has no key {key!r}. {hint}".strip())
    values: dict[str, Any] = {}
    for key, value in raw.items():
        kind, check = specs[key].metadata["kind"], specs[key].metadata["check"]
        if value is None and specs[key].default is not None:
            raise InvalidSetting(
                f"DURABLE_TASKS[{key!r}] is None: leave the key out for its default."
            )
        if value is not None and check is not None:
            check(key, value)
        values[key] = checked_seconds(key, value) if kind == "duration" else value
    result = Settings(**values)
    if result.HEARTBEAT * 2 > result.LEASE:
        raise InvalidSetting(
            f"DURABLE_TASKS['LEASE'] is {result.LEASE:g}: it must be at least 2 x HEARTBEAT."
        )
    return result


_YEAR = 31_536_000
_KEPT = {
    "SUCCESS": 604_800,
    "FAILED": 2_592_000,
    "CANCELLED": 604_800,
    "SKIPPED": 604_800,
    "EXPIRED": 604_800,
    "LEDGER": _YEAR,
    "AUDIT": _YEAR,
    "NOTIFICATIONS": 2_592_000,
    "METRICS": 172_800,
}
_NO_STATUSES = ("LEDGER", "AUDIT", "NOTIFICATIONS", "METRICS")
_BEFORE_ALL = datetime(1970, 1, 2, tzinfo=UTC)


def _retention() -> dict[str, float | None]:
    configured = settings().RETENTION or {}
    for key in configured:
        if key not in _KEPT:
            raise InvalidSetting(
                f"DURABLE_TASKS['RETENTION'] has no key {key!r}; it has: {', '.join(_KEPT)}."
            )
    return {
        key: checked_seconds(f"RETENTION[{key}]", kept)
        for key, kept in {**_KEPT, **configured}.items()
    }


def retention() -> dict[str, float | None]:
    """Return for each final status how long (seconds) its rows are kept; None keeps them
    indefinitely.
    """
    return {key: kept for key, kept in _retention().items() if key not in _NO_STATUSES}


def kept_from(key: str, now: datetime) -> datetime:
    """Return since when rows of this key of RETENTION that are no tasks are kept."""
    kept = _retention()[key]
    return _BEFORE_ALL if kept is None else now - timedelta(seconds=kept)


def unknown_task_delay() -> float:
    """Return the seconds after which a task is published again whose function a worker does not
    have, while another worker of its queue may have it: two of the waits for a lost message.
    """
    return min(30.0, 2 * settings().REPUBLISH_AFTER)


def republish_after_max() -> float:
    """Return the seconds up to which the wait between two messages of a task doubles if a broker
    cannot count its messages, or if other messages hide that all of a queue are lost.
    """
    return 20 * settings().REPUBLISH_AFTER


SKEW_MAX = 2.0
"""Seconds between the clock of a host and the database's, and of a step of the latter, above which
it is logged and ``durable status`` exits with 1. NTP keeps hosts within some milliseconds; a lease
of the leader of 4 s is safe with half of it.
"""


TENANT = "{tenant}"
"""Stands for the slug of a tenant in an entry of a list of what is allowed."""


def names_tenants(key: str) -> bool:
    """Return whether the entries of this list of what is allowed differ between tenants."""
    setting = getattr(settings(), key)
    return isinstance(setting, Mapping) or any(TENANT in entry for entry in setting)


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


def _forget(*, setting: str, **_: object) -> None:
    if setting == "DURABLE_TASKS":
        settings.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_durable_tasks.conf")

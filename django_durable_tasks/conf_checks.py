"""Checks of single settings in ``DURABLE_TASKS``; each raises InvalidSetting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured


class InvalidSetting(ImproperlyConfigured):
    """A key or value in settings.DURABLE_TASKS cannot be used."""


_SHORTEST_KEY = 32
_ENDLESS = 100 * 31_557_600  # the longest duration that every database can add to its current time


def checked_seconds(key: str, value: object) -> float | None:
    """Return a duration in seconds; None stays None."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _ENDLESS:
        raise InvalidSetting(
            f"DURABLE_TASKS[{key!r}] is {value!r}: give seconds > 0 or a timedelta."
        )
    return float(value)


def checked_value(key: str, kind: str, value: Any, default: object) -> Any:
    """Return the value of a key of this kind: a duration, a count or any value."""
    if value is None and default is not None:
        raise InvalidSetting(f"DURABLE_TASKS[{key!r}] is None: leave the key out for its default.")
    if kind == "duration":
        return checked_seconds(key, value)
    if (
        kind == "count"
        and value is not None
        and (isinstance(value, bool) or not isinstance(value, int) or value < 0)
    ):
        raise InvalidSetting(
            f"DURABLE_TASKS[{key!r}] is {value!r}: give a whole number of 0 or more."
        )
    return value


def check_http(allow: object, ports: object, keys: object) -> None:
    """Check the types of the settings of HTTP callbacks. The entries of HTTP_ALLOW are checked by
    their parser.
    """
    check_allowed("HTTP_ALLOW", allow, "hosts, host:port or networks")
    if not isinstance(ports, list | tuple) or not all(
        type(port) is int and 0 < port < 65_536 for port in ports
    ):
        raise InvalidSetting(f"DURABLE_TASKS['HTTP_PORTS'] is {ports!r}: give a list of ports.")
    if not isinstance(keys, list | tuple) or not all(
        isinstance(key, str) and len(key) >= _SHORTEST_KEY for key in keys
    ):
        # The keys are omitted from the text, because they are secret.
        raise InvalidSetting(
            "DURABLE_TASKS['HTTP_SIGNING_KEYS']: give a list of random strings of at least"
            f" {_SHORTEST_KEY} characters."
        )


def check_encryption(keys: object) -> None:
    """Check the type of ENCRYPTION_KEYS. The keyring checks the keys."""
    if isinstance(keys, str) and ":" not in keys:
        return
    if not isinstance(keys, list | tuple) or not all(isinstance(key, str) for key in keys):
        # The keys are omitted from the text, because they are secret.
        raise InvalidSetting(
            "DURABLE_TASKS['ENCRYPTION_KEYS']: give a list of 'ID:KEY' strings, or the dotted path"
            " of a function that returns it."
        )


def check_list_of_names(key: str, value: object, of: str = "names") -> None:
    """Check that a setting is a list of strings. ``of`` says for the error what they are."""
    if (
        not isinstance(value, Iterable)
        or isinstance(value, str | bytes | Mapping)
        or not all(isinstance(name, str) for name in value)
    ):
        raise InvalidSetting(f"DURABLE_TASKS[{key!r}] is {value!r}: give a list of {of}.")


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


def allowed_in(given: Any, slug: str | None) -> tuple[str, ...]:
    """Return the entries of such a setting for a tenant; None: those of all tenants together."""
    if not isinstance(given, Mapping):
        entries = tuple(given)
    elif slug is None:
        entries = tuple(entry for several in given.values() for entry in several)
    else:
        entries = (*given.get("*", ()), *(given.get(slug, ()) if slug != "*" else ()))
    return entries if slug is None else tuple(one.replace("{tenant}", slug) for one in entries)


def check_name_or_none(key: str, value: object) -> None:
    """Check that a setting is a non-empty text or None."""
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidSetting(f"DURABLE_TASKS[{key!r}]: give a non-empty text or None.")


def check_names(url: object, region: object) -> None:
    """Check that REDIS_URL is a URL and REGION a short name."""
    if url is not None and not (
        isinstance(url, str) and url.startswith(("redis://", "rediss://", "unix://"))
    ):
        raise InvalidSetting(
            "DURABLE_TASKS['REDIS_URL'] is no address of Redis: give redis://, rediss:// or"
            " unix://."
        )
    if isinstance(url, str):
        try:
            urlsplit(url).port  # noqa: B018 - it is read for its error
        except ValueError:
            # The text of the error is omitted, because it contains a part of the password.
            raise InvalidSetting(
                "DURABLE_TASKS['REDIS_URL'] cannot be read: spell / # ? and @ in its password as"
                " %2F %23 %3F and %40."
            ) from None
    if not isinstance(region, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{0,50}", region):
        raise InvalidSetting(
            f"DURABLE_TASKS['REGION'] is {region!r}: give up to 50 letters, digits, dots, hyphens"
            " or underscores."
        )


def check_schedules(schedules: object) -> None:
    """Check the schedules that settings declare."""
    if schedules is None:
        return
    if not isinstance(schedules, Mapping):
        raise InvalidSetting(
            f"DURABLE_TASKS['SCHEDULES'] is {schedules!r}: give a mapping of names to schedules."
        )
    for name, schedule in schedules.items():
        if not isinstance(schedule, Mapping) or not isinstance(schedule.get("task"), str):
            raise InvalidSetting(
                f"DURABLE_TASKS['SCHEDULES'][{name!r}] is {schedule!r}: give a mapping whose 'task'"
                " is the registered name of a durable task."
            )


def check_limits(limits: object) -> None:
    """Check the limits that settings declare."""
    if limits is not None and not isinstance(limits, Mapping):
        raise InvalidSetting(
            f"DURABLE_TASKS['LIMITS'] is {limits!r}: give a mapping of scopes to limits."
        )


def check_quotas(quotas: object) -> None:
    """Check that QUOTAS is a mapping. A system check reads its values."""
    if quotas is not None and not isinstance(quotas, Mapping):
        raise InvalidSetting(
            f"DURABLE_TASKS['QUOTAS'] is {quotas!r}: give a mapping of quotas to numbers."
        )


def check_task_defaults(defaults: object) -> None:
    """Check that TASK_DEFAULTS is a mapping."""
    if defaults is not None and not isinstance(defaults, Mapping):
        raise InvalidSetting(
            f"DURABLE_TASKS['TASK_DEFAULTS'] is {defaults!r}: give a mapping of options to values."
        )


def check_verify_cron(audit: object) -> None:
    """Check the cron expression of VERIFY_CRON."""
    if audit is not None and not isinstance(audit, str):
        raise InvalidSetting(
            f"DURABLE_TASKS['VERIFY_CRON'] is {audit!r}: give a cron text such as '40 3 * * *', or"
            " None."
        )

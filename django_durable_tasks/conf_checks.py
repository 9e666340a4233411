"""Checks of single settings in ``DURABLE_TASKS``; each raises InvalidSetting."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured


class InvalidSetting(ImproperlyConfigured):
    """A key or value in settings.DURABLE_TASKS cannot be used."""


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


def check_task_names(key: str, names: object) -> None:
    """Check that the setting is a list of names of tasks."""
    if not isinstance(names, list | tuple | set | frozenset) or not all(
        isinstance(name, str) for name in names
    ):
        raise InvalidSetting(f"DURABLE_TASKS[{key!r}] is {names!r}: give a list of names of tasks.")

"""The schedules of the recurring jobs: fifty schedules of every kind, each under its name.

By default a schedule is in TIME_ZONE, runs one missed fire when late, and skips a fire while a run
is open. They are listed in a table here; for a function with one schedule, `@recurring(...)` above
`@durable_task` is equivalent. `manage.py durable sync` writes them to the database. A repeated sync
applies the changes, and keeps an operator's pause.
"""

import io
import os
from collections.abc import Mapping
from typing import Any

from django.core.management import call_command

from billing.cadence import quick
from billing.jobs import closing, figures, housekeeping, letters, money
from django_durable_tasks import recurring
from django_durable_tasks.models import RecurringTask

CALENDARS = {"New York": "US-NY", "Berlin": "DE-BE", "Sydney": "AU-NSW", "TARGET": "XECB"}
"""Calendars by their country and subdivision, or their exchange."""

NEW_YORK = {"timezone": "America/New_York", "calendar": "New York"}
BERLIN = {"timezone": "Europe/Berlin", "calendar": "Berlin"}
LORD_HOWE = {"timezone": "Australia/Lord_Howe", "calendar": "Sydney"}
BANK = {"timezone": "Europe/Berlin", "calendar": "TARGET"}
MONDAYS = {"every": "week", "day": "monday", "time": "08:30"}
ROOF = {"New York": (40.71, -74.01), "Berlin": (52.52, 13.41)}


def _roof(site: str, event: str, **more: Any) -> dict[str, Any]:
    latitude, longitude = ROOF[site]
    place = {"solar": event, "latitude": latitude, "longitude": longitude}
    return {
        "task": figures.read_feed_in,
        "args": [f"{site}, {event}"],
        "overlap": "ALLOW",
        **place,
        **more,
    }


def _figure(name: str, period: str = "day", **when: Any) -> dict[str, Any]:
    return {"task": figures.take_figure, "args": [name, period], **when}


def _usage(plan: str, hour: int) -> dict[str, Any]:
    rule = f"FREQ=MONTHLY;BYMONTHDAY=1;BYHOUR={hour};BYMINUTE=0;BYSECOND=0"
    return {
        "task": figures.report_usage_of,
        "args": [plan],
        "rrule": rule,
        "catch_up_mode": "RUN_ALL_MISSED",
    }


def _close(period: str, **when: Any) -> dict[str, Any]:
    timing = {"every": period, "day": "last working", **when, **NEW_YORK}
    return {
        "task": figures.close_books,
        "args": [period],
        "catch_up_mode": "RUN_ALL_MISSED",
        **timing,
    }


def _forget(what: str, days: int, **when: Any) -> dict[str, Any]:
    return {
        "task": housekeeping.forget,
        "args": [what, days],
        "overlap": "QUEUE_ONE",
        "priority": 1,
        **when,
    }


MONEY: dict[str, dict[str, Any]] = {
    "renew-due": {"task": money.renew_due, "interval": 600, "overlap": "SKIP", "priority": 7},
    "charge-forgotten": {
        "task": money.charge_forgotten,
        "cron": "15 * * * *",
        "misfire_grace": 600,
    },
    "dun-gently": {
        "task": money.dun,
        "args": ["gentle", 3],
        "cron": "0 9 * * 1-5",
        **BERLIN,
        "roll": "FOLLOWING",
    },
    "dun-firmly": {
        "task": money.dun,
        "args": ["firm", 10],
        "cron": "30 9 * * 1-5",
        **BERLIN,
        "roll": "FOLLOWING",
    },
    "dun-last": {
        "task": money.dun,
        "args": ["last", 30],
        "cron": "0 10 * * 2",
        **BERLIN,
        "roll": "MODIFIED_FOLLOWING",
    },
    "rate-usd": {
        "task": money.fetch_rate,
        "args": ["USD"],
        "cron": "10 16 * * *",
        **BANK,
        "overlap": "QUEUE_ALL",
    },
    "rate-gbp": {
        "task": money.fetch_rate,
        "args": ["GBP"],
        "cron": "11 16 * * *",
        **BANK,
        "overlap": "QUEUE_ALL",
    },
    "rate-chf": {
        "task": money.fetch_rate,
        "args": ["CHF"],
        "cron": "12 16 * * *",
        **BANK,
        "overlap": "QUEUE_ALL",
    },
    "rate-aud": {
        "task": money.fetch_rate,
        "args": ["AUD"],
        "cron": "13 16 * * *",
        **BANK,
        "overlap": "QUEUE_ALL",
    },
    "match-charges": {
        "task": money.match_charges,
        "interval": 3600,
        "jitter": 120,
        "overlap": "REPLACE_PENDING",
    },
    "match-payments": {
        "task": money.match_payments,
        "interval": 3600,
        "jitter": "10%",
        "overlap": "REPLACE_PENDING",
    },
    "match-periods": {"task": money.match_periods, "cron": "H 3 * * *", "expires_in": 6 * 3600},
}
FIGURES: dict[str, dict[str, Any]] = {
    "count-customers": _figure(
        "customers", cron="@daily", catch_up_mode="RUN_ALL_MISSED", catchup_window=7 * 86_400
    ),
    "count-subscriptions": _figure("subscriptions", cron="5 0 * * *", timezone="America/New_York"),
    # At 02:30 one day lacks this hour and one has it twice: the schedule runs on both, once.
    "count-invoices-new-york": _figure(
        "open invoices", cron="30 2 * * *", timezone="America/New_York"
    ),
    "count-invoices-berlin": _figure(
        "open invoices", cron="30 2 * * *", timezone="Europe/Berlin", dst_overlap="LAST"
    ),
    "count-invoices-lord-howe": _figure(
        "open invoices", cron="15 2 * * *", timezone="Australia/Lord_Howe"
    ),
    "sum-overdue": _figure("overdue cents", "minute", interval=900, jitter="20%"),
    "sum-paid": _figure("paid cents", "minute", cron="*/20 8-18 * * MON-FRI", **NEW_YORK),
    "count-payments": _figure(
        "payments", "minute", rrule="FREQ=HOURLY;INTERVAL=2", catch_up_mode="SKIP_MISSED"
    ),
    "count-findings": _figure("findings", cron="0 7 * * 1-5", **LORD_HOWE, roll="PRECEDING"),
    "watch-waiting": _figure(
        "waiting tasks", "minute", interval=60, catch_up_mode="SKIP_MISSED", misfire_grace=20
    ),
    "watch-dead-letters": _figure(
        "dead letters", "minute", interval=300, catch_up_mode="SKIP_MISSED"
    ),
    "close-month": {**_close("month", time="18:00"), "task": closing.close_month, "args": []},
    "close-quarter": _close("quarter", time="19:00"),
    "close-year": _close("year", time="20:00", month=12),
    "usage-basic": _usage("Basic", hour=4),
    "usage-team": _usage("Team", hour=5),
    "usage-business": _usage("Business", hour=6),
    "feed-in-noon-berlin": _roof("Berlin", "solar_noon"),
    "feed-in-sunset-berlin": _roof("Berlin", "sunset", offset=-600),
    "feed-in-sunset-new-york": _roof("New York", "sunset", offset=-600),
    "gaps-customers": {
        "task": figures.look_for_gaps,
        "args": ["customers"],
        "cron": "0 6 * * *",
        "jitter": 900,
    },
    "gaps-payments": {
        "task": figures.look_for_gaps,
        "args": ["payments"],
        "cron": "0 6 * * *",
        "jitter": 900,
    },
}
LETTERS: dict[str, dict[str, Any]] = {
    "figures-to-new-york": {
        "task": letters.send_figures,
        "args": ["New York"],
        "cron": "0 8 * * *",
        **NEW_YORK,
    },
    "figures-to-berlin": {
        "task": letters.send_figures,
        "args": ["Berlin"],
        "cron": "0 8 * * *",
        **BERLIN,
    },
    "figures-to-lord-howe": {
        "task": letters.send_figures,
        "args": ["Lord Howe"],
        "cron": "0 8 * * *",
        **LORD_HOWE,
    },
    "findings": {
        "task": letters.send_findings,
        "cron": ["0 9 * * 1-5", "0 15 * * 5"],
        **BERLIN,
        "roll": "FOLLOWING",
    },
    "dead-letters": {"task": letters.send_open_dead_letters, "interval": 1800, "overlap": "SKIP"},
    "renewals-in-a-week": {
        "task": letters.announce_renewals,
        "args": [7],
        "cron": "0 11 * * *",
        "expires_in": 40_000,
    },
    "renewals-tomorrow": {
        "task": letters.announce_renewals,
        "args": [1],
        "cron": "0 11 * * *",
        "expires_in": 40_000,
    },
    "events-of-the-week": {
        "task": letters.send_events,
        "args": [7],
        **MONDAYS,
        **BERLIN,
        "roll": "FOLLOWING",
    },
}
HOUSEKEEPING: dict[str, dict[str, Any]] = {
    "forget-sessions": {
        "task": housekeeping.forget_sessions,
        "cron": "H H * * *",
        "overlap": "SKIP",
    },
    "forget-mails": {
        "task": housekeeping.forget_mails,
        "args": [30],
        "cron": "H H(1-4) * * *",
        "overlap": "SKIP",
    },
    "forget-events": _forget("events", 365, cron="0 2 L * ?"),
    "forget-figures": _forget(
        "figures", 730, rrule="FREQ=MONTHLY;BYDAY=-1SU;BYHOUR=2;BYMINUTE=0;BYSECOND=0"
    ),
    "forget-posts": _forget(
        "posts", 3_650, every="year", month=1, day="first sunday", time="03:00"
    ),
    "publish-forgotten": {
        "task": housekeeping.publish_forgotten,
        "interval": 300,
        "overlap": "SKIP",
    },
    "rehearse-restore": {
        "task": housekeeping.rehearse_restore,
        "cron": "0 5 * * 6#1",
        "overlap": "QUEUE_ONE",
    },
    "verify-archive": {
        "task": housekeeping.verify_archive,
        "interval": 7_200,
        "overlap": "CANCEL_RUNNING",
    },
}
SCHEDULES: Mapping[str, dict[str, Any]] = {**MONEY, **FIGURES, **LETTERS, **HOUSEKEEPING}

for _name, _given in (
    quick(SCHEDULES) if os.environ.get("BILLING_CADENCE") == "quick" else SCHEDULES
).items():
    recurring(_name, **{option: value for option, value in _given.items() if option != "task"})(
        _given["task"]
    )


def _durable(*words: str) -> None:
    call_command("durable", *words, stdout=io.StringIO())


def sync() -> list[RecurringTask]:
    """Import the holidays of this year and the next, and sync the schedules."""
    for name, place in CALENDARS.items():
        _durable("calendars", "import", f"holidays:{place}", "--name", name, "--years", "2")
    _durable("sync")
    return list(RecurringTask.objects.filter(name__in=SCHEDULES))

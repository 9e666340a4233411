"""The fifty jobs with the intervals of the demo: each fires every two to seven seconds instead of
every hour or month.

A cron remains a cron and a rule a rule, in its zone. Schedules without seconds (sun, last working
day) become intervals. Calendars are omitted, because a demo may run on a holiday. All other options
remain as declared.
"""

from collections.abc import Mapping
from typing import Any

PACES = (2, 7, 5, 7, 6, 3, 7, 5, 4, 6)
# The minimum: a run that waits for the previous one is released by a job of the leader, once per
# second.
QUEUING = 5
_WHEN = frozenset(
    {
        "cron",
        "rrule",
        "interval",
        "every",
        "count",
        "day",
        "month",
        "time",
        "solar",
        "latitude",
        "longitude",
        "offset",
        "calendar",
        "roll",
    }
)
_GENTLY: dict[str, dict[str, Any]] = {"renew-due": {"kwargs": {"most": 1}}}


def quick(schedules: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the schedules with short intervals."""
    return {
        name: {key: value for key, value in given.items() if key not in _WHEN}
        | _timing(
            given,
            max(PACES[number % len(PACES)], QUEUING if given.get("overlap") == "QUEUE_ALL" else 0),
        )
        | _GENTLY.get(name, {})
        for number, (name, given) in enumerate(schedules.items())
    }


def _timing(given: Mapping[str, Any], seconds: int) -> dict[str, Any]:
    if "cron" in given:
        return {"cron": f"*/{seconds} * * * * *", "seconds": "FIRST"}
    if "rrule" in given:
        return {"rrule": f"FREQ=SECONDLY;INTERVAL={seconds}"}
    return {"interval": seconds}

"""``durable shadow``: compares the fires that this package would have created with those of
django-celery-beat, before the switch.
"""

from __future__ import annotations

import dataclasses
import threading
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django_durable_tasks.contrib.beat import shadow_fires, tables
from django_durable_tasks.contrib.beat.shadow_fires import Shadow
from django_durable_tasks.contrib.beat.tables import NoBeatTables
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.management.durable.output import Output, cell, table
from django_durable_tasks.management.durable.schedule_arguments import moment
from django_durable_tasks.management.durable.selectors import count
from django_durable_tasks.management.durable.subcommand import (
    OK,
    UNHEALTHY,
    Options,
    Subcommand,
    refuse,
)

_SHOWN = ("name", "matched", "only_here", "only_beat", "lag_median", "lag_most", "remark")
_LISTED = 5


def shadow(options: Options, out: Output) -> int:
    """Compare a range once, or repeatedly until it is interrupted."""
    tolerance = timedelta(seconds=options["tolerance"])
    end = options["to"] or database_now() - tolerance
    if options["watch"]:
        return _watch(options, out, end, tolerance)
    start = options["from"] or shadow_fires.recorded_since()
    if start is None:
        refuse(
            "No fires of Celery beat were recorded: call listener.listen() in the settings of"
            " the process that runs it."
        )
    if start > end:
        refuse(
            f"--from {start.isoformat()} is after the end, {end.isoformat()} (now less the"
            " tolerance)."
        )
    found = _compared(options, start, end, tolerance)
    out.emit(
        {
            "from": start,
            "to": end,
            "tolerance": options["tolerance"],
            "schedules": [_data(one) for one in found],
        },
        _text(found, options["all"]),
    )
    return UNHEALTHY if any(one.differs for one in found) else OK


def _compared(
    options: Options, start: datetime, end: datetime, tolerance: timedelta
) -> list[Shadow]:
    return shadow_fires.compare(
        start, end, tolerance, names=options["name"] or (), live=_live(options["database"])
    )


def _live(database: str) -> list[str] | None:
    """Return the names that are enabled in django-celery-beat; None if its tables do not exist."""
    try:
        return [row.name for row in tables.rows(database) if row.enabled]
    except NoBeatTables:
        return None


def _watch(options: Options, out: Output, start: datetime, tolerance: timedelta) -> int:
    out.note(f"Comparing every {options['every']} s; stop it with Ctrl-C.")
    differed = False
    try:
        while True:
            _wait(options["every"])
            end = database_now() - tolerance
            for one in _compared(options, start + timedelta(microseconds=1), end, tolerance):
                if one.differs:
                    differed = True
                    out.emit(_data(one), _line(one))
            start = end
    except KeyboardInterrupt:
        return UNHEALTHY if differed else OK


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


# Output -------------------------------------------------------------------------------------------


def _data(found: Shadow) -> dict[str, Any]:
    return {**dataclasses.asdict(found), "differs": found.differs}


def _text(found: Sequence[Shadow], everything: bool) -> str:
    shown = [one for one in found if everything or one.differs]
    rows = [
        {
            **dataclasses.asdict(one),
            "only_here": len(one.only_here),
            "only_beat": len(one.only_beat),
        }
        for one in shown
    ]
    head = f"{len(found)} schedules compared, {sum(one.differs for one in found)} differ"
    return "\n".join(
        [
            head,
            *([table(_SHOWN, rows)] if rows else []),
            *(_line(one) for one in shown if one.differs),
        ]
    )


def _line(found: Shadow) -> str:
    sentences = [
        f"{who} alone: {_some(times)}"
        for who, times in (("here", found.only_here), ("beat", found.only_beat))
        if times
    ]
    return f"{found.name}: {'; '.join([*sentences, *([found.remark] if found.remark else [])])}"


def _some(times: Sequence[datetime]) -> str:
    more = f" and {len(times) - _LISTED} more" if len(times) > _LISTED else ""
    return ", ".join(map(cell, times[:_LISTED])) + more


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--from", type=moment, metavar="INSTANT", help="ISO 8601 (default: the first recorded fire)"
    )
    parser.add_argument(
        "--to", type=moment, metavar="INSTANT", help="ISO 8601 (default: now, less the tolerance)"
    )
    parser.add_argument(
        "--name", action="append", metavar="NAME", help="only this schedule; may be given often"
    )
    parser.add_argument(
        "--tolerance",
        type=count,
        default=30,
        metavar="SECONDS",
        help="how far apart two fires are one",
    )
    parser.add_argument("--all", action="store_true", help="show schedules that do not differ, too")
    parser.add_argument(
        "--watch",
        action="store_true",
        help="keep running and print each difference when it is found",
    )
    parser.add_argument(
        "--every", type=count, default=60, metavar="SECONDS", help="how often --watch looks"
    )
    parser.add_argument(
        "--database",
        metavar="ALIAS",
        default="default",
        help="where beat's tables are (default: default)",
    )


SHADOW = Subcommand(
    name="shadow",
    summary="compare what beat fired with what would have fired here, paused schedules included",
    examples=(
        "shadow",
        "shadow --from 2026-11-20T00:00:00Z --to 2026-11-21T00:00:00Z --all",
        "shadow --name nightly-report --tolerance 5 --format json",
        "shadow --watch --every 60",
    ),
    arguments=_arguments,
    run=shadow,
)

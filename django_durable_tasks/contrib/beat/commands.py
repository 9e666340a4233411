"""``durable import-beat`` and ``durable shadow``: move from django-celery-beat."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django_durable_tasks import conf, registry
from django_durable_tasks.audit import ENCRYPTED
from django_durable_tasks.celery import inspect
from django_durable_tasks.celery.prepared_messages import queue_at
from django_durable_tasks.choices import RecurringStatus
from django_durable_tasks.command import subcommand as cli
from django_durable_tasks.command.schedules import load_declarations
from django_durable_tasks.contrib.beat import compare, periodic_tasks
from django_durable_tasks.contrib.beat.compare import Shadow
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.models.fields import undecrypted
from django_durable_tasks.registry import PLAIN_CELERY_TASK
from django_durable_tasks.schedules.options import columns
from django_durable_tasks.schedules.schedule_cache import agenda_from
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.texts import counted

IMPORT, CHANGE, RESUME, SAME = "IMPORT", "CHANGE", "RESUME", "SAME"
LISTED, OURS, OVER, REFUSE = "NOT_DURABLE", "OURS", "OVER", "REFUSE"
_WRITTEN = (IMPORT, CHANGE, RESUME, SAME)
"""What an import does with a row of beat: create the schedule, change it, end its pause, or find it
as it is.
"""
_IMPORT_COLUMNS = ("name", "task", "act", "begins", "next_here", "next_in_beat")


@dataclass(slots=True)
class BeatImportRow:
    """One row of django-celery-beat: what the import does with it, and which differences it has."""

    name: str
    task: str
    act: str
    reason: str = ""
    carried: bool = False
    begins: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    here: list[datetime] = field(default_factory=list)
    beat: list[datetime] | None = field(default_factory=list)
    differences: tuple[str, ...] = ()


_database = cli.argument(
    "--database",
    metavar="ALIAS",
    default="default",
    help="where beat's tables are (default: default)",
)


@cli.subcommand(
    cli.argument(
        "--only",
        action="append",
        metavar="NAME",
        help="only this periodic task; may be given often",
    ),
    cli.argument(
        "--carry",
        action="store_true",
        help="also rows whose task is no durable task: send its message",
    ),
    cli.argument(
        "--paused",
        action="store_true",
        help="new rows begin paused, to be compared with beat first",
    ),
    cli.argument(
        "--disable-in-beat",
        action="store_true",
        help="switch off in beat what fires here from now on",
    ),
    cli.argument(
        "--settings",
        dest="of_settings",
        action="store_true",
        help="read CELERY_BEAT_SCHEDULE and add_periodic_task() instead of beat's tables",
    ),
    cli.argument(
        "--print",
        dest="as_settings",
        action="store_true",
        help="with --settings: print DURABLE_TASKS['SCHEDULES'] and import nothing",
    ),
    _database,
    operations=(periodic_tasks.take_over,),
)
def import_beat(options: cli.Options, out: cli.Output) -> int:
    """Compare the fire times of each row of django-celery-beat, or of each entry of
    CELERY_BEAT_SCHEDULE, with those of its import, and import it.

    Examples:
        import-beat --dry-run
        import-beat --settings --dry-run
        import-beat --settings --print
        import-beat --paused
        import-beat --only nightly-report --disable-in-beat
        import-beat --carry --format json
    """
    load_declarations()
    now, names = database_now(), options["only"] or []
    of_settings = options["of_settings"]
    if options["as_settings"] and not of_settings:
        cli.refuse("--print needs --settings.")
    if of_settings and options["disable_in_beat"]:
        cli.refuse(
            "--disable-in-beat cannot change settings: remove these entries from them instead."
        )
    beat_rows: Sequence[periodic_tasks.BeatRow | periodic_tasks.Unreadable]
    beat_rows = (
        periodic_tasks.entries(names)
        if of_settings
        else periodic_tasks.rows(options["database"], names)
    )
    missing = sorted(set(names) - {row.name for row in beat_rows})
    if missing:
        cli.refuse(f"beat has no periodic task {', '.join(map(repr, missing))}.")
    rows = [_judged(row, now, options) for row in beat_rows]
    if options["as_settings"]:
        declared = [
            (row.name, PLAIN_CELERY_TASK if row.carried else row.task, row.options)
            for row in rows
            if row.act in _WRITTEN
        ]
        shown = {name: {"task": task, **cli.hidden(keywords)} for name, task, keywords in declared}
        out.emit(shown, periodic_tasks.as_settings(declared))
        for row in rows:
            if row.act not in _WRITTEN:
                out.note(f"{row.name}: {row.act}: {row.reason}")
            for difference in row.differences:
                out.note(f"{row.name}: {difference}")
        return cli.REFUSED if any(row.act == REFUSE for row in rows) else cli.OK
    if not options["dry_run"]:
        for row in rows:
            if row.act in _WRITTEN:
                values = {
                    "task": PLAIN_CELERY_TASK if row.carried else row.task,
                    "options": row.options,
                    "hold": "" if row.begins == "ACTIVE" else row.begins,
                    "disable_in": options["database"] if options["disable_in_beat"] else None,
                }
                try:
                    schedule = cli.perform(
                        periodic_tasks.take_over, row.name, options, **values
                    ).value
                except DurableTasksError as refused:
                    row.act, row.reason = REFUSE, str(refused)
                else:
                    row.begins = schedule.status_reason or str(schedule.status)
    data = [
        {
            **dataclasses.asdict(row),
            "options": cli.hidden(row.options),
            "changes": cli.hidden(row.changes),
        }
        for row in rows
    ]
    listed, lines = [], []
    for row in rows:
        beat = "unknown" if row.beat is None else next(iter(row.beat), None)
        next_runs = {"next_here": next(iter(row.here), None), "next_in_beat": beat}
        listed.append({**dataclasses.asdict(row), **next_runs})
        if row.reason or row.changes or row.differences:
            lines.append(f"\n{row.name}")
        if row.reason:
            lines.append(f"  {row.act}: {row.reason}")
        lines += [
            f"  {CHANGE}: {column}: {old!r} -> {new!r}"
            for column, (old, new) in cli.hidden(row.changes).items()
        ]
        if of_settings and "timetable" in row.changes:
            lines.append(
                "  If this time is computed when the settings are imported, every import changes"
                " it: write a fixed time, as --print does."
            )
        if row.differences:
            theirs = "unknown" if row.beat is None else ", ".join(map(cli.cell, row.beat))
            lines += [f"  {difference}" for difference in row.differences]
            lines.append(f"  next here:    {', '.join(map(cli.cell, row.here))}")
            lines.append(f"  next in beat: {theirs}")
    text = cli.table(_IMPORT_COLUMNS, listed, "beat has no periodic tasks")
    out.emit(data, "\n".join([text, *lines]))
    gone = [] if names else periodic_tasks.fires_without({row.name for row in rows})
    if gone:
        number = counted(len(gone), "imported schedule is", "imported schedules are")
        out.note(f"{number} not in beat any more, and active here: {', '.join(gone)}.")
    not_durable = sorted(
        {row.task for row in rows if row.carried and row.act in (*_WRITTEN, LISTED)}
        - set(conf.settings().PLAIN_CELERY_TASKS)
    )
    if not_durable:
        allowed = sorted({*conf.settings().PLAIN_CELERY_TASKS, *not_durable})
        out.note("These Celery tasks are not durable tasks. To allow that they are sent:")
        out.note(f"DURABLE_TASKS['PLAIN_CELERY_TASKS'] = {allowed!r}")
    active = [row for row in rows if row.act in _WRITTEN and row.begins == "ACTIVE"]
    if active and not options["disable_in_beat"]:
        remedy = (
            "remove them from the settings"
            if of_settings
            else "switch them off there with --disable-in-beat"
        )
        out.note(
            f"{len(active)} of these fire here and in beat, as long as beat runs and has them: stop"
            f" it, {remedy}, or import them --paused and compare with `manage.py durable shadow`."
        )
    if options["dry_run"]:
        out.note("Nothing was imported (--dry-run).")
    return cli.REFUSED if any(row.act == REFUSE for row in rows) else cli.OK


def _judged(
    entry: periodic_tasks.BeatRow | periodic_tasks.Unreadable, now: datetime, options: cli.Options
) -> BeatImportRow:
    if isinstance(entry, periodic_tasks.Unreadable):
        return BeatImportRow(entry.name, entry.task, REFUSE, entry.reason)
    durable, before = registry.find(entry.task) is not None, periodic_tasks.known(entry.name)
    row = entry if options["of_settings"] else compare.seen_by_beat(entry)
    if durable and (row.exchange is not None or row.routing_key):
        # The queue to which its exchange and routing key lead, if there is one.
        queue = queue_at(row.exchange, row.routing_key or None)
        if queue is not None:
            row = dataclasses.replace(row, queue=queue, exchange=None, routing_key=None)
    result = BeatImportRow(row.name, row.task, IMPORT, carried=not durable)
    try:
        periodic_tasks.refuse_foreign(before)
        fields = None if row.crontab is None else compare.fields_of(row.crontab)
        on_redis = inspect.is_redis(inspect.read().transport)
        keywords, remarks = periodic_tasks.imported(
            row, now, fields, durable=durable, on_redis=on_redis
        )
        interval = keywords.get("interval") if options["of_settings"] else None
        if before is not None and interval is not None and interval == before.interval_seconds:
            # Settings have no last run: another import must not begin to count again.
            keywords["start_time"] = before.start_time
        values = {"start_time": now, **columns(row.name, keywords)}
        agenda = agenda_from(RecurringTask(name=row.name, **values), None)
        comparison = compare.compared(row, agenda, now)
    except DurableTasksError as refused:
        result.act = OVER if isinstance(refused, periodic_tasks.BeatRowOver) else REFUSE
        result.reason = str(refused)
        return result
    result.options, result.here, result.beat = keywords, comparison.here, comparison.beat
    result.differences = (*remarks, *comparison.differences)
    if not row.enabled:
        result.begins = periodic_tasks.DISABLED
    elif not durable and row.task not in conf.settings().PLAIN_CELERY_TASKS:
        result.begins = periodic_tasks.NOT_ALLOWED
    else:
        result.begins = periodic_tasks.IN_SHADOW if options["paused"] else "ACTIVE"
    if before is not None and not row.enabled:
        result.act, result.begins = OURS, str(before.status)
        result.reason = "it was imported and is switched off in beat"
    elif not durable and not options["carry"]:
        result.act = LISTED
        result.reason = "its task is no durable task; decorate it, or import it with --carry"
    elif before is not None:
        _compare_with_row(result, before, columns(row.name, keywords))
    return result


def _compare_with_row(
    result: BeatImportRow, before: RecurringTask, values: Mapping[str, Any]
) -> None:
    """Set what another import does with the row of an earlier one."""
    values = {**values, "task": PLAIN_CELERY_TASK if result.carried else result.task}
    for column, value in values.items():
        if undecrypted(before, column) != value:
            is_secret = before.encryption_key is not None and column in ("args", "kwargs")
            old, new = getattr(before, column), value
            result.changes[column] = (ENCRYPTED, ENCRYPTED) if is_secret else (old, new)
    is_held = before.status == RecurringStatus.PAUSED and before.status_reason in (
        periodic_tasks.HOLDS
    )
    resumes = is_held and result.begins == "ACTIVE"
    if not resumes:
        result.begins = before.status_reason or str(before.status)
    result.act = CHANGE if result.changes else RESUME if resumes else SAME


# ``durable shadow``: compares the fires that this package would have created with those of
# django-celery-beat, before the switch.


_SHADOW_COLUMNS = ("name", "matched", "only_here", "only_beat", "lag_median", "lag_most", "remark")
_LISTED = 5


@cli.subcommand(
    cli.argument(
        "--from",
        type=cli.moment,
        metavar="INSTANT",
        help="ISO 8601 (default: the first recorded fire)",
    ),
    cli.argument(
        "--to",
        type=cli.moment,
        metavar="INSTANT",
        help="ISO 8601 (default: now, less the tolerance)",
    ),
    cli.argument(
        "--name", action="append", metavar="NAME", help="only this schedule; may be given often"
    ),
    cli.argument(
        "--tolerance",
        type=cli.count,
        default=30,
        metavar="SECONDS",
        help="how far apart two fires are one",
    ),
    cli.argument("--all", action="store_true", help="show schedules that do not differ, too"),
    cli.argument(
        "--watch",
        action="store_true",
        help="keep running and print each difference when it is found",
    ),
    cli.argument(
        "--every", type=cli.count, default=60, metavar="SECONDS", help="how often --watch looks"
    ),
    _database,
)
def shadow(options: cli.Options, out: cli.Output) -> int:
    """Compare what beat fired with what would have fired here, paused schedules included.

    Examples:
        shadow
        shadow --from 2026-11-20T00:00:00Z --to 2026-11-21T00:00:00Z --all
        shadow --name nightly-report --tolerance 5 --format json
        shadow --watch --every 60
    """
    tolerance = timedelta(seconds=options["tolerance"])
    end = options["to"] or database_now() - tolerance
    if options["watch"]:
        return _watch(options, out, end, tolerance)
    start = options["from"] or compare.recorded_since()
    if start is None:
        cli.refuse(
            "No fires of Celery beat were recorded: call listener.listen() in the settings of"
            " the process that runs it."
        )
    if start > end:
        cli.refuse(
            f"--from {start.isoformat()} is after the end, {end.isoformat()} (now less the"
            " tolerance)."
        )
    shadows = _compared_fires(options, start, end, tolerance)
    data = {"from": start, "to": end, "tolerance": options["tolerance"]}
    data["schedules"] = [_data_of_shadow(shadow) for shadow in shadows]
    shown = [shadow for shadow in shadows if options["all"] or shadow.differs]
    rows = [
        {
            **dataclasses.asdict(shadow),
            "only_here": len(shadow.only_here),
            "only_beat": len(shadow.only_beat),
        }
        for shadow in shown
    ]
    differing = [shadow for shadow in shown if shadow.differs]
    lines = [f"{len(shadows)} schedules compared, {len(differing)} differ"]
    if rows:
        lines.append(cli.table(_SHADOW_COLUMNS, rows))
    out.emit(data, "\n".join([*lines, *map(_line, differing)]))
    return cli.UNHEALTHY if differing else cli.OK


def _compared_fires(
    options: cli.Options, start: datetime, end: datetime, tolerance: timedelta
) -> list[Shadow]:
    """Return the comparison with the names that are enabled in django-celery-beat, if its tables
    exist.
    """
    live: list[str] | None = None
    with suppress(periodic_tasks.NoBeatTables):
        live = [row.name for row in periodic_tasks.rows(options["database"]) if row.enabled]
    return compare.shadows(start, end, tolerance, names=options["name"] or (), live=live)


def _watch(options: cli.Options, out: cli.Output, start: datetime, tolerance: timedelta) -> int:
    out.note(f"Comparing every {options['every']} s; stop it with Ctrl-C.")
    differed = False
    try:
        while True:
            _wait(options["every"])
            end = database_now() - tolerance
            for comparison in _compared_fires(
                options, start + timedelta(microseconds=1), end, tolerance
            ):
                if comparison.differs:
                    differed = True
                    out.emit(_data_of_shadow(comparison), _line(comparison))
            start = end
    except KeyboardInterrupt:
        return cli.UNHEALTHY if differed else cli.OK


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def _data_of_shadow(comparison: Shadow) -> dict[str, Any]:
    return {**dataclasses.asdict(comparison), "differs": comparison.differs}


def _line(comparison: Shadow) -> str:
    sentences = [
        f"{who} alone: {_some(times)}"
        for who, times in (("here", comparison.only_here), ("beat", comparison.only_beat))
        if times
    ]
    if comparison.remark:
        sentences.append(comparison.remark)
    return f"{comparison.name}: {'; '.join(sentences)}"


def _some(times: Sequence[datetime]) -> str:
    more = f" and {len(times) - _LISTED} more" if len(times) > _LISTED else ""
    return ", ".join(map(cli.cell, times[:_LISTED])) + more

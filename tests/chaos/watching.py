"""Tables and triggers of PostgreSQL for tests only, which record the history, and functions that
read it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.db import connection

from django_durable_tasks.models import (
    DeadLetter,
    OccurrenceRecord,
    Task,
    TaskDependency,
    TaskExecutionLog,
)
from django_durable_tasks.registry import HTTP_CALLBACK_TASK, NOTIFICATION_TASK
from tests.chaos import bodies
from tests.chaos.records import (
    Calm,
    Change,
    CreationCount,
    Edge,
    Enqueued,
    Fire,
    History,
    Log,
    Mark,
    Row,
    Term,
    Timetable,
)

_HISTORY = "task, old_status, new_status, old_epoch, new_epoch, attempt, run_id, due, at"
_TABLES = {
    "postgresql": """
CREATE TABLE chaos_effect (task uuid NOT NULL);
CREATE TABLE chaos_item (task uuid NOT NULL, item integer NOT NULL);
CREATE TABLE chaos_history (
    seq bigserial PRIMARY KEY, at float8 NOT NULL, task uuid NOT NULL, old_status text,
    new_status text, old_epoch bigint, new_epoch bigint, attempt integer, run_id uuid, due float8);
CREATE TABLE chaos_term (
    seq bigserial PRIMARY KEY, at float8 NOT NULL, office text NOT NULL, term bigint NOT NULL,
    holder uuid, expires float8 NOT NULL);
CREATE TABLE chaos_creations (
    seq bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    minute timestamptz NOT NULL, queue text NOT NULL, name text NOT NULL, number bigint NOT NULL);
""",
    "mysql": """
CREATE TABLE chaos_effect (task uuid NOT NULL);
CREATE TABLE chaos_item (task uuid NOT NULL, item integer NOT NULL);
CREATE TABLE chaos_history (
    seq bigint AUTO_INCREMENT PRIMARY KEY, at double NOT NULL, task uuid NOT NULL,
    old_status varchar(9), new_status varchar(9), old_epoch bigint, new_epoch bigint,
    attempt integer, run_id uuid, due double);
CREATE TABLE chaos_term (
    seq bigint AUTO_INCREMENT PRIMARY KEY, at double NOT NULL, office varchar(100) NOT NULL,
    term bigint NOT NULL, holder uuid, expires double NOT NULL);
""",
    "sqlite": """
CREATE TABLE chaos_effect (task text NOT NULL);
CREATE TABLE chaos_item (task text NOT NULL, item integer NOT NULL);
CREATE TABLE chaos_history (
    seq integer PRIMARY KEY, at real NOT NULL, task text NOT NULL, old_status text,
    new_status text, old_epoch integer, new_epoch integer, attempt integer, run_id text, due real);
CREATE TABLE chaos_term (
    seq integer PRIMARY KEY, at real NOT NULL, office text NOT NULL, term integer NOT NULL,
    holder text, expires real NOT NULL);
""",
}
_NOW = {
    "postgresql": "extract(epoch FROM clock_timestamp())::float8",
    "mysql": "UNIX_TIMESTAMP(SYSDATE(6))",
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
}
_SECONDS = {
    "postgresql": "extract(epoch FROM {})::float8",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {}) / 1e6",
    "sqlite": "((julianday({}) - 2440587.5) * 86400.0)",
}
"""Unix times by the database's clock, which a trigger reads when it is executed."""
_PARKED = "CASE WHEN NEW.waiting_for_limit IS NULL THEN {} END"
"""A task that waits for a limit has no time at which it is due."""
_DIFFERS = {
    "mysql": (
        "NOT (OLD.status <=> NEW.status AND OLD.epoch <=> NEW.epoch AND OLD.attempts <=>"
        " NEW.attempts)"
    ),
    "sqlite": (
        "OLD.status IS NOT NEW.status OR OLD.epoch IS NOT NEW.epoch OR OLD.attempts IS NOT"
        " NEW.attempts"
    ),
}
_CHANGED = (
    "NEW.id, OLD.status, NEW.status, OLD.epoch, NEW.epoch, NEW.attempts, COALESCE(NEW.run_id,"
    " OLD.run_id), {due}, {now}"
)
_CREATED = "NEW.id, NULL, NEW.status, NEW.epoch, NEW.epoch, NEW.attempts, NEW.run_id, {due}, {now}"
_DELETED = "OLD.id, OLD.status, NULL, OLD.epoch, OLD.epoch, OLD.attempts, OLD.run_id, NULL, {now}"
_EVENTS = (("INSERT", _CREATED), ("UPDATE", _CHANGED), ("DELETE", _DELETED))


def _statements(vendor: str) -> Iterator[str]:
    """Yield the statements that create the tables and the triggers of a database."""
    yield from filter(None, map(str.strip, _TABLES[vendor].split(";")))
    now, seconds = _NOW[vendor], _SECONDS[vendor]
    due = _PARKED.format(seconds.format("NEW.due_at"))
    for event, values in _EVENTS:
        insert = (
            f"INSERT INTO chaos_history ({_HISTORY}) VALUES ({values.format(due=due, now=now)})"
        )
        yield from _trigger(vendor, "durable_tasks_task", event, insert)
    term = (
        "INSERT INTO chaos_term (office, term, holder, expires, at) VALUES (NEW.name, NEW.term,"
        f" NEW.holder, {seconds.format('NEW.expires_at')}, {now})"
    )
    yield from _trigger(vendor, "durable_tasks_scheduler_lease", "UPDATE", term)
    if vendor == "postgresql":
        yield _CREATIONS


def _trigger(vendor: str, table: str, event: str, insert: str) -> Iterator[str]:
    name = f"chaos_{event}_{table}"
    head = f"CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW"
    changes = table == "durable_tasks_task" and event == "UPDATE"
    if vendor == "postgresql":
        yield (
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {insert};"
            " RETURN NULL; END $$"
        )
        different = (
            "WHEN ((OLD.status, OLD.epoch, OLD.attempts) IS DISTINCT FROM (NEW.status, NEW.epoch,"
            " NEW.attempts))"
        )
        yield f"{head} {different if changes else ''} EXECUTE FUNCTION {name}()"
    elif vendor == "mysql":
        condition = f"IF {_DIFFERS[vendor]} THEN {insert}; END IF" if changes else insert
        yield f"{head} BEGIN {condition}; END"
    else:
        condition = f"WHEN {_DIFFERS[vendor]}" if changes else ""
        yield f"{head} {condition} BEGIN {insert}; END"


_CREATIONS = """
CREATE FUNCTION chaos_note_creations() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_creations (minute, queue, name, number)
    SELECT NEW.minute, NEW.queue, NEW.name, NEW.number
     WHERE NEW.span = 1 AND NEW.kind = 'CREATED';
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note_creations AFTER INSERT OR UPDATE ON durable_tasks_metric_minute
FOR EACH ROW EXECUTE FUNCTION chaos_note_creations();
"""


def install() -> None:
    """Create the tables and the triggers. The load may begin after that."""
    with connection.cursor() as cursor:
        for sql in _statements(connection.vendor):
            cursor.execute(sql)


def remove() -> None:
    """Remove the tables and the triggers."""
    vendor, name = connection.vendor, "chaos_{}_{}"
    triggers = [("durable_tasks_task", event) for event, _ in _EVENTS]
    triggers.append(("durable_tasks_scheduler_lease", "UPDATE"))
    with connection.cursor() as cursor:
        for table, event in triggers:
            trigger = name.format(event, table)
            if vendor == "postgresql":
                cursor.execute(f"DROP FUNCTION {trigger}() CASCADE")
            else:
                cursor.execute(f"DROP TRIGGER {trigger}")
        if vendor == "postgresql":
            cursor.execute("DROP FUNCTION chaos_note_creations() CASCADE")
            cursor.execute("DROP TABLE chaos_creations")
        for table in ("chaos_effect", "chaos_item", "chaos_history", "chaos_term"):
            cursor.execute(f"DROP TABLE {table}")


def read(ledger: Path, enqueued: Path, timetables: tuple[Timetable, ...], calm: Calm) -> History:
    """Read everything back but what concerns the receiver and the metrics."""
    return History(
        enqueued=tuple(
            Enqueued(line["task"], line["kind"]) for line in lines(enqueued) if "task" in line
        ),
        marks=tuple(_marks(ledger)),
        changes=tuple(changes()),
        rows={row.task: row for row in _rows()},
        logs=tuple(_logs()),
        open_letters=tuple(map(str, DeadLetter.objects.open().values_list("open_task", flat=True))),
        effects=tuple(_uuid(task) for (task,) in _asked("SELECT task FROM chaos_effect")),
        items=tuple(
            (_uuid(task), int(item)) for task, item in _asked("SELECT task, item FROM chaos_item")
        ),
        edges=tuple(_edges()),
        terms=tuple(
            Term(term, _uuid(holder), expires, at, office)
            for term, holder, expires, at, office in _asked(
                "SELECT term, holder, expires, at, office FROM chaos_term ORDER BY seq"
            )
        ),
        fires=tuple(_fires()),
        timetables=timetables,
        calm=calm,
    )


def lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a JSON file. The last one may have been truncated by a kill."""
    for text in file.read_text().splitlines() if file.exists() else ():
        try:
            yield json.loads(text)
        except ValueError:
            continue


def _asked(sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def _marks(ledger: Path) -> Iterator[Mark]:
    for line in lines(ledger):
        begins = line["what"] == "begin"
        yield Mark(
            line["task"],
            line["attempt"],
            line["run"],
            begins,
            line["at"],
            line.get("good", True),
            group=line.get("group", 0),
        )


def changes() -> Iterator[Change]:
    """Yield the recorded changes of tasks in chronological order."""
    found = _asked(f"SELECT {_HISTORY} FROM chaos_history ORDER BY seq")
    for task, old, new, old_epoch, new_epoch, attempt, run, due, at in found:
        run_id = _uuid(run) if run else None
        yield Change(
            _uuid(task), old, new, old_epoch, new_epoch, attempt, run_id, float(at), _float(due)
        )


def _uuid(value: Any) -> str:
    """Return an id in its usual form. SQLite stores it without hyphens."""
    return str(value if isinstance(value, uuid.UUID) else uuid.UUID(value)) if value else ""


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _rows() -> Iterator[Row]:
    names = (
        "id",
        "status",
        "attempts",
        "failures",
        "crashes",
        "max_attempts",
        "max_crashes",
        "reason",
        "name",
        "queue",
    )
    for row in Task.objects.order_by().values(*names):
        task, name = str(row.pop("id")), row["name"]
        yield Row(
            task,
            **row,
            atomic=name == bodies.take_effect.name,
            items=bodies.ITEMS if name == bodies.iterate.name else 0,
            in_batch=name in (bodies.work_in_batches.name, bodies.stumble_in_batches.name),
            batched=name == bodies.work_in_batches.name,
            is_callback=name == HTTP_CALLBACK_TASK,
            marked=name not in (HTTP_CALLBACK_TASK, NOTIFICATION_TASK),
            minute=int(uuid.UUID(task).int >> 80) // 60_000 * 60.0,
        )


def _logs() -> Iterator[Log]:
    names = ("task_id", "attempt_number", "status", "run_id", "completed_at", "error_message")
    found = TaskExecutionLog.objects.order_by("id").values_list(*names)
    for task, attempt, status, run, at, error in found:
        ended = at.timestamp() if at else 0.0
        yield Log(str(task), attempt, status, str(run) if run else None, ended, error)


def _edges() -> Iterator[Edge]:
    names = ("depends_on_id", "task_id", "dependency_type")
    for parent, child, kind in TaskDependency.objects.exclude(depends_on=None).values_list(*names):
        yield Edge(str(parent), str(child), kind)


def _fires() -> Iterator[Fire]:
    names = ("recurring_task_id", "fire_time", "task_id", "term", "created_at", "outcome", "count")
    found = OccurrenceRecord.objects.order_by("id").values_list(*names)
    for schedule, due, task, term, at, outcome, number in found:
        fired = str(task) if task else None
        yield Fire(str(schedule), due.timestamp(), fired, term, at.timestamp(), outcome, number)


def creation_counts() -> tuple[CreationCount, ...]:
    """Return what was written to the metrics about created tasks."""
    found = _asked(
        "SELECT extract(epoch FROM at)::float8, extract(epoch FROM minute)::float8, queue, name,"
        " number FROM chaos_creations ORDER BY seq"
    )
    return tuple(CreationCount(*one) for one in found)

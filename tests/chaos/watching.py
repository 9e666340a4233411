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
from django_durable_tasks.rules.notifications.events import NOTIFICATION_TASK
from django_durable_tasks.rules.target_types import HTTP_CALLBACK_TASK
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

_TABLES = """
CREATE TABLE chaos_effect (task uuid NOT NULL);
CREATE TABLE chaos_history (
    seq bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(), task uuid NOT NULL,
    old_status text, new_status text, old_epoch bigint, new_epoch bigint, attempt integer, run_id uuid);
CREATE TABLE chaos_term (
    seq bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(), office text NOT NULL,
    term bigint NOT NULL, holder uuid, expires_at timestamptz NOT NULL);
CREATE TABLE chaos_creations (
    seq bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    minute timestamptz NOT NULL, queue text NOT NULL, name text NOT NULL, number bigint NOT NULL);
"""
_TASKS = """
CREATE FUNCTION chaos_note_task() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO chaos_history (task, new_status, old_epoch, new_epoch, attempt, run_id)
        VALUES (NEW.id, NEW.status, NEW.epoch, NEW.epoch, NEW.attempts, NEW.run_id);
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO chaos_history (task, old_status, old_epoch, new_epoch, attempt, run_id)
        VALUES (OLD.id, OLD.status, OLD.epoch, OLD.epoch, OLD.attempts, OLD.run_id);
    ELSIF (OLD.status, OLD.epoch, OLD.attempts) IS DISTINCT FROM (NEW.status, NEW.epoch, NEW.attempts) THEN
        INSERT INTO chaos_history (task, old_status, new_status, old_epoch, new_epoch, attempt, run_id)
        VALUES (NEW.id, OLD.status, NEW.status, OLD.epoch, NEW.epoch, NEW.attempts, COALESCE(NEW.run_id, OLD.run_id));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note_task AFTER INSERT OR UPDATE OR DELETE ON durable_tasks_task
FOR EACH ROW EXECUTE FUNCTION chaos_note_task();
"""
_TERMS = """
CREATE FUNCTION chaos_note_term() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_term (office, term, holder, expires_at)
    VALUES (NEW.name, NEW.term, NEW.holder, NEW.expires_at);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note_term AFTER UPDATE ON durable_tasks_scheduler_lease
FOR EACH ROW EXECUTE FUNCTION chaos_note_term();
"""
_CREATIONS = """
CREATE FUNCTION chaos_note_creations() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_creations (minute, queue, name, number)
    SELECT NEW.minute, queue, name, NEW.number FROM durable_tasks_metric_series
     WHERE id = NEW.series_id AND kind = 'CREATED';
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note_creations AFTER INSERT OR UPDATE ON durable_tasks_metric_minute
FOR EACH ROW EXECUTE FUNCTION chaos_note_creations();
"""


def install() -> None:
    """Create the tables and the triggers. The load may begin after that."""
    with connection.cursor() as cursor:
        cursor.execute(_TABLES + _TASKS + _TERMS + _CREATIONS)


def read(ledger: Path, enqueued: Path, timetables: tuple[Timetable, ...], calm: Calm) -> History:
    """Read everything back but what concerns the receiver and the metrics."""
    return History(
        enqueued=tuple(
            Enqueued(line["task"], line["kind"]) for line in lines(enqueued) if "task" in line
        ),
        marks=tuple(_marks(ledger)),
        changes=tuple(_changes()),
        rows={row.task: row for row in _rows()},
        logs=tuple(_logs()),
        open_letters=tuple(map(str, DeadLetter.objects.open().values_list("open_task", flat=True))),
        effects=tuple(str(task) for (task,) in _asked("SELECT task FROM chaos_effect")),
        edges=tuple(_edges()),
        terms=tuple(
            Term(*found)
            for found in _asked(
                "SELECT term, holder::text, extract(epoch FROM expires_at)::float8, extract(epoch"
                " FROM at)::float8, office FROM chaos_term ORDER BY seq"
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
            line["task"], line["attempt"], line["run"], begins, line["at"], line.get("good", True)
        )


def _changes() -> Iterator[Change]:
    found = _asked(
        "SELECT task::text, old_status, new_status, old_epoch, new_epoch, attempt, run_id::text,"
        " extract(epoch FROM at)::float8 FROM chaos_history ORDER BY seq"
    )
    return (Change(*one) for one in found)


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
            batched=name == bodies.work_in_batches.name,
            is_callback=name == HTTP_CALLBACK_TASK,
            marked=name not in (HTTP_CALLBACK_TASK, NOTIFICATION_TASK),
            minute=int(uuid.UUID(task).int >> 80) // 60_000 * 60.0,
        )


def _logs() -> Iterator[Log]:
    names = ("task_id", "attempt_number", "status", "run_id")
    for task, attempt, status, run in TaskExecutionLog.objects.order_by("id").values_list(*names):
        yield Log(str(task), attempt, status, str(run) if run else None)


def _edges() -> Iterator[Edge]:
    names = ("depends_on_id", "task_id", "dependency_type")
    for parent, child, kind in TaskDependency.objects.exclude(depends_on=None).values_list(*names):
        yield Edge(str(parent), str(child), kind)


def _fires() -> Iterator[Fire]:
    names = (
        "recurring_task_id",
        "fire_time",
        "task_id",
        "term",
        "created_at",
        "outcome",
        "count",
    )
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

"""A history without violations, to be broken in one place at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from django_durable_tasks.registry import NOTIFICATION_TASK
from tests.chaos.records import (
    Change,
    CreationCount,
    CreationCounts,
    Edge,
    Enqueued,
    Fire,
    History,
    Log,
    Mark,
    Request,
    Row,
    Selection,
    Term,
    Timetable,
)


def _ran(task: str, run: str, at: float) -> tuple[Mark, Mark]:
    return Mark(task, 1, run, True, at), Mark(task, 1, run, False, at + 1)


def _path(task: str, run: str) -> tuple[Change, ...]:
    return (
        Change(task, None, "QUEUED", 0, 1),
        Change(task, "QUEUED", "RUNNING", 1, 2, 1, run),
        Change(task, "RUNNING", "SUCCESS", 2, 3, 1, run),
    )


CALLBACK = Request("callback", "callback", key="callback")
MESSAGE = Request("m1", "delivery", "single", key="m1", events=(("task.succeeded", "child"),))
DIGEST = Request("m2", "digest", "digest", key="m2", events=(("notification.digest", ""),), total=1)
COUNTED = {
    ("ATTEMPT", "default", "", "SUCCESS"): (3, 3),
    ("ATTEMPT", "default", "", "LOST"): (1, 1),
    ("ATTEMPT", "default", "", "FENCED"): (1, 1),
    ("ATTEMPT", "default", "selected", "SUCCESS"): (1, 1),
    ("ATTEMPT", "default", "http", "SUCCESS"): (1, 1),
    ("ATTEMPT", "default", NOTIFICATION_TASK, "SUCCESS"): (2, 2),
    ("ATTEMPT", "default", "small", "SUCCESS"): (1, 1),
    ("ENDED", "default", "", "CANCELLED"): (1, 1),
    ("CREATED", "default", "", ""): (4, 4),
    ("CREATED", "default", "selected", ""): (1, 1),
    ("CREATED", "default", "http", ""): (1, 1),
    ("CREATED", "default", NOTIFICATION_TASK, ""): (2, 2),
    ("CREATED", "default", "small", ""): (1, 1),
    ("OCCURRENCE", "", "", "DISPATCHED"): (1, 1),
}
CREATIONS = CreationCounts(
    tuple(
        CreationCount(66.0, 0.0, queue, name, number)
        for (kind, queue, name, _), (number, _) in COUNTED.items()
        if kind == "CREATED"
    ),
    until=60.0,
    repeated_at=120.0,
)

GOOD = History(
    enqueued=(
        Enqueued("parent", "plain"),
        Enqueued("child", "plain"),
        Enqueued("twice", "plain"),
        Enqueued("batched", "batched"),
    ),
    marks=(
        *_ran("parent", "p1", 10.0),
        *_ran("child", "c1", 12.0),
        Mark("twice", 1, "t1", True, 10.0),
        Mark("twice", 2, "t2", True, 20.0),
        Mark("twice", 2, "t2", False, 21.0),
        *_ran("fired", "f1", 100.5),
        *_ran("batched", "b1", 30.0),
    ),
    changes=(
        *_path("parent", "p1"),
        Change("child", None, "BLOCKED", 0, 0),
        Change("child", "BLOCKED", "QUEUED", 0, 1),
        Change("child", "QUEUED", "RUNNING", 1, 2, 1, "c1"),
        Change("child", "RUNNING", "SUCCESS", 2, 3, 1, "c1"),
        Change("twice", None, "PENDING", 0, 0),
        Change("twice", "PENDING", "QUEUED", 0, 1),
        Change("twice", "QUEUED", "RUNNING", 1, 2, 1, "t1"),
        Change("twice", "RUNNING", "PENDING", 2, 3, 1, "t1"),
        Change("twice", "PENDING", "QUEUED", 3, 4, 1),
        Change("twice", "QUEUED", "RUNNING", 4, 5, 2, "t2"),
        Change("twice", "RUNNING", "SUCCESS", 5, 6, 2, "t2"),
        *_path("fired", "f1"),
        *_path("callback", "h1"),
        *_path("delivery", "d1"),
        *_path("digest", "d2"),
        *_path("batched", "b1"),
        Change("hopeless", None, "PENDING", 0, 0),
        Change("hopeless", "PENDING", "CANCELLED", 0, 1),
    ),
    rows={
        "parent": Row("parent", "SUCCESS", 1, atomic=True),
        "child": Row("child", "SUCCESS", 1, name="selected"),
        "twice": Row("twice", "SUCCESS", 2, crashes=1),
        "fired": Row("fired", "SUCCESS", 1),
        "hopeless": Row("hopeless", "CANCELLED"),
        "callback": Row("callback", "SUCCESS", 1, name="http", is_callback=True, marked=False),
        "delivery": Row("delivery", "SUCCESS", 1, name=NOTIFICATION_TASK, marked=False),
        "digest": Row("digest", "SUCCESS", 1, name=NOTIFICATION_TASK, marked=False),
        "batched": Row("batched", "SUCCESS", 1, name="small", in_batch=True, batched=True),
    },
    logs=(
        Log("parent", 1, "SUCCESS", "p1"),
        Log("child", 1, "SUCCESS", "c1"),
        Log("twice", 1, "LOST", "t1"),
        Log("twice", 1, "FENCED", "t1"),
        Log("twice", 2, "SUCCESS", "t2"),
        Log("fired", 1, "SUCCESS", "f1"),
        Log("callback", 1, "SUCCESS", "h1"),
        Log("delivery", 1, "SUCCESS", "d1"),
        Log("digest", 1, "SUCCESS", "d2"),
        Log("batched", 1, "SUCCESS", "b1"),
    ),
    effects=("parent",),
    edges=(Edge("parent", "child"),),
    terms=(Term(1, "a", 5.0, 1.0), Term(1, "a", 7.0, 3.0), Term(2, "b", 12.0, 8.0)),
    fires=(Fire("table", 100.0, "fired", 2, 100.1),),
    timetables=(Timetable("table", 100.0, 2.0, 101.0),),
    requests=(CALLBACK, MESSAGE, DIGEST),
    selections=(
        Selection("single", "selected", "SUCCESS", "task.succeeded"),
        Selection("digest", "selected", "SUCCESS", "task.succeeded", digest=True),
    ),
    counted=COUNTED,
    creations=CREATIONS,
)


def but(**changes: Any) -> History:
    """Return the good history with other values in some fields."""
    return dataclasses.replace(GOOD, **changes)


def plus(**records: Any) -> History:
    """Return the good history with one more record in some fields."""
    return but(**{name: (*getattr(GOOD, name), record) for name, record in records.items()})


def counting(counted: Mapping[tuple[str, str, str, str], tuple[int, int]]) -> History:
    """Return the good history with other counts of some series."""
    return but(counted={**COUNTED, **counted})


def with_row(row: Row) -> History:
    """Return the good history with another final state of one row."""
    return but(rows={**GOOD.rows, row.task: row})


def with_other(task: str, **columns: Any) -> History:
    """Return the good history with other columns in the final state of one row."""
    return with_row(dataclasses.replace(GOOD.rows[task], **columns))


def without_mark(task: str, *, begins: bool) -> History:
    """Return the good history without one kind of mark of a task."""
    return but(
        marks=tuple(mark for mark in GOOD.marks if mark.task != task or mark.begins != begins)
    )

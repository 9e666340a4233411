"""Records a scenario, disturbs it at each of its points, and checks the result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import connection
from django.db.models import Max, Sum

from django_durable_tasks.limits import backpressure, config
from django_durable_tasks.models import (
    DEFAULT_TENANT_ID,
    BatchMessage,
    OccurrenceRecord,
    Task,
    TaskExecutionLog,
    WorkflowRun,
)
from django_durable_tasks.store.connections import close_all, dedicated_connection
from tests.crash_points import promises
from tests.crash_points.forks import Fate, in_child
from tests.crash_points.scenarios import SCENARIOS, Scenario
from tests.crash_points.successors import begin_anew, go_on
from tests.crash_points.tape import Fault, Point, listen
from tests.factories import QUEUE


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of one fault at one point: how many rows the disturbed process left, and what was
    violated.
    """

    scenario: str
    variant: str
    number: int
    point: Point
    fault: Fault
    left: bool
    broken: tuple[str, ...]


def explore(name: str, *, full: bool = False) -> Iterator[Verdict]:
    """Disturb all scenarios of this name at each of their points. Raises AssertionError if one
    fails undisturbed.
    """
    for scenario in SCENARIOS[name]:
        yield from _explore(name, scenario, full)


def _explore(name: str, scenario: Scenario, full: bool) -> Iterator[Verdict]:
    points, right = _undisturbed(scenario)
    for fault in _faults(points, full):
        fate, left, broken = _disturbed(scenario, fault, right)
        point = points[fault.number]
        broken = [*_unlike(fate, fault, points), *_too_early(point), *broken]
        yield Verdict(
            scenario=name,
            variant=scenario.name,
            number=fault.number,
            point=point,
            fault=fault,
            left=left,
            broken=tuple(broken),
        )


def _undisturbed(scenario: Scenario) -> tuple[list[Point], list[Any]]:
    """Return the points of an undisturbed run, and its possible final states."""
    begin_anew()
    scene = scenario.scene()
    fate = in_child(lambda line: _do(scenario, scene, None, line))
    assert fate.done, f"{scenario.name} failed undisturbed: {fate}"
    points = [Point(**json.loads(line)) for line in fate.said]
    wrong = [*_ended(scenario, scene), *promises.broken(scenario.undone_starts)]
    assert points, f"{scenario.name} made no calls"
    assert not wrong, f"{scenario.name} is wrong undisturbed: {wrong}"
    right = [scenario.stand()]
    if scenario.or_nothing:
        begin_anew()
        scene = scenario.scene()
        assert not _ended(scenario, scene)
        right.append(scenario.stand())
    return points, right


def _faults(points: list[Point], full: bool) -> Iterator[Fault]:
    """Select the faults: all of them, or those that can differ.

    The short form selects faults around calls with a durable effect. For rows and messages, the
    time before a statement inside a transaction equals the time after the last durable call, and
    the time after a durable call equals the time before the next one. The broker is lost once per
    batch, with the reply to its last message.
    """
    for number, point in enumerate(points):
        if not (full or point.lasts):
            continue
        yield Fault("kill", "before", number)
        following = points[number + 1 : number + 2]
        if full or not (following and following[0].lasts):
            yield Fault("kill", "after", number)
        if full or point.kind != "publish":
            yield from (Fault("drop", when, number) for when in _drops(point, full))
        elif not (following and following[0].kind == "publish"):
            yield Fault("drop", "after", number)


def _drops(point: Point, full: bool) -> tuple[str, ...]:
    """Select when a connection is dropped: SQLite has none, and a new one costs MySQL's driver
    twice as much.
    """
    if connection.vendor == "sqlite" and point.kind != "publish":
        return ()
    return ("before", "after") if full or connection.vendor == "postgresql" else ("after",)


def _disturbed(scenario: Scenario, fault: Fault, right: list[Any]) -> tuple[Fate, bool, list[str]]:
    begin_anew()
    scene = scenario.scene()
    before = _trace()
    fate = in_child(partial(_do, scenario, scene, fault))
    left = _trace() != before
    broken = [*_ended(scenario, scene), *promises.broken(scenario.undone_starts)]
    stand = scenario.stand()
    if stand not in right:
        broken.append(f"it stands otherwise than undisturbed: {stand} instead of {right[0]}")
    return fate, left, broken


def _do(scenario: Scenario, scene: Any, fault: Fault | None, line: int) -> None:
    # If the state of the queue is known beforehand, the fast path is open or not whenever the
    # background thread reads it.
    backpressure.FastPath().is_open("", QUEUE, DEFAULT_TENANT_ID)
    with dedicated_connection():
        config.limits_in_force()
    config.FRESH = float("inf")  # no point depends on when the limits were read last
    close_all()  # connections opened from here on are recorded
    listen(fault, line)
    scenario.operation(scene)


def _ended(scenario: Scenario, scene: Any) -> list[str]:
    fate = in_child(lambda _: go_on(lambda: scenario.again(scene)))
    return (
        []
        if fate.done
        else [f"those who went on failed ({fate.status}): {' / '.join(fate.said[-3:])}"]
    )


def _unlike(fate: Fate, fault: Fault, points: list[Point]) -> list[str]:
    """Return what is wrong with the fault itself: it must occur, at the recorded point."""
    here = json.loads(fate.said[fault.number]) if len(fate.said) > fault.number else None
    there = points[fault.number]
    if here is None or (here["kind"], here["place"]) != (there.kind, there.place):
        return [f"the point was not reached: {there} became {here}"]
    if fate.killed != (fault.action == "kill") or not (fate.killed or fate.lived):
        return [f"the process ended with {fate.status}: {' / '.join(fate.said[-3:])}"]
    return []


def _too_early(point: Point) -> list[str]:
    return (
        ["a message was published inside a transaction"]
        if point.kind == "publish" and point.within
        else []
    )


def _trace() -> Any:
    """Return values that show whether anything was written."""
    tasks = Task.objects.aggregate(
        Max("updated_at"), Sum("epoch"), Sum("publish_count"), Sum("attempts")
    )
    counted = WorkflowRun.objects.aggregate(Sum("total"), Sum("succeeded"))
    messages = BatchMessage.objects.aggregate(Max("due_at"), Sum("publish_count"))
    tables = (Task, TaskExecutionLog, OccurrenceRecord)
    return tasks, counted, messages, [table.objects.count() for table in tables]

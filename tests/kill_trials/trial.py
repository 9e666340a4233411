"""One kill trial: the only worker is killed and replaced again and again while it drains a queue.

Beside the kills, a few workers are frozen in the middle of a body, replaced, and woken when the
drain is over: a killed process never comes back, so only these try the fences.
"""

import os
import time
from functools import partial
from pathlib import Path

from django.db import OperationalError

from django_durable_tasks.models import Node, Task
from tests.kill_trials.figures import Figures, Plan
from tests.processes.fleet import Fleet, Program
from tests.processes.rows import ENDED, accepted_twice, logs, statuses
from tests.project import bodies
from tests.waiting import until


def run(fleet: Fleet, plan: Plan) -> Figures:
    """Drain, kill, freeze, wake, and count; raises AssertionError when the drain stands still."""
    worker = _worker(fleet, plan).ready()
    fleet.scheduler().ready()
    began = time.monotonic()
    at_work = fleet.folder / "at-work"
    at_work.mkdir()
    bodies.work.schedule_many([(number, plan.body, str(at_work)) for number in range(plan.tasks)])
    frozen: list[Program] = []
    blows = plan.kills + plan.freezes
    every = blows // (plan.freezes + 1) if plan.freezes else blows + 1
    for blow in range(1, blows + 1):
        _wait_for(plan.tasks * blow // (blows + 1), plan)
        if blow % every == 0 and len(frozen) < plan.freezes:
            _freeze_at_work(worker, at_work)
            frozen.append(worker)
        else:
            worker.kill()
        worker = _worker(fleet, plan)
    _wait_for(plan.tasks, plan)
    seconds = time.monotonic() - began
    _wake(frozen)
    return _figures(fleet, plan, seconds)


def _worker(fleet: Fleet, plan: Plan) -> Program:
    return fleet.worker(slots=plan.slots)


def _wait_for(number: int, plan: Plan) -> None:
    """Wait until so many have ended; the patience begins anew with each that does."""
    seen = -1
    while seen < number:
        seen = _next_after(seen, plan)


def _next_after(seen: int, plan: Plan) -> int:
    return (
        until(
            lambda: _more_than(seen),
            within=plan.patience,
            message=f"more than {seen}: {statuses()}",
        )
        - 1
    )


def _more_than(floor: int) -> int:
    """Return how many have ended, plus one (so that none is not taken for no), once they are more
    than `floor`.
    """
    number: int = Task.objects.filter(status__in=ENDED).count()
    return number + 1 if number > floor else 0


def _freeze_at_work(worker: Program, at_work: Path) -> None:
    """Freeze the worker in the middle of a body, as the body's own mark says.

    A row that says RUNNING is not enough: the worker may stop before it has heard of its start, and
    is then refused at the gate when it wakes, or after it has sent its ending, which arrives all
    the same.
    """

    def caught() -> bool:
        worker.freeze()
        if (
            any(_belongs(int(mark.name), worker) for mark in at_work.iterdir())
            and _others_may_write()
        ):
            return True
        worker.thaw()
        return False

    until(caught, within=60, message="a worker is frozen at work")


def _belongs(pid: int, worker: Program) -> bool:
    """Tell whether this process is one of the worker's; that of a mark may have been killed long
    ago.
    """
    try:
        return os.getpgid(pid) == worker.process.pid
    except ProcessLookupError:
        return False


def _others_may_write() -> bool:
    """Tell whether the frozen worker left the database usable: on SQLite it may sleep on the only
    lock there is.
    """
    try:
        Node.objects.filter(name="nobody").update(beats=0)
    except OperationalError:
        return False
    return True


def _wake(frozen: list[Program]) -> None:
    """Wake the sleepers, one after the other, and wait until each one's ending was refused."""
    for worker in frozen:
        before = logs()["FENCED"]
        worker.thaw()
        until(partial(_more_fenced, before), within=60, message="the sleeper is fenced")
        worker.kill()


def _more_fenced(floor: int) -> bool:
    return logs()["FENCED"] > floor


def _figures(fleet: Fleet, plan: Plan, seconds: float) -> Figures:
    stands, counted = statuses(), logs()
    return Figures(
        tasks=plan.tasks,
        kills=plan.kills,
        freezes=plan.freezes,
        succeeded=stands["SUCCESS"],
        lost=plan.tasks - sum(stands[status] for status in ENDED),
        left_running=stands["RUNNING"],
        accepted_twice=len(accepted_twice()),
        attempts_lost=counted["LOST"],
        fenced_endings=counted["FENCED"],
        dropped_rings=sum(program.said().count("Ignored message") for program in fleet.programs),
        seconds=round(seconds, 1),
    )

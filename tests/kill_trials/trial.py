"""One kill trial: the only worker is killed and replaced repeatedly while it drains a queue.

In addition, a few workers are frozen during a body, replaced, and continued after the drain. A
killed process never returns, so only these test the fences.
"""

import os
import time
from functools import partial
from pathlib import Path

from django.db import OperationalError

from django_durable_tasks.models import Node, Task
from tests.kill_trials.figures import BATCHES, MESSAGES, Figures, Plan
from tests.processes.cluster import Cluster, Program
from tests.processes.rows import ENDED, accepted_twice, logs, statuses
from tests.project import batched, bodies, coroutines
from tests.waiting import until

_BODIES = {MESSAGES: (bodies.work, coroutines.work), BATCHES: (batched.work,)}
"""The functions of each lane, which have equal parts of its tasks."""


def run(cluster: Cluster, plan: Plan) -> Figures:
    """Drain, kill, freeze, continue, and count. Raises AssertionError without progress."""
    worker = _worker(cluster, plan).ready()
    cluster.scheduler().ready()
    began = time.monotonic()
    at_work = cluster.folder / "at-work"
    at_work.mkdir()
    functions = _BODIES[plan.lane]
    for first, function in enumerate(functions):
        numbers = range(first, plan.tasks, len(functions))
        function.schedule_many([(number, plan.body, str(at_work)) for number in numbers])
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
        worker = _worker(cluster, plan)
    _wait_for(plan.tasks, plan)
    seconds = time.monotonic() - began
    _wake(frozen)
    return _figures(cluster, plan, seconds)


def _worker(cluster: Cluster, plan: Plan) -> Program:
    return cluster.worker(slots=plan.slots)


def _wait_for(number: int, plan: Plan) -> None:
    """Wait until `number` tasks have ended. The timeout restarts with each that does."""
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
    """Return how many tasks have ended, plus one (so that zero is a true value), once they are more
    than `floor`.
    """
    number: int = Task.objects.filter(status__in=ENDED).count()
    return number + 1 if number > floor else 0


def _freeze_at_work(worker: Program, at_work: Path) -> None:
    """Freeze the worker during a body, as the file of the body shows.

    A RUNNING task is not enough: the worker may stop before it has received the reply to its start,
    and is then refused at the gate when it continues, or after it has sent its ending, which
    arrives all the same.
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
    """Return whether this process belongs to the worker. That of a file may have been killed long
    ago.
    """
    try:
        return os.getpgid(pid) == worker.process.pid
    except ProcessLookupError:
        return False


def _others_may_write() -> bool:
    """Return whether the frozen worker left the database usable: on SQLite it may keep the only
    lock.
    """
    try:
        Node.objects.filter(name="nobody").update(beats=0)
    except OperationalError:
        return False
    return True


def _wake(frozen: list[Program]) -> None:
    """Continue the frozen workers, one after the other, and wait until the ending of each was
    refused.
    """
    for worker in frozen:
        before = logs()["FENCED"]
        worker.thaw()
        until(partial(_more_fenced, before), within=60, message="the sleeper is fenced")
        worker.kill()


def _more_fenced(floor: int) -> bool:
    return logs()["FENCED"] > floor


def _figures(cluster: Cluster, plan: Plan, seconds: float) -> Figures:
    by_status, counted = statuses(), logs()
    return Figures(
        lane=plan.lane,
        tasks=plan.tasks,
        kills=plan.kills,
        freezes=plan.freezes,
        succeeded=by_status["SUCCESS"],
        in_batches=Task.objects.filter(status="SUCCESS", in_batch=True).count(),
        lost=plan.tasks - sum(by_status[status] for status in ENDED),
        left_running=by_status["RUNNING"],
        accepted_twice=len(accepted_twice()),
        attempts_lost=counted["LOST"],
        fenced_endings=counted["FENCED"],
        dropped_rings=sum(
            program.output().count("Ignored message") for program in cluster.programs
        ),
        seconds=round(seconds, 1),
    )

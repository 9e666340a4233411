"""A task that ends its process is charged with the deaths of its nodes, its neighbours are not."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.states.machine import Crash, LostRun, judged

MAX_CRASHES, TIMEOUT = 3, 20.0


@dataclass
class _Task:
    """A simulated task: it runs for `lasts` seconds; one that `kills` then ends its process."""

    lasts: float
    kills: bool = False
    due: float = 0.0
    status: str = "PENDING"
    crashes: int = 0
    lost: list[float] = field(default_factory=list)
    pk: uuid.UUID = field(default_factory=uuid.uuid4)


def _simulate(tasks: list[_Task], threads: int, seed: int, deaths: int = 0) -> None:
    """Run the tasks on one worker that is restarted after each death. `deaths`: how often it is
    killed from outside, a minute after it started.
    """
    draw, now = random.Random(seed), 0.0
    for _ in range(200):
        began: dict[uuid.UUID, float] = {}
        born = now
        while True:
            waiting = sorted((task for task in tasks if task.status == "PENDING"), key=_due)
            if not waiting and not began:
                return
            running = [task for task in tasks if task.pk in began]
            ends = sorted((began[task.pk] + task.lasts, task.pk, task) for task in running)
            starts = [max(now, task.due) for task in waiting[: threads - len(running)]]
            killed = born + 60 if deaths else float("inf")
            now = min([*(end[0] for end in ends[:1]), *starts[:1], killed])
            if ends and ends[0][0] <= now:
                task = ends[0][2]
                if task.kills:
                    break
                task.status = "SUCCESS"
                del began[task.pk]
            elif now >= killed:
                deaths -= 1
                break
            else:
                began[waiting[0].pk], waiting[0].status = now, "RUNNING"
        now += draw.uniform(TIMEOUT - 1, TIMEOUT + 5)  # until the death is noticed
        runs = [
            LostRun(
                task.pk,
                now - began[task.pk],
                task.crashes,
                len(task.lost) - task.crashes,
                task.lost[-1] if task.lost else 0.0,
            )
            for task in tasks
            if task.pk in began
        ]
        for pk, crash in judged(runs, TIMEOUT).items() if runs else ():
            _lose(next(task for task in tasks if task.pk == pk), crash, now, now - began[pk])
    raise AssertionError("It does not end.")


def _due(task: _Task) -> float:
    return task.due


def _lose(task: _Task, crash: Crash, now: float, age: float) -> None:
    task.lost.append(age)
    task.crashes += crash.is_counted
    task.due = now + crash.delay
    task.status = "FAILED" if task.crashes >= MAX_CRASHES else "PENDING"


@given(
    lasts=st.lists(st.floats(0.01, 90), min_size=0, max_size=7),
    kills_after=st.floats(0.01, 90),
    threads=st.integers(1, 8),
    seed=st.integers(0, 1_000_000),
)
def test_only_the_task_that_ends_its_process_fails(
    lasts: list[float], kills_after: float, threads: int, seed: int
) -> None:
    tasks = [_Task(duration) for duration in lasts]
    poison = _Task(kills_after, kills=True)
    tasks.insert(seed % (len(tasks) + 1), poison)
    _simulate(tasks, threads, seed)
    assert [task.status for task in tasks if task is not poison] == ["SUCCESS"] * len(lasts)
    assert poison.status == "FAILED"


@given(
    lasts=st.lists(st.floats(0.01, 55), min_size=2, max_size=8),
    deaths=st.integers(1, 6),
    seed=st.integers(0, 1_000_000),
)
def test_deaths_of_a_whole_worker_fail_no_task(lasts: list[float], deaths: int, seed: int) -> None:
    """A deployment that kills the worker a minute after its start, several times."""
    tasks = [_Task(duration) for duration in lasts]
    _simulate(tasks, 8, seed, deaths)
    assert {task.status for task in tasks} == {"SUCCESS"}


def test_a_run_that_was_alone_is_charged() -> None:
    run = LostRun(uuid.uuid4(), 5.0)
    assert judged([run], TIMEOUT) == {run.task_id: Crash(is_counted=True)}


def test_runs_that_die_together_again_and_again_are_charged_in_the_end() -> None:
    runs = [LostRun(uuid.uuid4(), 5.0, uncounted=10, last_age=5.0) for _ in range(3)]
    assert all(crash.is_counted for crash in judged(runs, TIMEOUT).values())


def test_many_tasks_start_apart_within_an_hour() -> None:
    runs = [LostRun(uuid.uuid4(), 900.0, uncounted=9, last_age=900.0) for _ in range(1_000)]
    assert max(crash.delay for crash in judged(runs, TIMEOUT).values()) <= 3_600

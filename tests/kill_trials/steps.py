"""A kill trial of steps: the only worker is killed, stopped and replaced while its tasks iterate."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from django.contrib.auth.models import Group, User

from tests.processes.cluster import STOPPING, Cluster
from tests.processes.rows import ENDED, accepted_twice, lines, logs, statuses
from tests.project import stepping
from tests.waiting import until


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """What a trial left: items and steps by how often their effects are there."""

    succeeded: int
    accepted_twice: int
    attempts_lost: int
    attempts_interrupted: int
    items: int
    items_repeated: int
    steps: int
    steps_repeated: int


def run(
    cluster: Cluster, *, tasks: int, items: int, kills: int, stops: int, patience: float = 120
) -> StepFigures:
    """Import the items in atomic batches by each task, while workers are killed and stopped."""
    Group.objects.all().delete()
    User.objects.all().delete()
    User.objects.bulk_create([User(username=f"item {place}") for place in range(items)])
    worker = cluster.worker(slots=2).ready()
    cluster.scheduler().ready()
    folder = cluster.folder
    stepping.import_items.schedule_many(
        [(f"task {number}", 10, True, str(folder)) for number in range(tasks)]
    )
    blows, expected = kills + stops, tasks * items
    for blow in range(1, blows + 1):
        goal = expected * blow // (blows + 1)
        until(partial(_are_done, goal), within=patience, message=f"{goal} items are done")
        # The stops are spread over the kills.
        if stops * blow // blows > stops * (blow - 1) // blows:
            worker.process.send_signal(signal.SIGTERM)
            assert worker.process.wait(STOPPING) == 0
        else:
            worker.kill()
        worker = cluster.worker(slots=2)
    until(
        lambda: sum(statuses()[status] for status in ENDED) == tasks,
        within=patience,
        message="all tasks have ended",
    )
    return _figures(folder)


def _are_done(number: int) -> bool:
    return Group.objects.count() >= number


def _figures(folder: Path) -> StepFigures:
    names = list(Group.objects.values_list("name", flat=True))
    worked = Counter(tuple(name.split()[:4]) for name in names if " item " in name)
    done = [name for name in names if " item " not in name]
    counted = logs()
    return StepFigures(
        succeeded=statuses()["SUCCESS"],
        accepted_twice=len(accepted_twice()),
        attempts_lost=counted["LOST"],
        attempts_interrupted=counted["RETRY"],
        items=len(worked),
        items_repeated=sum(number > 1 for number in worked.values()),
        steps=len(done),
        steps_repeated=len(lines(folder / "repeated")),
    )

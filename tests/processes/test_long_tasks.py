"""Long tasks occupy only their own concurrency, and an urgent task waits for one free process, not
for an empty window.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from django_durable_tasks.models import Task
from tests.processes.cluster import SHORT, cluster_in
from tests.processes.rows import ended, in_status, release, row, statuses
from tests.project import bodies
from tests.waiting import until

LONG, SHORT_ONES, WINDOW = 4, 36, 4


@pytest.mark.timeout(180)
def test_one_long_task_in_ten_delays_no_other_and_the_most_urgent_is_next(
    rows: None, tmp_path: Path
) -> None:
    held, last = tmp_path / "held", tmp_path / "last"
    with cluster_in(tmp_path, {**SHORT, "QUEUE_WINDOW": WINDOW}) as cluster:
        cluster.worker(pool="threads", slots=LONG + 1)
        cluster.scheduler()
        cluster.ready()
        long = [_nine_and_a_long_one(held) for _ in range(LONG)]
        until(
            lambda: statuses() == {"SUCCESS": SHORT_ONES, "RUNNING": LONG},
            within=60,
            message="only long ones run",
        )

        busy = in_status(bodies.hold.schedule(str(last)), "RUNNING")
        bodies.add.schedule_many([(number, 1) for number in range(30)])
        until(lambda: statuses()["QUEUED"] == WINDOW, within=30, message="the window is full")
        (urgent,) = bodies.add.using(priority=9).schedule_many([(9, 9)])
        last.mkdir(exist_ok=True)
        release(last)
        began = ended(urgent).started_at
        before = Task.objects.filter(started_at__gt=row(busy).started_at, started_at__lt=began)
        assert before.count() <= WINDOW, (
            "more started before it than had been published before it came"
        )

        assert [row(task).status for task in long] == ["RUNNING"] * LONG
        release(held)
        for task in [*long, busy]:
            assert ended(task).status == "SUCCESS"


def _nine_and_a_long_one(held: Path) -> Task:
    long: Task = bodies.hold.schedule(str(held))
    bodies.add.schedule_many([(number, 1) for number in range(9)])
    return long

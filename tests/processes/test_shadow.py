"""Fires of a real beat are recorded because of one line in its settings, and compared with those of
the scheduler.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from django_durable_tasks.contrib.beat.models import ShadowFire
from django_durable_tasks.models import RecurringTask, Task
from tests.database.commands.durable_command import durable
from tests.processes.cluster import Cluster
from tests.project import tasks
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("rows")
HEARD = 4


def _heard(name: str) -> int:
    return ShadowFire.objects.filter(name=name).count()


def test_fires_of_beat_are_recorded_and_differences_are_reported(
    cluster: Cluster, tmp_path: Path
) -> None:
    ShadowFire.objects.all().delete()
    beat = cluster.beat("tests.beat_settings", tmp_path)
    until(
        lambda: min(_heard("plain"), _heard("durable")) >= HEARD or not beat.alive(),
        within=60,
        message="beat is heard",
    )
    assert beat.alive(), beat.output()[-3000:]
    beat.kill()
    fires = {
        name: list(ShadowFire.objects.filter(name=name).order_by("pk"))
        for name in ("plain", "durable")
    }
    assert {fire.task for fire in fires["plain"]} == {"shop.tasks.plain"}
    assert all(fire.celery_id for fire in fires["plain"])
    assert Task.objects.filter(name=tasks.noop.name).count() in (
        len(fires["durable"]),
        len(fires["durable"]) + 1,
    )

    first = fires["plain"][0].recorded_at - timedelta(milliseconds=100)
    last = fires["plain"][-1].recorded_at + timedelta(milliseconds=100)
    for name, task in (("plain", tasks.echo), ("absent", tasks.noop)):
        row = RecurringTask.objects.upsert(
            name=name, task=task, interval=1, start_time=first, source="beat"
        )
        row.pause("IN_SHADOW")
    between = ["--from", first.isoformat(), "--to", last.isoformat()]
    answer = durable("shadow", *between, "--tolerance", "5", "--format", "json")
    assert answer.code == 1
    found = {one["name"]: one for one in answer.data["schedules"]}
    # On a loaded machine the first fire is recorded late, which shortens the compared range.
    assert found["plain"]["matched"] >= HEARD - 2
    assert (found["absent"]["matched"], len(found["absent"]["only_here"]) >= HEARD - 1) == (0, True)
    assert "import it" in found["durable"]["remark"]

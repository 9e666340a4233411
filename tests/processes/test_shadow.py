"""A real beat is heard by one line in its settings, and compared with what would have
fired here.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from django_durable_tasks.models import RecurringTask, ShadowFire, Task
from tests.database.commands.durable_command import durable
from tests.processes.fleet import Fleet
from tests.project import tasks
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("rows")
HEARD = 4


def _heard(name: str) -> int:
    return ShadowFire.objects.filter(name=name).count()


def test_beat_is_heard_and_what_it_does_not_fire_is_told(fleet: Fleet, tmp_path: Path) -> None:
    ShadowFire.objects.all().delete()
    beat = fleet.beat("tests.beat_settings", tmp_path)
    until(
        lambda: min(_heard("plain"), _heard("durable")) >= HEARD or not beat.alive(),
        within=60,
        message="beat is heard",
    )
    assert beat.alive(), beat.said()[-3000:]
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

    first = fires["plain"][0].heard_at - timedelta(milliseconds=100)
    last = fires["plain"][-1].heard_at + timedelta(milliseconds=100)
    for name, task in (("plain", tasks.echo), ("absent", tasks.noop)):
        row = RecurringTask.objects.upsert(
            name=name, task=task, interval=1, start_time=first, source="beat"
        )
        row.pause("IN_SHADOW")
    between = ["--from", first.isoformat(), "--to", last.isoformat()]
    answer = durable("shadow", *between, "--tolerance", "5", "--format", "json")
    assert answer.code == 1
    found = {one["name"]: one for one in answer.told["schedules"]}
    # On a loaded machine the first message is heard late, which shortens the compared range.
    assert found["plain"]["matched"] >= HEARD - 2
    assert (found["absent"]["matched"], len(found["absent"]["only_here"]) >= HEARD - 1) == (0, True)
    assert "import it" in found["durable"]["remark"]

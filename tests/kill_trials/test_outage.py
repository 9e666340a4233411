"""The outage of the issue at full size and default settings: 90 seconds without the database, 100
runs in progress.
"""

from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from django_durable_tasks.models import Node, Task
from django_durable_tasks.store.clock import database_now
from tests.backends import address, variable_of
from tests.processes.cluster import Program, cluster_in
from tests.processes.proxy import proxy_to
from tests.processes.rows import ended, logs, release, statuses
from tests.project import bodies
from tests.waiting import until

RUNS, AT_ONCE, OUTAGE = 100, 10, 90.0
LOOKS = 16  # of 5 s: longer than the lease of 60 s, after which leases are judged again


def _beats(program: Program) -> int:
    beats: int = Node.objects.values_list("beats", flat=True).get(name=program.name)
    return beats


def _are_running(number: int) -> bool:
    return statuses()["RUNNING"] == number


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.timeout(900)
def test_ninety_seconds_without_the_database_lose_none_of_a_hundred_runs(
    rows: None, settings: Any, tmp_path: Path, vendor: str
) -> None:
    settings.DURABLE_TASKS = {}
    held = tmp_path / "held"
    with proxy_to(address(vendor)) as proxy, cluster_in(tmp_path, {}) as cluster:
        place = {variable_of(vendor): proxy.url}
        cluster.worker(pool="threads", slots=RUNS, **place)
        scheduler = cluster.scheduler(**place)
        cluster.ready()
        tasks = []
        for begun in range(AT_ONCE, RUNS + 1, AT_ONCE):
            tasks += [bodies.hold.schedule(str(held)) for _ in range(AT_ONCE)]
            until(partial(_are_running, begun), within=60)
        proxy.cut()
        back_at = monotonic() + OUTAGE
        until(lambda: monotonic() >= back_at, within=OUTAGE + 10)
        assert not Task.objects.running().filter(lease_until__gte=database_now()).exists()
        before = _beats(scheduler)
        proxy.restore()
        until(
            lambda: _beats(scheduler) >= before + LOOKS,
            within=180,
            message="leases are judged again",
        )
        assert (statuses(), logs()) == ({"RUNNING": RUNS}, {})
        release(held)
        for task in tasks:
            ended(task, within=120)
    assert (statuses(), logs()) == ({"SUCCESS": RUNS}, {"SUCCESS": RUNS})

"""A function that returned has succeeded, whatever happened to the connections of its worker while it
ran.
"""

import random
import time
from pathlib import Path

import pytest
from django.db import connection

from django_durable_tasks.models import Task
from tests.processes.cluster import Cluster
from tests.processes.rows import accepted_twice, all_ended, logs, statuses
from tests.project import bodies
from tests.waiting import until

RUNS, CUTS = 6, 5
SECONDS = (3.0, 6.0)
OTHERS = {
    "postgresql": (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ),
    "mysql": (
        "SELECT id FROM information_schema.processlist"
        " WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    ),
}


def _terminate_all_connections() -> None:
    """Let the server end every session of this database but our own, as a restart does."""
    with connection.cursor() as cursor:
        cursor.execute(OTHERS[connection.vendor])
        found = cursor.fetchall()
        if connection.vendor == "mysql":
            for (number,) in found:
                # A session may have ended meanwhile; the statement must not fail then.
                cursor.execute(
                    "SELECT COUNT(*) FROM information_schema.processlist WHERE id = %s", [number]
                )
                if cursor.fetchone()[0]:
                    cursor.execute(f"KILL {number}")


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_connections_that_are_terminated_while_functions_run_fail_no_run(
    cluster: Cluster, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    drawn, folder = random.Random(seed), tmp_path / "work"
    folder.mkdir()
    cluster.worker(slots=3)
    cluster.scheduler()
    cluster.ready()
    cuts = sorted(drawn.uniform(0.2, 2 * SECONDS[1]) for _ in range(CUTS))
    once = bodies.work.using(max_attempts=1, max_crashes=1)
    for number in range(RUNS):
        once.schedule(number, drawn.uniform(*SECONDS), str(folder))
    until(lambda: statuses()["RUNNING"] == 3, within=40, message="three functions run")
    began = time.monotonic()
    while cuts:
        until(lambda: time.monotonic() >= began + cuts[0], within=60)
        cuts.pop(0)
        _terminate_all_connections()
    all_ended(RUNS)
    found = f"seed {seed}"
    assert (statuses(), logs()) == ({"SUCCESS": RUNS}, {"SUCCESS": RUNS}), found
    attempts = Task.objects.values_list("attempts", "failures", "crashes")
    assert set(attempts) == {(1, 0, 0)}, found
    assert accepted_twice() == [], found

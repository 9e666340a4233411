"""The benchmark of a fail-over: how long no schedule fires after the leader was killed."""

from __future__ import annotations

import sys
import time

import psycopg

from benchmarks.contenders import UNWORKED, Ours, patience
from benchmarks.contest import Measured
from benchmarks.processes import Failed, running, wait_until

SCHEDULES = 4
_WITHIN = 60.0
_FIRES = "SELECT count(*) FROM durable_tasks_occurrence"
_NODES = "SELECT count(*) FROM durable_tasks_node WHERE stopped_at IS NULL"
_NEXT = """
    SELECT extract(epoch FROM min(created_at))::float8
    FROM durable_tasks_occurrence WHERE created_at > to_timestamp(%s)
"""


class Failover(Ours):
    """Two schedulers at default settings, and four schedules that fire every second in turns."""

    def leader_killed(self) -> Measured:
        """Kill the leader; return the seconds until the next fire time is recorded."""
        self.servers.clear_broker(self.broker)
        self.run_command("recurring", {"n": SCHEDULES, "every": 1}, patience(SCHEDULES), **UNWORKED)
        command, variable = [sys.executable, "-m", "django", "run_scheduler"], self.variable()
        with (
            psycopg.connect(self.servers.database("ours"), autocommit=True) as database,
            running(command, **variable) as leader,
        ):

            def number(sql: str) -> int:
                return int((database.execute(sql).fetchone() or (0,))[0])

            wait_until(lambda: number(_FIRES) > 0, leader, within=_WITHIN)
            with running(command, **variable) as follower:
                wait_until(lambda: number(_NODES) > 1, leader, follower, within=_WITHIN)
                killed = time.time()
                leader.kill()
                wait_until(
                    lambda: database.execute(_NEXT, [killed]).fetchone() != (None,),
                    follower,
                    within=_WITHIN,
                )
                (fired,) = database.execute(_NEXT, [killed]).fetchone() or (None,)
        self.servers.clear_broker(self.broker)
        if fired is None:
            raise Failed("No fire time was recorded after the leader was killed.")
        return Measured(fired - killed, {"milliseconds": 1e3 * (fired - killed)})

"""The benchmark of graphs: workflows of known shapes, and the same graphs as Celery canvases."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.contenders import WORKER, BareCelery, Ours
from benchmarks.contest import Measured
from benchmarks.peers import tally
from benchmarks.processes import Failed, figures, running, wait_until

# Limits that a large graph does not reach.
ROOMY = {"WORKFLOW_MAX_TASKS": 1_000_000}
EDGES_CHECKED = 10_000
_READY = "SELECT count(*) FROM durable_tasks_node WHERE stopped_at IS NULL"
_ENDED = "SELECT status FROM durable_tasks_workflow_run WHERE id = %s AND completed_at IS NOT NULL"
_EMPTY = """
    TRUNCATE durable_tasks_task, durable_tasks_execution_log, durable_tasks_dependency, durable_tasks_ending_event,
             durable_tasks_workflow_run, durable_tasks_node RESTART IDENTITY CASCADE
"""
_INSTANTS = """
    SELECT extract(epoch FROM log.started_at)::float8, extract(epoch FROM log.completed_at)::float8,
           EXISTS (SELECT 1 FROM durable_tasks_dependency AS edge WHERE edge.task_id = log.task_id)
      FROM durable_tasks_execution_log AS log WHERE status = 'SUCCESS' ORDER BY completed_at
"""


def patience(n: int) -> float:
    """Return the time limit of a graph of n tasks, in seconds. In a chain one task runs at a time."""
    return 120 + n / 10


@dataclass(frozen=True)
class _Instants:
    """When the tasks of a graph ran, in the order of their ends: start, end (Unix time), and
    whether the task had upstreams.
    """

    began: float
    rows: list[tuple[float, float, bool]]

    def facts(self, start: float) -> dict[str, float]:
        """Return the duration of a start and of an ending, early and late in the graph."""
        last = self.rows[-1][1]
        return {
            "start_ms": round(1e3 * start, 1),
            "ms_per_node": round(1e3 * (last - self.began) / len(self.rows), 3),
            "early_ms": self._cost(0.05, 0.25),
            "late_ms": self._cost(0.75, 0.95),
        }

    def _cost(self, first: float, last: float) -> float:
        """Return the milliseconds per ending, for a part of the endings."""
        low, high = round(first * len(self.rows)), round(last * len(self.rows)) - 1
        return round(1e3 * (self.rows[high][1] - self.rows[low][1]) / (high - low), 3)

    def wait_for_join(self) -> float:
        """Return the milliseconds from the end of the last task but one to the start of
        the last.
        """
        return round(1e3 * (self.rows[-1][0] - self.rows[-2][1]), 1)

    def wait_for_release(self) -> float:
        """Return the milliseconds from the end of the first task to the start of the second."""
        return round(1e3 * (self.rows[1][0] - self.rows[0][1]), 1)


class OurGraphs(Ours):
    """Workflows of this package on PostgreSQL and Redis, with one scheduler and one worker with two
    processes.
    """

    def run_graph(self, shape: str, n: int) -> Measured:
        """Time one workflow, from the call of ``start`` to its last success."""
        self.prepare()
        self.servers.clear_broker(self.broker)
        variable = self.variable(**ROOMY)
        with self._fleet(variable) as (database, processes):
            start = figures(
                [sys.executable, "-m", "benchmarks.shapes", "start"],
                {"shape": shape, "n": n},
                patience(n),
                **variable,
            )
            wait_until(lambda: bool(_ended(database, start["run"])), *processes, within=patience(n))
            (status,) = _ended(database, start["run"])
            found = _Instants(start["began"], list(database.execute(_INSTANTS)))
        if status != "SUCCESS" or len(found.rows) != n:
            raise Failed(
                f"The workflow ended {status}, with {len(found.rows)} successes of {n} tasks"
            )
        facts = found.facts(start["seconds"])
        if shape == "fan-in":
            facts["join_ms"] = found.wait_for_join()
        if shape == "fan-out":
            facts["release_ms"] = found.wait_for_release()
        return Measured(found.rows[-1][1] - found.began, facts)

    @contextmanager
    def _fleet(
        self, variable: dict[str, str]
    ) -> Iterator[tuple[psycopg.Connection, tuple[Any, Any]]]:
        loop = [sys.executable, "-m", "django", "run_scheduler"]
        worker = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "benchmarks.project",
            "worker",
            *WORKER,
            f"bench-{self.servers.run}@%h",
            "--prefetch-multiplier=1",
        ]
        with psycopg.connect(self.servers.database("ours"), autocommit=True) as database:
            database.execute(_EMPTY)
            with running(loop, **variable) as scheduler, running(worker, **variable) as process:
                wait_until(lambda: _number(database, _READY) >= 2, scheduler, process, within=60)
                yield database, (scheduler, process)
        self.servers.clear_broker(self.broker)

    def validate(self) -> Measured:
        """Time the check of 10,000 edges."""
        self.prepare()
        command = [sys.executable, "-m", "benchmarks.shapes", "validate"]
        return Measured(
            float(figures(command, {"n": EDGES_CHECKED}, 120, **self.variable(**ROOMY))["seconds"])
        )


def _number(database: psycopg.Connection, question: Any) -> int:
    (number,) = database.execute(question).fetchone() or (0,)
    return int(number)


def _ended(database: psycopg.Connection, run: str) -> tuple[Any, ...]:
    return database.execute(_ENDED, [run]).fetchone() or ()


class Canvas(BareCelery):
    """Celery's chain, chord and group on Redis, with Redis as the result backend."""

    def run_canvas(self, shape: str, n: int) -> Measured:
        """Time one canvas, from the call of ``apply_async`` to its last body."""
        folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self.servers.clear_broker(self.broker)
        module = "benchmarks.peers.canvas"
        worker = [
            self.python,
            "-m",
            "celery",
            "-A",
            module,
            "worker",
            *WORKER,
            f"bench-{self.servers.run}@%h",
        ]
        try:
            with running(worker, **self.variable(str(folder))) as process:
                command = [self.python, "-m", module, "start"]
                start = figures(command, {"shape": shape, "n": n}, patience(n), **self.variable())
                wait_until(lambda: tally.count(folder) >= n, process, within=patience(n))
            seconds = tally.last(folder) - start["began"]
        finally:
            shutil.rmtree(folder)
            self.servers.clear_broker(self.broker)
        facts = {
            "start_ms": round(1e3 * start["seconds"], 1),
            "ms_per_node": round(1e3 * seconds / n, 3),
        }
        return Measured(seconds, facts)

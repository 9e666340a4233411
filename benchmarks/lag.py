"""The benchmark of start lag: one-off tasks due at a rate, all written before the first is due."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import quantiles
from subprocess import Popen
from typing import Any

from benchmarks.contenders import WORKER, BareCelery, DatabaseQueue, Ours, patience
from benchmarks.contest import OURS, Contender, Measured
from benchmarks.peers import stamps
from benchmarks.processes import Failed, figures, running, wait_until
from benchmarks.stage import SLOW, Stage, a_contender, database_queues

RATES = (100, 300, 500, 1_000)
_WITHOUT = frozenset({"django-ox"})
_AHEAD = 4.0


def measured(found: list[float], n: int, rate: int, **more: float) -> Measured:
    """Return the figures of n lags (seconds). Raises Failed if a task ran twice or never."""
    if len(found) != n:
        raise Failed(f"{len(found)} functions started for {n} tasks")
    cuts = quantiles(found, n=100)
    facts = {
        "lag_p50_ms": cuts[49],
        "lag_p95_ms": cuts[94],
        "lag_p99_ms": cuts[98],
        "lag_max_ms": found[-1],
    }
    in_ms = {name: round(1e3 * value, 1) for name, value in facts.items()}
    return Measured(n / rate, {**in_ms, "early": sum(lag < 0 for lag in found), **more})


def _await(path: Path, n: int, rate: int, *processes: Popen[bytes]) -> None:
    wait_until(lambda: stamps.number(path) >= n, *processes, within=_AHEAD + n / rate + patience(n))


@dataclass
class OurLag(Ours):
    """This package with one worker and ``schedulers``. ``task``: the name of the function."""

    schedulers: int = 1
    task: str = "stamp"

    def start_late(self, n: int, rate: int, prunable: int = 0, **durable: Any) -> Measured:
        """Measure how late n tasks start, due at ``rate`` a second, while ``prunable`` ended tasks
        are pruned.
        """
        self.servers.clear_broker(self.broker)
        self.run_command("bulk", {"n": 1}, patience(1))
        more: dict[str, float] = {}
        if prunable:
            self._backlog("prunable", {"number": prunable}, patience(prunable))
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            path = Path(folder, "lags")
            variable = self.variable(**durable) | {"BENCHMARK_STAMPS": str(path)}
            loop = [sys.executable, "-m", "django", "run_scheduler"]
            worker = [sys.executable, "-m", "celery", "-A", "benchmarks.project", "worker", *WORKER]
            worker.append(f"bench-{self.servers.run}@%h")
            try:
                with ExitStack() as stack:
                    started = [
                        stack.enter_context(running(command, **variable))
                        for command in (*[loop] * self.schedulers, worker)
                    ]
                    self._warm(variable, path, *started)
                    self._later(variable, n, rate)
                    _await(path, n, rate, *started)
                    size = resident(started[0].pid)
                    if prunable:
                        more["prunable_left"] = self._backlog("left", {}, patience(0))["number"]
                found = stamps.lags(path)
            finally:
                self.servers.clear_broker(self.broker)
        return measured(found, n, rate, scheduler_mib=size, **more)

    def _backlog(self, command: str, given: dict[str, int], seconds: float) -> dict[str, float]:
        return figures(
            [sys.executable, "-m", "benchmarks.backlog", command], given, seconds, **self.variable()
        )

    def _later(self, variable: dict[str, str], n: int, rate: int) -> None:
        command = [sys.executable, "-m", "benchmarks.ours", "later"]
        figures(
            command,
            {"n": n, "rate": rate, "ahead": _AHEAD + n / 2_000, "task": self.task},
            patience(n),
            **variable,
        )

    def _warm(self, variable: dict[str, str], path: Path, *processes: Popen[bytes]) -> None:
        """Run one task first, so that both processes have loaded their code, as with the other
        contenders.
        """
        self._later(variable, 20, 20)
        _await(path, 20, 20, *processes)
        path.write_bytes(b"")


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return round(int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024, 1)


class CeleryLag(BareCelery):
    """Celery's ``eta``: the worker keeps messages that are not due yet in memory."""

    def start_late(self, n: int, rate: int) -> Measured:
        """Measure how late n tasks start, of which ``rate`` per second are due."""
        self.servers.clear_broker(self.broker)
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            path = Path(folder, "lags")
            variable = self.variable() | {"BENCHMARK_STAMPS": str(path)}
            worker = [
                self.python,
                "-m",
                "celery",
                "-A",
                "benchmarks.peers.bare_celery",
                "worker",
                *WORKER,
            ]
            worker += [f"bench-{self.servers.run}@%h", "--prefetch-multiplier=0"]
            later = [self.python, "-m", "benchmarks.peers.bare_celery", "later"]
            try:
                with running(worker, **variable) as process:
                    for number, a_second in ((20, 20), (n, rate)):
                        path.write_bytes(b"")
                        given = {"n": number, "rate": a_second, "ahead": _AHEAD + number / 2_000}
                        figures(later, given, patience(number), **variable)
                        _await(path, number, a_second, process)
                found = stamps.lags(path)
            finally:
                self.servers.clear_broker(self.broker)
        return measured(found, n, rate)


@dataclass
class QueueLag:
    """A contender that uses PostgreSQL as its queue, and whose program has the command ``lag``."""

    queue: DatabaseQueue

    def start_late(self, n: int, rate: int) -> Measured:
        """Measure how late n tasks start, of which ``rate`` per second are due."""
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            path = Path(folder, "lags")
            self.queue.run_command("lag", n, rate=rate, path=str(path))
            return measured(stamps.lags(path), n, rate)


def lag(stage: Stage) -> list[Contender]:
    """Compare how late one-off tasks start at 100 to 1,000 due tasks per second. This package and
    Celery use Redis.
    """
    ours, found = _Variants(stage), list[Contender]()
    for rate in RATES:
        what, n = f"due at {rate}/s", stage.n * (1 if rate == RATES[0] else 2)
        found += ours.contenders(what, n, rate)
        if "celery" in stage.pythons:
            celery = CeleryLag(stage.servers, "redis", stage.pythons["celery"])
            measure = partial(celery.start_late, n, rate)
            found.append(
                a_contender(stage, "lag", what, "celery", "redis", measure, n=n, database=None)
            )
        for name, peer in database_queues(stage).items():
            if name not in _WITHOUT and (rate == RATES[0] or name not in SLOW):
                measure = partial(QueueLag(peer).start_late, n, rate)
                found.append(a_contender(stage, "lag", what, name, None, measure, n=n))
    return found


class _Variants:
    """The contenders of this package. Each kind creates the database once."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._one = OurLag(stage.servers, "redis")
        self._two = OurLag(stage.servers, "redis", schedulers=2)
        self._batches = OurLag(stage.servers, "redis", task="batched_stamp")

    def contenders(self, what: str, n: int, rate: int) -> list[Contender]:
        """Return those of a rate: one scheduler, at the lowest rate also two, at the highest also a
        task that runs in batches.
        """
        measures: dict[str, Callable[[], Measured]] = {what: partial(self._one.start_late, n, rate)}
        if rate == RATES[0]:
            measures[f"{what}, two schedulers"] = partial(self._two.start_late, n, rate)
        if rate == RATES[-1]:
            measures[f"{what}, batches of 100"] = partial(self._batches.start_late, n, rate)
        if prunable := self._stage.prunable:
            beside = partial(self._one.start_late, n, rate, prunable)
            measures[f"{what}, {prunable:,} to prune"] = beside
        return [
            a_contender(self._stage, "lag", title, OURS, "redis", measure, n=n)
            for title, measure in measures.items()
        ]

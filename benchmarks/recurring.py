"""The benchmark of schedules: the throughput, how late each fire time is processed, and the cost of
one tick.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import quantiles

from benchmarks.arrivals import Arrivals, fires, watch
from benchmarks.contenders import UNWORKED, Ours, patience
from benchmarks.contest import OURS, Contender, Measured
from benchmarks.processes import Failed, figures, running
from benchmarks.schedules import ManySchedules
from benchmarks.servers import Servers
from benchmarks.stage import Stage, a_contender

EVERY = 10
"""The interval of each schedule, in seconds."""
WATCHED = 30.0
"""How many seconds the broker is observed, from its first message on."""
DUE_AT_ONCE, TICKS = 100, 20
BEAT = "django-celery-beat"


def _measured(arrivals: Arrivals, rows: int, **facts: float) -> Measured:
    """Return how many seconds the fire times of the observed period take at the observed rate."""
    wanted = rows * WATCHED / EVERY
    rate = arrivals.number / arrivals.seconds
    return Measured(
        wanted / rate if rate else float("inf"), {"wanted_per_second": rows / EVERY, **facts}
    )


class OurRows(Ours):
    """Schedules of this package with one scheduler, on Redis."""

    def keep_up(self, rows: int) -> Measured:
        """Observe the broker while one ``run_scheduler`` processes ``rows`` schedules."""
        self.servers.clear_broker(self.broker)
        self.run_command("recurring", {"n": rows, "every": EVERY}, patience(rows), **UNWORKED)
        queue = self.servers.queue("ours")
        command = [sys.executable, "-m", "django", "run_scheduler"]
        try:
            with running(command, **self.variable(**UNWORKED)) as scheduler:
                arrivals = watch(self.servers, queue, WATCHED, scheduler, patience(rows))
            lags = self._lags(arrivals, queue)
        finally:
            self.servers.clear_broker(self.broker)
        cuts = quantiles(lags, n=100)
        return _measured(
            arrivals,
            rows,
            lag_p50_ms=round(1e3 * cuts[49], 1),
            lag_p99_ms=round(1e3 * cuts[98], 1),
            lag_max_ms=round(1e3 * lags[-1], 1),
        )

    def _lags(self, arrivals: Arrivals, queue: str) -> list[float]:
        """Return how many seconds late each message arrived, in ascending order. Raises Failed if a
        fire time was published twice.
        """
        seen, lags = set(), []
        for position, (fire, due) in enumerate(fires(self.servers, queue, arrivals.lengths[-1])):
            seen.add(fire)
            lags.append(arrivals.instant(position) - due)
        if len(seen) != len(lags):
            raise Failed(f"{len(lags)} messages were published for {len(seen)} fires")
        return sorted(lags)

    def tick(self, rows: int) -> float:
        """Time one tick with 100 due schedules of ``rows``; the median of twenty."""
        given = {"n": rows, "due": DUE_AT_ONCE, "ticks": TICKS}
        return self.run_command("tick", given, patience(rows), **UNWORKED)


@dataclass
class Beat:
    """django-celery-beat on PostgreSQL and Redis."""

    servers: Servers
    python: str
    variables: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.variables = {
            "BENCHMARK_DATABASE": self.servers.database("beat"),
            "BENCHMARK_BROKER": self.servers.broker("redis"),
            "BENCHMARK_QUEUE": self.servers.queue("beat"),
            "DJANGO_SETTINGS_MODULE": "benchmarks.peers.beat.settings",
        }

    def keep_up(self, rows: int) -> Measured:
        """Observe the broker while one beat processes ``rows`` periodic tasks."""
        self.servers.clear_broker("redis")
        self.servers.make_database("beat")
        fill = [self.python, "-m", "benchmarks.peers.beat.rows", "prepare"]
        figures(fill, {"n": rows, "every": EVERY}, patience(rows), **self.variables)
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            command = [
                self.python,
                "-m",
                "celery",
                "-A",
                "benchmarks.peers.beat.app",
                "beat",
                "-l",
                "ERROR",
            ]
            command += ["--pidfile", "", "-s", str(Path(folder, "schedule"))]
            try:
                with running(command, **self.variables) as beat:
                    arrivals = watch(
                        self.servers, self.servers.queue("beat"), WATCHED, beat, patience(rows)
                    )
            finally:
                self.servers.clear_broker("redis")
        return _measured(arrivals, rows)


def sizes(n: int) -> tuple[int, ...]:
    """Return the numbers of schedules with which ticks are timed: for n = 50,000, from a thousand
    to a million.
    """
    return n // 50, 2 * n, 20 * n


def recurring(stage: Stage) -> list[Contender]:
    """Compare n, and n/5, schedules that are due every ten seconds, and time ticks of this package.
    With ``--new`` or ``--period`` measure those instead. On Redis.
    """
    if stage.new_schedules or stage.period:
        return _of_many_schedules(stage)
    ours, found = OurRows(stage.servers, "redis"), []
    beat = Beat(stage.servers, stage.pythons[BEAT]) if BEAT in stage.pythons else None
    for rows in (stage.n // 5, stage.n):
        what, wanted = f"{rows:,} rows every {EVERY} s", round(rows * WATCHED / EVERY)
        found.append(
            a_contender(
                stage, "recurring", what, OURS, "redis", partial(ours.keep_up, rows), n=wanted
            )
        )
        if beat is not None:
            found.append(
                a_contender(
                    stage, "recurring", what, BEAT, "redis", partial(beat.keep_up, rows), n=wanted
                )
            )
    for rows in sizes(stage.n):
        what = f"a tick, {DUE_AT_ONCE} rows due of {rows:,}"
        found.append(
            a_contender(
                stage, "recurring", what, OURS, None, partial(ours.tick, rows), n=DUE_AT_ONCE
            )
        )
    return found


def _of_many_schedules(stage: Stage) -> list[Contender]:
    ours, found = ManySchedules(stage.servers, "redis"), list[Contender]()
    if new := stage.new_schedules:
        what, measure = f"{new:,} new schedules due at once", partial(ours.beside_new, new)
        found.append(a_contender(stage, "recurring", what, OURS, "redis", measure, n=new))
    if stage.period:
        what = f"{stage.n:,} rows every {stage.period} s"
        measure = partial(ours.whole_period, stage.n, stage.period)
        found.append(a_contender(stage, "recurring", what, OURS, "redis", measure))
    return found

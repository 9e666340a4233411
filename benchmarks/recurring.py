"""The benchmark of recurring rows: who keeps up with them, how late each fire is, and what one tick
costs.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

from benchmarks.arrivals import Arrivals, fires, watch
from benchmarks.contenders import Ours, patience
from benchmarks.contest import Measured
from benchmarks.processes import Failed, figures, running
from benchmarks.servers import Servers

EVERY = 10
"""Each row is due every so many seconds."""
WATCHED = 30.0
"""For so long (seconds) the broker is watched from its first message on."""
DUE_AT_ONCE, TICKS = 100, 20
# Without workers nothing ends: no window may close, and what nobody starts is not republished while
# we watch.
UNWORKED = {"QUEUE_WINDOW": 10_000_000, "REPUBLISH_AFTER": 3_600, "REPUBLISH_AFTER_MAX": 3_600}


def _measured(arrivals: Arrivals, rows: int, **facts: float) -> Measured:
    """Return what the fires that were wanted while we watched take at the rate that was seen."""
    wanted = rows * WATCHED / EVERY
    rate = arrivals.number / arrivals.seconds
    return Measured(
        wanted / rate if rate else float("inf"), {"wanted_per_second": rows / EVERY, **facts}
    )


class OurRows(Ours):
    """Our recurring rows, one scheduler, Redis."""

    def keep_up(self, rows: int) -> Measured:
        """Watch the broker while one ``run_scheduler`` serves so many rows."""
        self.servers.clear_broker(self.broker)
        self.tell("recurring", {"n": rows, "every": EVERY}, patience(rows), **UNWORKED)
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
        """Return how late (seconds) each message came, the least first; raises Failed when a fire
        came twice.
        """
        seen, lags = set(), []
        for position, (fire, due) in enumerate(fires(self.servers, queue, arrivals.lengths[-1])):
            seen.add(fire)
            lags.append(arrivals.instant(position) - due)
        if len(seen) != len(lags):
            raise Failed(f"{len(lags)} messages were published for {len(seen)} fires")
        return sorted(lags)

    def tick(self, rows: int) -> float:
        """Time one tick with 100 due rows among so many: the median of twenty."""
        given = {"n": rows, "due": DUE_AT_ONCE, "ticks": TICKS}
        return self.tell("tick", given, patience(rows), **UNWORKED)


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
        """Watch the broker while one beat serves so many rows."""
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
    """Return how many rows lie in the tables that ticks are timed on: for n = 50,000 a thousand up
    to a million.
    """
    return n // 50, 2 * n, 20 * n

"""The benchmarks of many schedules: a whole period of them, and many new ones that are due at once."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import quantiles
from subprocess import Popen
from typing import Any

import psycopg

from benchmarks.accounting import snapshot
from benchmarks.arrivals import Arrivals, messages, watch
from benchmarks.contenders import UNWORKED, Ours, patience
from benchmarks.contest import Measured
from benchmarks.lag import resident
from benchmarks.ours import FIRST_NEW
from benchmarks.processes import Failed, running

EXISTING, EVERY, ONE_OFF_RATE = 1_000, 10, 50
"""The schedules beside the new ones, their interval, and the one-off tasks a second."""
_BEFORE, _AFTER = 20.0, 20.0
_WARM_UP = 5.0
_NEW_EVERY = 3_600
_READ_EVERY = 5.0
_TASKS = "SELECT id, extract(epoch FROM run_at)::float8 FROM durable_tasks_task WHERE recurring_task_id IS NULL"
_TERM = "SELECT coalesce(max(term), 0) FROM durable_tasks_scheduler_lease"


@dataclass(frozen=True)
class Arrival:
    """One message: when it arrived and when it was due (Unix time), and whose it is."""

    at: float
    due: float
    of: str


class ManySchedules(Ours):
    """Schedules of this package with one scheduler, on Redis, without a worker."""

    def beside_new(self, new: int) -> Measured:
        """Measure how late 1,000 schedules and one-off tasks are published before, while and after
        ``new`` schedules that are due at once fire for the first time.
        """
        within = patience(new)
        seconds = _BEFORE + new / 2_500 + _AFTER
        self.servers.clear_broker(self.broker)
        given: dict[str, Any] = {"n": EXISTING, "every": EVERY}
        self.run_command("recurring", given, within, **UNWORKED)
        ahead = {"n": round(ONE_OFF_RATE * seconds), "rate": ONE_OFF_RATE, "ahead": 5.0}
        self.run_command("later", ahead, within, **UNWORKED)
        given = {"n": new, "every": _NEW_EVERY, "after": _BEFORE}
        with self._scheduler() as (scheduler, look), ThreadPoolExecutor(1) as pool:
            insert = pool.submit(self.run_command, "new_schedules", given, within, **UNWORKED)
            found = self._watched(scheduler, seconds, within)
            due = insert.result()
            facts = look()
        first = [one for one in found if one.of == "new"]
        if len(first) != new:
            raise Failed(f"{len(first)} of {new} new schedules fired within {seconds:g} s")
        last = max(one.at for one in first)
        for name, low, high in (
            ("before", found[0].at + _WARM_UP, due),
            ("while", due, last),
            ("after", last + 1.0, float("inf")),
        ):
            for of in ("existing", "one_off"):
                lags = [one.at - one.due for one in found if one.of == of and low <= one.due < high]
                facts |= _quantiles(lags, f"{of}_{name}_")
        return Measured(last - due, facts)

    def whole_period(self, rows: int, every: int) -> Measured:
        """Observe the broker for one period of ``rows`` schedules that fire every ``every``
        seconds.
        """
        within, ahead = patience(rows), 10 + rows / 7_000
        self.servers.clear_broker(self.broker)
        given = {"n": rows, "every": every, "ahead": ahead}
        inserted = self.run_command("recurring", given, within, **UNWORKED)
        with self._scheduler() as (scheduler, look):
            found = self._watched(scheduler, float(every), within)
            facts = look()
        fires = sorted(one.at for one in found)
        facts |= _quantiles([one.at - one.due for one in found], "lag_")
        quarter = every / 4
        for part in range(4):
            low = fires[0] + part * quarter
            lags = [one.at - one.due for one in found if low <= one.at < low + quarter]
            facts[f"quarter_{part + 1}_p99_ms"] = _quantiles(lags, "")["p99_ms"]
        facts |= {"insert_s": round(inserted, 1), "wanted_per_second": round(rows / every, 1)}
        facts["longest_gap_ms"] = round(1e3 * max(b - a for a, b in pairwise(fires)), 1)
        return Measured(rows * (fires[-1] - fires[0]) / len(fires), facts)

    @contextmanager
    def _scheduler(self) -> Iterator[tuple[Popen[bytes], Callable[[], dict[str, float]]]]:
        """Run a scheduler; the function returns its memory, processor time and changes of term."""
        command = [sys.executable, "-m", "django", "run_scheduler"]
        try:
            with running(command, **self.variable(**UNWORKED)) as scheduler:
                memory, stop = list[float](), threading.Event()
                reader = threading.Thread(
                    target=_read_memory, args=(scheduler, memory, stop), daemon=True
                )
                reader.start()
                began, terms = time.time(), self._read(_TERM)

                def look() -> dict[str, float]:
                    used = snapshot()[scheduler.pid].seconds
                    term = self._read(_TERM)[0][0] - terms[0][0]
                    return {
                        "scheduler_mib": memory[-1],
                        "scheduler_max_mib": max(memory),
                        "scheduler_cpu_percent": round(100 * used / (time.time() - began), 1),
                        "terms": term,
                    }

                try:
                    yield scheduler, look
                finally:
                    stop.set()
        finally:
            self.servers.clear_broker(self.broker)

    def _read(self, question: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.servers.database("ours"), autocommit=True) as database:
            return database.execute(question.encode()).fetchall()

    def _watched(self, scheduler: Popen[bytes], seconds: float, within: float) -> list[Arrival]:
        """Return the messages that arrived; raises Failed if one was published twice."""
        queue = self.servers.queue("ours")
        arrivals = watch(self.servers, queue, seconds, scheduler, within)
        due = {str(key): at for key, at in self._read(_TASKS)}
        keys = list(messages(self.servers, queue, arrivals.lengths[-1]))
        if len(set(keys)) != len(keys):
            raise Failed(f"{len(keys)} messages were published for {len(set(keys))} tasks")
        return list(_arrived(arrivals, keys, due))


def _arrived(
    arrivals: Arrivals, keys: Sequence[str], due: Mapping[str, float]
) -> Iterator[Arrival]:
    for position, key in enumerate(keys):
        schedule, _, fire = key.partition("/")
        at = arrivals.instant(position)
        if not fire:
            yield Arrival(at, due[key], "one_off")
        else:
            number = uuid.UUID(schedule).int & 0xFFFF_FFFF_FFFF
            of = "existing" if number < FIRST_NEW else "new"
            yield Arrival(at, datetime.fromisoformat(fire).timestamp(), of)


def _read_memory(process: Popen[bytes], memory: list[float], stop: threading.Event) -> None:
    while process.poll() is None and not stop.is_set():
        memory.append(resident(process.pid))
        stop.wait(_READ_EVERY)


def _quantiles(lags: Sequence[float], prefix: str) -> dict[str, float]:
    """Return the median, the 99th percentile and the largest of these lags, in milliseconds."""
    if len(lags) < 2:
        raise Failed("Too few messages arrived: the measured time ended too early")
    cuts = quantiles(lags, n=100)
    found = {"p50_ms": cuts[49], "p99_ms": cuts[98], "max_ms": max(lags)}
    return {f"{prefix}{name}": round(1e3 * lag, 1) for name, lag in found.items()}

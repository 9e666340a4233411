"""The benchmark of HTTP callbacks: one worker process with ten threads, and a server that answers
after 50 ms.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

import psycopg

from benchmarks.contenders import Ours, patience
from benchmarks.contest import Measured
from benchmarks.lag import measured
from benchmarks.processes import running, wait_until

PAUSE, THREADS, RATE = 0.05, 10, 20
HANGING, HANGING_TIMEOUT, ENDPOINT_CONCURRENCY = 300, 5, 4
"""The number of callbacks to the server that does not answer, their timeout in seconds, and how
many may run at the same time.
"""
KILL_EVERY, SCHEDULER_EVERY = 15.0, 3
"""Seconds between two kills of the worker, and every which of them kills the scheduler too."""
_NO_ANSWER = 3_600.0
_WARM = 20
_AHEAD = 4.0
_WORKER = ["-P", "threads", "-c", str(THREADS), "-l", "WARNING"]
_WORKER += ["--without-gossip", "--without-mingle", "--without-heartbeat", "-n"]
_DONE = "SELECT count(*) FROM durable_tasks_execution_log WHERE status = 'SUCCESS'"
_ENDED = "SELECT id::text, status FROM durable_tasks_task WHERE completed_at IS NOT NULL"
_COSTS = ("worker", "scheduler", "postgresql")
_SPAN = """
    SELECT extract(epoch FROM max(completed_at) - min(started_at))::float8
      FROM (SELECT started_at, completed_at FROM durable_tasks_execution_log
             WHERE status = 'SUCCESS' ORDER BY id DESC LIMIT %s) AS measured
"""


@dataclass(frozen=True)
class _Running:
    """The running processes of a measurement."""

    url: str
    lags: Path
    hanging_url: str
    durable: dict[str, Any]
    scheduler: Popen[bytes]
    worker: Popen[bytes]
    database: psycopg.Connection
    loop: list[str]
    program: list[str]

    def done(self) -> int:
        """Return how many callbacks succeeded, without those before the measurement."""
        found = self.database.execute(_DONE).fetchone() or (0,)
        return int(found[0]) - _WARM


class Callbacks(Ours):
    """This package with a scheduler, a worker and a slow server."""

    def throughput(self, n: int) -> Measured:
        """Time n callbacks that are due at once, from the first start to the last success."""
        with self._running() as now:
            known = {now.scheduler.pid: "scheduler", now.worker.pid: "worker"}
            with self.accounts.of(known) as look:
                self._schedule(n, now.url, now.durable)
                self._await(n, now, look)
            row = now.database.execute(_SPAN, [n]).fetchone() or (0.0,)
            figures = {f"{name}_cpu_ms": self.accounts.ms(name) for name in _COSTS}
        return Measured(float(row[0]), figures)

    def start_late(self, n: int) -> Measured:
        """Measure how late n requests arrive that are due at a low rate."""
        with self._running() as now:
            now.lags.write_text("")
            self._schedule(n, now.url, now.durable, rate=RATE, ahead=_AHEAD)
            self._await(n, now, int)
            found = sorted(float(line) for line in now.lags.read_text().split())
        return measured(found, n, RATE)

    def beside_a_hanging_server(self, n: int) -> Measured:
        """Measure how late n requests arrive that are due at a low rate, alone and while callbacks to
        another server wait for answers that never come.
        """
        found = []
        with self._running(HTTP_ENDPOINT_CONCURRENCY=ENDPOINT_CONCURRENCY) as now:
            for hanging in (0, HANGING):
                now.lags.write_text("")
                if hanging:
                    self._schedule(hanging, now.hanging_url, now.durable, timeout=HANGING_TIMEOUT)
                self._schedule(n, now.url, now.durable, rate=RATE, ahead=_AHEAD)
                wait_until(
                    lambda: len(now.lags.read_text().splitlines()) >= n,
                    now.scheduler,
                    now.worker,
                    within=patience(n) + n / RATE,
                )
                found.append(sorted(float(line) for line in now.lags.read_text().split()))
        alone, beside = (measured(lags, n, RATE) for lags in found)
        more = {f"alone_{name}": value for name, value in alone.facts.items()}
        return Measured(beside.seconds, {**beside.facts, **more})

    def under_kills(self, n: int) -> Measured:
        """Kill and replace the worker every 15 seconds, and the scheduler at every third time,
        while n callbacks are sent. Return how many were lost: those that did not succeed or did not
        arrive. A request may arrive again after a kill, with the same id.
        """
        with self._running() as now, ExitStack() as replaced:
            self._schedule(n, now.url, now.durable)
            began, kills = time.monotonic(), self._kill_until_done(n, now, replaced)
            seconds = time.monotonic() - began
            succeeded = {
                task for task, status in now.database.execute(_ENDED) if status == "SUCCESS"
            }
            arrived = now.lags.with_suffix(".ids").read_text().split()
        facts: dict[str, float] = {
            "lost": n + _WARM - len(succeeded & set(arrived)),
            "repeated": len(arrived) - len(set(arrived)),
            "kills": kills,
        }
        return Measured(seconds, facts)

    def _kill_until_done(self, n: int, now: _Running, replaced: ExitStack) -> int:
        """Kill until every callback has succeeded; return how many processes were killed."""
        programs, kills, variable = [now.worker, now.scheduler], 0, self.variable(**now.durable)
        deadline, turn = time.monotonic() + patience(n), 0
        while now.done() < n:
            if time.monotonic() > deadline:
                break  # what is open is reported as lost
            self._await_kill(n, now)
            if now.done() >= n:
                break
            turn += 1
            for place in range(1 + (turn % SCHEDULER_EVERY == 0)):
                os.killpg(programs[place].pid, signal.SIGKILL)
                command = now.loop if place else now.program
                programs[place] = replaced.enter_context(running(command, **variable))
                kills += 1
        return kills

    def _await_kill(self, n: int, now: _Running) -> None:
        at = time.monotonic() + KILL_EVERY
        wait_until(
            lambda: now.done() >= n or time.monotonic() > at, within=2 * KILL_EVERY, every=0.1
        )

    def _schedule(self, n: int, url: str, durable: dict[str, Any], **more: float) -> None:
        self.run_command("callbacks", {"n": n, "url": url, **more}, patience(n), **durable)

    def _await(self, n: int, now: _Running, look: Callable[[int], int]) -> None:
        wait_until(
            lambda: look(now.done()) >= n, now.scheduler, now.worker, within=patience(n), every=0.1
        )

    @contextmanager
    def _running(self, **durable: Any) -> Iterator[_Running]:
        """Start all processes and send some callbacks first, so that their code is loaded."""
        self.servers.clear_broker(self.broker)
        self.prepare()
        with _slow_server(PAUSE) as (host, lags), _slow_server(_NO_ANSWER) as (hanging, _):
            durable |= {"HTTP_ALLOW": [host, hanging], "HTTP_SIGNING_KEYS": ["k" * 40]}
            self.run_command("bulk", {"n": 0}, patience(0))  # empty tables
            try:
                yield from self._workers(host, lags, hanging, durable)
            finally:
                self.servers.clear_broker(self.broker)

    def _workers(
        self, host: str, lags: Path, hanging: str, durable: dict[str, Any]
    ) -> Iterator[_Running]:
        loop = [sys.executable, "-m", "django", "run_scheduler"]
        program = [sys.executable, "-m", "celery", "-A", "benchmarks.project", "worker", *_WORKER]
        program.append(f"bench-{self.servers.run}@%h")
        variable = self.variable(**durable)
        with (
            running(loop, **variable) as scheduler,
            running(program, **variable) as worker,
            psycopg.connect(self.servers.database(self.name), autocommit=True) as database,
        ):
            urls = f"http://{host}/", f"http://{hanging}/"
            now = _Running(
                urls[0], lags, urls[1], durable, scheduler, worker, database, loop, program
            )
            self._schedule(_WARM, now.url, durable)
            self._await(0, now, int)
            yield now


@contextmanager
def _slow_server(pause: float) -> Iterator[tuple[str, Path]]:
    """Run a server that answers after ``pause`` seconds. Yield its host with its port, and the file
    with the lags of its requests.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = Path(folder, "port")
        given = json.dumps({"path": str(path), "pause": pause})
        with running([sys.executable, "-m", "benchmarks.peers.slow_server", given]) as server:
            wait_until(path.exists, server, within=30)
            yield f"127.0.0.1:{path.read_text()}", Path(f"{path}.lags")

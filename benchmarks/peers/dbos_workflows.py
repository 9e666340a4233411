"""DBOS in its own environment: ``python -m benchmarks.peers.dbos_workflows COMMAND '{"n": 1000}'``.

It has no call that enqueues several workflows in one statement, so it has no command ``bulk``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from dbos import DBOS, DBOSClient, Queue

from benchmarks.peers import stamps
from benchmarks.peers.instants import instants

_DATABASE = os.environ["BENCHMARK_DATABASE"]
_QUEUE, _VERSION, _POLLING = "bench", "bench", 0.05
_EMPTY = "TRUNCATE dbos.workflow_status CASCADE"
_ENDED = """
    SELECT count(*), (max(completed_at) - min(started_at_epoch_ms)) / 1000.0
    FROM dbos.workflow_status WHERE status = 'SUCCESS'
"""


@DBOS.workflow()
def noop(n: int) -> None:
    """Do nothing."""


@DBOS.workflow()
def stamp(due: float, path: str) -> None:
    """Record how late it starts."""
    stamps.stamp(path, due)


@contextmanager
def _launched() -> Iterator[Queue]:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": _DATABASE,
            "application_version": _VERSION,
            "log_level": "ERROR",
            "run_admin_server": False,
        }
    )
    DBOS.launch()
    try:
        yield DBOS.register_queue(_QUEUE, polling_interval_sec=_POLLING)
    finally:
        DBOS.destroy()


def _prepare() -> float:
    with _launched():
        return 0.0


def _enqueued(
    workflow: str, arguments: Sequence[tuple[Any, ...]], waits: Sequence[float] = ()
) -> float:
    """Enqueue without a worker; return the seconds. ``waits``: the delays of the workflows."""
    with psycopg.connect(_DATABASE, autocommit=True) as connection:
        connection.execute(_EMPTY)
    client = DBOSClient(system_database_url=_DATABASE)
    options: Any = {"queue_name": _QUEUE, "workflow_name": workflow, "app_version": _VERSION}
    began = time.perf_counter()
    for number, given in enumerate(arguments):
        more = {"delay_seconds": waits[number]} if waits else {}
        client.enqueue(options | more, *given)
    seconds = time.perf_counter() - began
    client.destroy()
    return seconds


def _enqueue(n: int) -> float:
    return _enqueued("noop", [(number,) for number in range(n)])


def _run(n: int, concurrency: int) -> float:
    """Time the runs by the times that DBOS records, from the first start to the last success."""
    _enqueue(n)
    with _launched() as queue, psycopg.connect(_DATABASE, autocommit=True) as connection:
        queue.set_worker_concurrency(concurrency)
        while True:
            number, seconds = connection.execute(_ENDED).fetchone() or (0, 0)
            if number >= n:
                return float(seconds)
            time.sleep(0.1)


def _lag(n: int, rate: int, path: str) -> float:
    began = time.perf_counter()
    # All must be enqueued before the first is due, and each has a transaction of its own.
    due, now = instants(n, rate, 4 + n / 200), time.time()
    waits = [instant - now for instant in due]
    with _launched():
        _enqueued("stamp", [(instant, path) for instant in due], waits)
        while stamps.number(Path(path)) < n:
            time.sleep(0.2)
    return time.perf_counter() - began


COMMANDS: dict[str, Callable[..., float]] = {
    "prepare": _prepare,
    "enqueue": _enqueue,
    "run": _run,
    "lag": _lag,
}

if __name__ == "__main__":
    print(json.dumps({"seconds": COMMANDS[sys.argv[1]](**json.loads(sys.argv[2]))}))

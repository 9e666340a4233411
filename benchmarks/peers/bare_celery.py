"""Celery without this package, in its own environment: the application of the worker, and a
program.

Run ``python -m benchmarks.peers.bare_celery publish '{"n": 1000}'`` to publish.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from celery import Celery

from benchmarks.peers import stamps
from benchmarks.peers.instants import instants
from benchmarks.peers.tally import Tally

app = Celery("bare_celery", broker=os.environ["BENCHMARK_BROKER"])
app.conf.update(
    task_ignore_result=True,
    task_default_queue=os.environ["BENCHMARK_QUEUE"],
    broker_connection_retry_on_startup=True,
)
tally = Tally(os.environ.get("BENCHMARK_TALLY", ""))


@app.task(name="noop")
def noop(n: int, pause: float = 0.0) -> None:
    """Do nothing, for ``pause`` seconds; the call is counted."""
    began = time.monotonic()
    if pause:
        time.sleep(pause)
    tally.add(began)


@app.task(name="stamp")
def stamp(due: float) -> None:
    """Record how late it starts."""
    stamps.stamp(os.environ["BENCHMARK_STAMPS"], due)


def later(n: int, rate: int, ahead: float) -> float:
    """Publish n tasks with an ``eta``, ``rate`` per second, the first in ``ahead`` seconds."""
    began = time.perf_counter()
    for due in instants(n, rate, ahead):
        stamp.apply_async((due,), eta=datetime.fromtimestamp(due, UTC))
    return time.perf_counter() - began


def publish(n: int, pause: float = 0.0) -> float:
    """Call ``.delay()`` n times. ``pause``: how long each function runs (seconds)."""
    for number in range(50):
        noop.delay(number)
    app.control.purge()
    arguments = (pause,) if pause else ()
    began = time.perf_counter()
    for number in range(n):
        noop.delay(number, *arguments)
    return time.perf_counter() - began


if __name__ == "__main__":
    commands: dict[str, Callable[..., float]] = {"publish": publish, "later": later}
    print(json.dumps({"seconds": commands[sys.argv[1]](**json.loads(sys.argv[2]))}))

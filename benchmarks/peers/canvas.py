"""Celery's own canvas with a Redis result backend: the app of its worker, and a program that starts
a canvas.

Run ``python -m benchmarks.peers.canvas start '{"shape": "chain", "n": 1000}'`` to start one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from celery import Celery, chain, chord, group

from benchmarks.peers.tally import Tally

app = Celery(
    "canvas", broker=os.environ["BENCHMARK_BROKER"], backend=os.environ["BENCHMARK_BROKER"]
)
app.conf.update(
    task_default_queue=os.environ["BENCHMARK_QUEUE"], broker_connection_retry_on_startup=True
)
tally = Tally(os.environ.get("BENCHMARK_TALLY", ""))
_WITHIN = 60.0


@app.task(name="noop")
def noop(n: int) -> None:
    """Do nothing; the call is counted."""
    tally.add()


def _canvas(shape: str, n: int) -> Any:
    if shape == "fan-in":
        return chord([noop.si(number) for number in range(n - 1)], noop.si(n))
    if shape == "fan-out":
        return chain(noop.si(0), group(noop.si(number) for number in range(1, n)))
    return chain(*(noop.si(number) for number in range(n)))


def _wait_for_worker() -> None:
    deadline = time.monotonic() + _WITHIN
    while not app.control.ping(timeout=0.5):
        if time.monotonic() > deadline:
            raise TimeoutError(f"No worker answered within {_WITHIN:g} s")


def start(shape: str, n: int) -> dict[str, float]:
    """Start a canvas of n tasks as soon as the worker answers. Return when it started (monotonic
    clock) and how long the start took.
    """
    canvas = _canvas(shape, n)
    _wait_for_worker()
    began = time.monotonic()
    canvas.apply_async()
    return {"began": began, "seconds": time.monotonic() - began}


if __name__ == "__main__":
    sys.setrecursionlimit(100_000)
    print(json.dumps(start(**json.loads(sys.argv[2]))))

"""procrastinate in its own environment: ``python -m benchmarks.peers.procrastinate_jobs COMMAND
'{"n": 1000}'``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import procrastinate

from benchmarks.peers import stamps
from benchmarks.peers.instants import instants

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCHMARK_DATABASE"])
)
_first: list[float] = []


@app.task(name="stamp", queue="bench")
async def stamp(due: float, path: str) -> None:
    """Record how late it starts."""
    stamps.stamp(path, due)


@app.task(name="noop", queue="bench")
async def noop(n: int) -> None:
    """Do nothing except record the first start."""
    if not _first:
        _first.append(time.monotonic())


async def _prepare() -> float:
    await app.schema_manager.apply_schema_async()
    return 0.0


async def _truncate() -> None:
    await app.connector.execute_query_async(
        "TRUNCATE procrastinate_jobs, procrastinate_events, procrastinate_periodic_defers RESTART"
        " IDENTITY CASCADE"
    )


async def _enqueue(n: int) -> float:
    await _truncate()
    for number in range(50):
        await noop.defer_async(n=number)
    began = time.perf_counter()
    for number in range(n):
        await noop.defer_async(n=number)
    return time.perf_counter() - began


async def _bulk(n: int) -> float:
    await _truncate()
    began = time.perf_counter()
    await noop.batch_defer_async(*[{"n": number} for number in range(n)])
    return time.perf_counter() - began


async def _run(n: int, concurrency: int) -> float:
    await _bulk(n)
    await app.run_worker_async(wait=False, concurrency=concurrency, install_signal_handlers=False)
    return time.monotonic() - _first[0]


async def _lag(n: int, rate: int, path: str) -> float:
    await _truncate()
    began = time.monotonic()
    worker = asyncio.create_task(
        app.run_worker_async(concurrency=20, install_signal_handlers=False)
    )
    for due in instants(n, rate, 4 + n / 500):
        await stamp.configure(schedule_at=datetime.fromtimestamp(due, UTC)).defer_async(
            due=due, path=path
        )
    while stamps.number(Path(path)) < n:  # noqa: ASYNC110 - other processes write the file
        await asyncio.sleep(0.2)
    worker.cancel()
    return time.monotonic() - began


COMMANDS: dict[str, Callable[..., Awaitable[float]]] = {
    "prepare": _prepare,
    "enqueue": _enqueue,
    "bulk": _bulk,
    "run": _run,
    "lag": _lag,
}


async def main(command: str, given: dict[str, Any]) -> None:
    """Run one command and print its seconds."""
    async with app.open_async():
        seconds = await COMMANDS[command](**given)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))

"""pgqueuer in its own environment: ``python -m benchmarks.peers.pgqueuer_jobs COMMAND '{"n":
1000}'``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgPoolDriver

from benchmarks.peers import stamps
from benchmarks.peers.instants import instants

_BATCH = 1_000


async def _prepare(pool: Any) -> float:
    await Queries(AsyncpgPoolDriver(pool)).install()
    return 0.0


async def _empty(pool: Any) -> Queries:
    await pool.execute("TRUNCATE pgqueuer RESTART IDENTITY CASCADE")
    return Queries(AsyncpgPoolDriver(pool))


async def _enqueue(pool: Any, n: int) -> float:
    queries = await _empty(pool)
    for _ in range(50):
        await queries.enqueue("noop", b"0")
    began = time.perf_counter()
    for number in range(n):
        await queries.enqueue("noop", str(number).encode())
    return time.perf_counter() - began


async def _bulk(pool: Any, n: int) -> float:
    queries = await _empty(pool)
    began = time.perf_counter()
    for start in range(0, n, _BATCH):
        part = range(start, min(n, start + _BATCH))
        payloads: list[bytes | None] = [str(number).encode() for number in part]
        await queries.enqueue(["noop"] * len(part), payloads, [0] * len(part))
    return time.perf_counter() - began


async def _run(pool: Any, n: int, concurrency: int) -> float:
    """Time the runs from the first start until none is left. ``concurrency``: the batch size."""
    await _bulk(pool, n)
    application = PgQueuer(AsyncpgPoolDriver(pool))
    ran, first = 0, 0.0

    @application.entrypoint("noop")
    async def noop(job: Any) -> None:
        nonlocal ran, first
        first, ran = first or time.monotonic(), ran + 1
        if ran == n:
            application.shutdown.set()

    await application.run(batch_size=concurrency)
    return time.monotonic() - first


async def _lag(pool: Any, n: int, rate: int, path: str) -> float:
    queries = await _empty(pool)
    began = time.monotonic()
    application = PgQueuer(AsyncpgPoolDriver(pool))

    @application.entrypoint("stamp")
    async def stamp(job: Any) -> None:
        stamps.stamp(path, float(job.payload))
        if stamps.number(Path(path)) >= n:
            application.shutdown.set()

    due, now = instants(n, rate, 4 + n / 2_000), time.time()
    waits = [timedelta(seconds=instant - now) for instant in due]
    payloads: list[bytes | None] = [str(instant).encode() for instant in due]
    await queries.enqueue(["stamp"] * n, payloads, [0] * n, waits)
    await application.run(batch_size=10)
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
    pool = await asyncpg.create_pool(os.environ["BENCHMARK_DATABASE"], min_size=4, max_size=20)
    seconds = await COMMANDS[command](pool, **given)
    await pool.close()
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))

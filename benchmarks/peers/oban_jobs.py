"""oban-py in its own environment: ``python -m benchmarks.peers.oban_jobs COMMAND '{"n": 1000}'``."""

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

from oban import Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

from benchmarks.peers import stamps
from benchmarks.peers.instants import instants

_BATCH = 1_000
_runs: list[float] = []


@worker(queue="default")
class _Noop:
    async def process(self, job: Any) -> None:
        """Do nothing except record the first start and the number of starts."""
        _runs.append(time.perf_counter())


_new: Callable[[dict[str, int]], Any] = _Noop.new  # type: ignore[attr-defined]  # the decorator adds it


@worker(queue="default")
class _Stamp:
    async def process(self, job: Any) -> None:
        """Record how late it starts."""
        stamps.stamp(job.args["path"], job.args["due"])


_stamp: Callable[..., Any] = _Stamp.new  # type: ignore[attr-defined]


async def _prepare(pool: AsyncConnectionPool) -> float:
    await install(pool)
    return 0.0


async def _sender(pool: AsyncConnectionPool) -> Oban:
    async with pool.connection() as connection:
        await connection.execute("TRUNCATE oban_jobs RESTART IDENTITY CASCADE")
    oban = Oban(pool=pool, queues={}, name="sender")
    await oban.start()
    return oban


async def _enqueue(pool: AsyncConnectionPool, n: int) -> float:
    oban = await _sender(pool)
    for number in range(50):
        await oban.enqueue(_new({"n": number}))
    began = time.perf_counter()
    for number in range(n):
        await oban.enqueue(_new({"n": number}))
    seconds = time.perf_counter() - began
    await oban.stop()
    return seconds


async def _bulk(pool: AsyncConnectionPool, n: int) -> float:
    oban = await _sender(pool)
    began = time.perf_counter()
    for start in range(0, n, _BATCH):
        await oban.enqueue_many(
            [_new({"n": number}) for number in range(start, min(n, start + _BATCH))]
        )
    seconds = time.perf_counter() - began
    await oban.stop()
    return seconds


async def _run(pool: AsyncConnectionPool, n: int, concurrency: int) -> float:
    """Time the runs from the first start until all are recorded as completed."""
    await _bulk(pool, n)
    oban = Oban(pool=pool, queues={"default": concurrency}, name="worker")
    await oban.start()
    async with pool.connection() as connection:
        await connection.set_autocommit(True)
        while len(_runs) < n or await _completed(connection) < n:  # noqa: ASYNC110 - it is a query
            await asyncio.sleep(0.02)
        seconds = time.perf_counter() - _runs[0]
        await connection.set_autocommit(False)
    await oban.stop()
    return seconds


async def _completed(connection: Any) -> int:
    found = await connection.execute("SELECT count(*) FROM oban_jobs WHERE state = 'completed'")
    return int((await found.fetchone())[0])


async def _lag(pool: AsyncConnectionPool, n: int, rate: int, path: str) -> float:
    await (await _sender(pool)).stop()
    began = time.perf_counter()
    oban = Oban(pool=pool, queues={"default": 50}, name="worker")
    await oban.start()
    jobs = [
        _stamp({"due": due, "path": path}, scheduled_at=datetime.fromtimestamp(due, UTC))
        for due in instants(n, rate, 4 + n / 2_000)
    ]
    for start in range(0, n, _BATCH):
        await oban.enqueue_many(jobs[start : start + _BATCH])
    while stamps.number(Path(path)) < n:  # noqa: ASYNC110 - other processes write the file
        await asyncio.sleep(0.2)
    await oban.stop()
    return time.perf_counter() - began


COMMANDS: dict[str, Callable[..., Awaitable[float]]] = {
    "prepare": _prepare,
    "enqueue": _enqueue,
    "bulk": _bulk,
    "run": _run,
    "lag": _lag,
}


async def main(command: str, given: dict[str, Any]) -> None:
    """Run one command and print its seconds."""
    pool = AsyncConnectionPool(
        os.environ["BENCHMARK_DATABASE"], min_size=4, max_size=20, open=False
    )
    await pool.open()
    seconds = await COMMANDS[command](pool, **given)
    await pool.close()
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))

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


async def _prepare(pool: Any) -> float:
    await Queries(AsyncpgPoolDriver(pool)).install()
    return 0.0


async def _lag(pool: Any, n: int, rate: int, path: str) -> float:
    await pool.execute("TRUNCATE pgqueuer RESTART IDENTITY CASCADE")
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
    await Queries(AsyncpgPoolDriver(pool)).enqueue(["stamp"] * n, payloads, [0] * n, waits)
    await application.run(batch_size=10)
    return time.monotonic() - began


COMMANDS: dict[str, Callable[..., Awaitable[float]]] = {"prepare": _prepare, "lag": _lag}


async def main(command: str, given: dict[str, Any]) -> None:
    """Run one command and print its seconds."""
    pool = await asyncpg.create_pool(os.environ["BENCHMARK_DATABASE"], min_size=4, max_size=20)
    seconds = await COMMANDS[command](pool, **given)
    await pool.close()
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))

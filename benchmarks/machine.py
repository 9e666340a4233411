"""Describes the machine and the versions of a run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import psycopg
import redis
from kombu import Connection

from benchmarks.servers import Servers


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine(servers: Servers) -> dict[str, str | int]:
    """Return processor, cores and versions."""
    with psycopg.connect(servers.postgresql) as database:
        version = database.info.server_version
    with redis.Redis.from_url(servers.redis) as client:
        redis_version = str(client.info("server")["redis_version"])
    with Connection(servers.rabbitmq) as broker:
        broker.connect()
        rabbitmq_version = str(broker.connection.server_properties.get("version"))
    return {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("django", "celery", "kombu")},
        "postgres": f"{version // 10000}.{version % 10000}",
        "redis": redis_version,
        "rabbitmq": rabbitmq_version,
    }

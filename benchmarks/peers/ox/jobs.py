"""The measurements of django-ox: ``python -m benchmarks.peers.ox.jobs COMMAND '{"n": 1000}'``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import django
from django.core.management import call_command
from django.db import connection


def _prepare() -> float:
    call_command("migrate", verbosity=0)
    return 0.0


def _enqueue(n: int) -> float:
    from benchmarks.peers.ox.tasks import noop

    for number in range(50):
        noop.enqueue(number)
    began = time.perf_counter()
    for number in range(n):
        noop.enqueue(number)
    return time.perf_counter() - began


def _bulk(n: int) -> float:
    from django_ox.bulk import enqueue_many

    from benchmarks.peers.ox.tasks import noop

    began = time.perf_counter()
    enqueue_many(noop, [((number,), {}) for number in range(n)])
    return time.perf_counter() - began


def _run(n: int, concurrency: int) -> float:
    from django_ox.models import OxTask

    _bulk(n)
    command = [
        sys.executable,
        "-m",
        "django",
        "ox_worker",
        "--batch",
        "--concurrency",
        str(concurrency),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rows = OxTask.objects.filter(status="SUCCESSFUL").values_list("started_at", "finished_at")
    starts, ends = zip(*rows, strict=True)
    if len(ends) != n:
        raise SystemExit(f"{len(ends)} of {n} succeeded")
    return float((max(ends) - min(starts)).total_seconds())


COMMANDS: dict[str, Callable[..., float]] = {
    "prepare": _prepare,
    "enqueue": _enqueue,
    "bulk": _bulk,
    "run": _run,
}


def main(command: str, given: dict[str, Any]) -> None:
    """Run one command and print its seconds."""
    django.setup()
    if command != "prepare":
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE django_ox_oxtask CASCADE")
    seconds = COMMANDS[command](**given)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))

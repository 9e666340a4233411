"""Fill beat's tables: ``python -m benchmarks.peers.beat.rows prepare '{"n": 1000,
"every": 10}'``.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from typing import Any

import django
from django.core.management import call_command
from django.utils import timezone

_AT_ONCE = 1_000


def prepare(n: int, every: int) -> float:
    """Create the tables and n periodic tasks that are due every ``every`` seconds at different
    phases.
    """
    began = time.perf_counter()
    call_command("migrate", verbosity=0)
    from django_celery_beat.models import IntervalSchedule, PeriodicTask, PeriodicTasks  # type: ignore[import-not-found]

    schedule = IntervalSchedule.objects.create(every=every, period="seconds")
    now = timezone.now()
    rows: list[Any] = [
        PeriodicTask(
            name=f"row {number}",
            task="noop",
            interval=schedule,
            last_run_at=now - _phase(number, n, every),
        )
        for number in range(n)
    ]
    PeriodicTask.objects.bulk_create(rows, batch_size=_AT_ONCE)
    PeriodicTasks.update_changed()
    return time.perf_counter() - began


def _phase(number: int, n: int, every: int) -> timedelta:
    return timedelta(seconds=every * number / n)


if __name__ == "__main__":
    django.setup()
    print(json.dumps({"seconds": prepare(**json.loads(sys.argv[2]))}))

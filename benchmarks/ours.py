"""What is measured of ours, each verb in a process of its own: ``python -m benchmarks.ours VERB
'{"n": 1000}'``.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import django
from django.core.management import call_command
from django.db import connection
from django.utils import timezone

from benchmarks.peers.instants import instants

_WARM_UP = 50


def _truncate() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE durable_tasks_task, durable_tasks_execution_log, durable_tasks_dead_letter,"
            " durable_tasks_node, durable_tasks_recurring_task, durable_tasks_occurrence RESTART"
            " IDENTITY CASCADE"
        )


def prepare() -> None:
    """Create the tables."""
    call_command("migrate", verbosity=0)


def enqueue(n: int) -> float:
    """Call ``.delay()`` n times, each in a transaction of its own."""
    from benchmarks.project.tasks import noop

    _truncate()
    for number in range(_WARM_UP):
        noop.delay(number)
    began = time.perf_counter()
    for number in range(n):
        noop.delay(number)
    return time.perf_counter() - began


def bulk(n: int) -> float:
    """Create n due rows by one call."""
    from benchmarks.project.tasks import noop

    _truncate()
    noop.schedule_many([(number,) for number in range(_WARM_UP)])
    _truncate()
    began = time.perf_counter()
    noop.schedule_many([(number,) for number in range(n)])
    return time.perf_counter() - began


def later(n: int, rate: int, ahead: float) -> float:
    """Schedule n tasks, due at so many a second, the first in ``ahead`` seconds.

    Raises RuntimeError if the first is due before all of them are committed: its lag would be that
    of this process.
    """
    from benchmarks.project.tasks import stamp
    from django_durable_tasks.engine.tasks.enqueue import schedule_many
    from django_durable_tasks.engine.tasks.new_task import Call
    from django_durable_tasks.rules.tasks.options import CallOptions, call_options

    began, moments = time.perf_counter(), instants(n, rate, ahead)
    registered = stamp.using().registered
    schedule_many(
        [
            Call(
                registered,
                (due,),
                {},
                call_options(CallOptions(), {"run_at": datetime.fromtimestamp(due, UTC)}),
            )
            for due in moments
        ]
    )
    late = time.time() - moments[0]
    if late >= 0:
        raise RuntimeError(
            f"The first of {n} tasks was due {late:.3f} s before all of them were committed."
        )
    return time.perf_counter() - began


# So many seconds pass between the writing of recurring rows and the first fire, beside one for each
# 2,000 rows.
_SETTLE = 5
_ROWS = """
    INSERT INTO durable_tasks_recurring_task ({columns})
    SELECT {values}
      FROM durable_tasks_recurring_task, generate_series(1, %(n)s) AS number
     CROSS JOIN LATERAL (SELECT {start} AS moment) AS start
"""


def _rows(n: int, every: float, start: str, base: datetime) -> None:
    """Write n rows of one interval from one that was declared; ``start`` is SQL: seconds after
    ``base``, by number.
    """
    from benchmarks.project.tasks import noop
    from django_durable_tasks.models import RecurringTask

    pattern = RecurringTask.objects.upsert(
        name="pattern", task=noop, args=[1], interval=every, overlap="ALLOW"
    )
    values = {
        "id": (
            "(lpad(to_hex(1700000000000 + number), 12, '0') || '70008000' || lpad(to_hex(number),"
            " 12, '0'))::uuid"
        ),
        "name": "'row ' || number",
        "start_time": "start.moment",
        "next_run_at": "start.moment",
        "watermark_at": "start.moment - interval '1 microsecond'",
    }
    columns = [field.column for field in RecurringTask._meta.concrete_fields if field.column]
    with connection.cursor() as cursor:
        cursor.execute(
            _ROWS.format(
                columns=", ".join(columns),
                values=", ".join(values.get(column, column) for column in columns),
                start=f"%(base)s::timestamptz + ({start}) * interval '1 second'",
            ),
            {"n": n, "base": base},
        )
        RecurringTask.objects.unguarded().filter(pk=pattern.pk).delete()
        cursor.execute("VACUUM ANALYZE durable_tasks_recurring_task")


def recurring(n: int, every: float) -> float:
    """Write n rows that are due every so many seconds; those due in one second lie all over the
    table.
    """
    _truncate()
    began = time.perf_counter()
    # 7,919 is prime: so the phases are a permutation of n steps within the period.
    phase = f"mod(number::bigint * 7919, {n}) * {every} / {n}.0"
    _rows(n, every, phase, timezone.now() + timedelta(seconds=_SETTLE + n / 2_000))
    return time.perf_counter() - began


def tick(n: int, due: int, ticks: int) -> float:
    """Fire ``due`` of n rows, as often as told while there are any; return the median of
    the times.
    """
    from django_durable_tasks.engine.db.connections import dedicated_connection
    from django_durable_tasks.engine.recurring import trigger

    _truncate()
    base, far, ticks = timezone.now(), 31_536_000, min(ticks, n // due)
    _rows(
        n,
        far,
        f"CASE WHEN mod(number, {n // due}) < {ticks} THEN mod(number, {n // due}) ELSE {far} END",
        base,
    )
    took = []
    for number in range(ticks):
        now = base + timedelta(seconds=number)
        with dedicated_connection():
            began = time.perf_counter()
            trigger.head()
            born = trigger.fire_due(now, 2 * due)
            trigger.head()
            took.append(time.perf_counter() - began)
        if born != due:
            raise AssertionError(f"{born} tasks were born of {due} due rows")
    return statistics.median(took)


def loop(begin: str) -> float:
    """Run the scheduler's loop until told to stop; tell its start by the file."""
    from django_durable_tasks.scheduler.loop import Scheduler

    scheduler = Scheduler("benchmark")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: scheduler.stop())
    connection.ensure_connection()
    Path(begin).write_text(str(time.monotonic()))
    scheduler.run()
    return 0.0


def main(verb: str, given: dict[str, Any]) -> None:
    """Do one verb and print its seconds."""
    django.setup()
    verbs: dict[str, Callable[..., float | None]] = {
        "prepare": prepare,
        "enqueue": enqueue,
        "bulk": bulk,
        "loop": loop,
        "recurring": recurring,
        "tick": tick,
        "later": later,
    }
    seconds = verbs[verb](**given)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))

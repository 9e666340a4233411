"""The measurements of this package, each in its own process: ``python -m benchmarks.ours COMMAND
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
from django.db import connection, transaction
from django.utils import timezone

from benchmarks.peers.instants import instants

_WARM_UP = 50
_TOGETHER = 10


def truncate() -> None:
    """Empty the tables of tasks and schedules."""
    with connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE durable_tasks_task, durable_tasks_execution_log, durable_tasks_dead_letter,"
            " durable_tasks_batch_message, durable_tasks_node, durable_tasks_recurring_task, durable_tasks_occurrence RESTART"
            " IDENTITY CASCADE"
        )


def prepare() -> None:
    """Create the tables."""
    call_command("migrate", verbosity=0)


def enqueue(n: int, task: str = "noop") -> float:
    """Call ``.delay()`` n times, each in its own transaction."""
    from benchmarks.project import tasks

    function = getattr(tasks, task)
    truncate()
    for number in range(_WARM_UP):
        function.delay(number)
    began = time.perf_counter()
    for number in range(n):
        function.delay(number)
    return time.perf_counter() - began


def transactions(n: int, task: str = "noop") -> float:
    """Call ``.delay()`` n times, ten times in each transaction of the caller."""
    from benchmarks.project import tasks

    function = getattr(tasks, task)
    truncate()
    for number in range(_WARM_UP):
        function.delay(number)
    began = time.perf_counter()
    for first in range(0, n, _TOGETHER):
        with transaction.atomic():
            for number in range(first, min(first + _TOGETHER, n)):
                function.delay(number)
    return time.perf_counter() - began


def bulk(n: int, task: str = "noop", pause: float = 0.0) -> float:
    """Create n due tasks of this name with one call. ``pause``: the second argument of each, if it is
    not 0.
    """
    from benchmarks.project import tasks

    function = getattr(tasks, task)
    truncate()
    function.schedule_many([(number,) for number in range(_WARM_UP)])
    truncate()
    began = time.perf_counter()
    more = (pause,) if pause else ()
    function.schedule_many([(number, *more) for number in range(n)])
    return time.perf_counter() - began


def later(n: int, rate: int, ahead: float, task: str = "stamp") -> float:
    """Schedule n tasks, of which ``rate`` per second are due, the first in ``ahead`` seconds.
    ``task``: the name of the function.

    Raises RuntimeError if the first is due before all of them are committed, because its lag would
    then be caused by this process.
    """
    from benchmarks.project import tasks
    from django_durable_tasks.tasks.enqueue import Call, insert_many, new_task
    from django_durable_tasks.tasks.options import CallOptions, call_options

    began, moments = time.perf_counter(), instants(n, rate, ahead)
    registered = getattr(tasks, task).using().registered
    insert_many(
        [
            new_task(
                Call(
                    registered,
                    (due,),
                    {},
                    call_options(CallOptions(), {"run_at": datetime.fromtimestamp(due, UTC)}),
                )
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


def callbacks(n: int, url: str, rate: int = 0, ahead: float = 0.0, timeout: float = 30.0) -> float:
    """Schedule n HTTP callbacks, due now, or ``rate`` per second from ``ahead`` seconds on."""
    from django_durable_tasks import http_callback

    began = time.perf_counter()
    moments = instants(n, rate, ahead) if rate else [time.time()] * n
    with transaction.atomic():
        for due in moments:
            using = http_callback.using(run_at=datetime.fromtimestamp(due, UTC))
            body = {"type": "order.paid", "order": 42}
            using.schedule(url=url, body=body, timeout=timeout)
    return time.perf_counter() - began


# Seconds between the insertion of the schedules and the first fire time, plus one for each 2,000
# schedules.
_SETTLE = 5
FIRST_NEW = 10_000_000
"""The number of the first of the schedules that ``new_schedules`` inserts; their ids end with it."""
_ROWS = """
    INSERT INTO durable_tasks_recurring_task ({columns})
    SELECT {values}
      FROM durable_tasks_recurring_task, generate_series(%(first)s, %(first)s + %(n)s - 1) AS number
     CROSS JOIN LATERAL (SELECT {start} AS moment) AS start
     WHERE durable_tasks_recurring_task.id = %(pattern)s
"""


def _rows(n: int, every: float, start: str, base: datetime, first: int = 1) -> None:
    """Insert n schedules with one interval as copies of a declared one, in one transaction.
    ``start`` is an SQL expression: the seconds after ``base``, by number.
    """
    from benchmarks.project.tasks import noop
    from django_durable_tasks.models import RecurringTask

    pattern = RecurringTask.objects.upsert(
        name="pattern", task=noop, args=[1], interval=every, overlap="ALLOW", paused=True
    )
    values = {
        "id": (
            "(lpad(to_hex(1700000000000 + number), 12, '0') || '70008000' || lpad(to_hex(number),"
            " 12, '0'))::uuid"
        ),
        "name": "'row ' || number",
        "start_time": "start.moment",
        "status": "'ACTIVE'",
        "paused_at": "NULL::timestamptz",
        "next_run_at": "start.moment",
        "watermark_at": "start.moment - interval '1 microsecond'",
    }
    columns = [field.column for field in RecurringTask._meta.concrete_fields if field.column]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            _ROWS.format(
                columns=", ".join(columns),
                values=", ".join(values.get(column, column) for column in columns),
                start=f"%(base)s::timestamptz + ({start}) * interval '1 second'",
            ),
            {"n": n, "base": base, "first": first, "pattern": pattern.pk},
        )
        RecurringTask.objects.unguarded().filter(pk=pattern.pk).delete()


def recurring(n: int, every: float, ahead: float | None = None) -> float:
    """Insert n schedules as ``insert_schedules`` does, the first fire times after some seconds.

    Raises RuntimeError if the first is due before all of them are committed.
    """
    ahead = _SETTLE + n / 2_000 if ahead is None else ahead
    began = time.perf_counter()
    insert_schedules(n, every, ahead)
    if (took := time.perf_counter() - began) > ahead:
        raise RuntimeError(f"{n} schedules were inserted in {took:.1f} s, the first due earlier.")
    return took


def new_schedules(n: int, every: float, after: float) -> float:
    """Insert n schedules in one transaction, all of them due ``after`` seconds after the call.

    Return the Unix time at which they are due. Raises RuntimeError if that is before the commit.
    """
    due = timezone.now() + timedelta(seconds=after)
    _rows(n, every, "0", due, FIRST_NEW)
    if timezone.now() > due:
        raise RuntimeError(f"{n} schedules were due before they were committed.")
    return due.timestamp()


def insert_schedules(n: int, every: float, ahead: float = 0.0) -> None:
    """Insert n schedules that are due every ``every`` seconds from ``ahead`` seconds on, and nothing
    else. Those that are due in the same second are distributed over the table.
    """
    truncate()
    # 7,919 is prime, so the phases are a permutation of n steps within the period.
    phase = f"mod(number::bigint * 7919, {n}) * {every} / {n}.0"
    _rows(n, every, phase, timezone.now() + timedelta(seconds=ahead))
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE durable_tasks_recurring_task")


def tick(n: int, due: int, ticks: int) -> float:
    """Fire ``due`` of n schedules, at most ``ticks`` times; return the median duration."""
    from django_durable_tasks.schedules import trigger
    from django_durable_tasks.store.connections import dedicated_connection

    truncate()
    base, far, ticks = timezone.now(), 31_536_000, min(ticks, n // due)
    _rows(
        n,
        far,
        f"CASE WHEN mod(number, {n // due}) < {ticks} THEN mod(number, {n // due}) ELSE {far} END",
        base,
    )
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE durable_tasks_recurring_task")
    took = []
    for number in range(ticks):
        now = base + timedelta(seconds=number)
        with dedicated_connection():
            began = time.perf_counter()
            trigger.head()
            created = trigger.fire_due(now, 2 * due)
            trigger.head()
            took.append(time.perf_counter() - began)
        if created != due:
            raise AssertionError(f"{created} tasks were created for {due} due schedules")
    return statistics.median(took)


def loop(begin: str) -> float:
    """Run the scheduler's loop until SIGTERM. Creates the file when it starts."""
    from django_durable_tasks.scheduler.loop import Scheduler

    scheduler = Scheduler("benchmark")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: scheduler.stop())
    connection.ensure_connection()
    Path(begin).write_text(str(time.monotonic()))
    scheduler.run()
    return 0.0


def main(command: str, given: dict[str, Any]) -> None:
    """Run one command and print its seconds."""
    django.setup()
    commands: dict[str, Callable[..., float | None]] = {
        "prepare": prepare,
        "enqueue": enqueue,
        "bulk": bulk,
        "loop": loop,
        "transactions": transactions,
        "recurring": recurring,
        "new_schedules": new_schedules,
        "tick": tick,
        "later": later,
        "callbacks": callbacks,
    }
    seconds = commands[command](**given)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))

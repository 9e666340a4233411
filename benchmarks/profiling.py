"""Profiles this package: ``python -m benchmarks.profiling COMMAND '{"n": 1000}'`` prints wall time,
CPU time and a profile.

``run`` passes messages through Celery's tracer and the gate in this process, as a prefork child
does after it has read a message from its pipe. The costs of the parent process, the broker and the
database are not included. ``batches`` runs due tasks in batches of 100, as a batch message does. It
publishes no further messages.
"""

from __future__ import annotations

import cProfile
import io
import json
import platform
import pstats
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import django
from django.db import connection, connections

_LINES = 28


def _enqueue(n: int) -> Callable[[], None]:
    from benchmarks.project.tasks import noop

    def work() -> None:
        for number in range(n):
            noop.delay(number)

    for number in range(50):
        noop.delay(number)
    return work


def _bulk(n: int) -> Callable[[], None]:
    from benchmarks.project.tasks import noop

    def work() -> None:
        noop.schedule_many([(number,) for number in range(n)])

    return work


def _dispatch(n: int) -> Callable[[], None]:
    from benchmarks.project.tasks import noop
    from django_durable_tasks.scheduler.loop import Scheduler

    noop.schedule_many([(number,) for number in range(n)])
    scheduler = Scheduler("profile")

    def work() -> None:
        while scheduler.run_once():
            pass

    return work


def _run(n: int) -> Callable[[], None]:
    from celery import signals
    from celery.app import trace

    from benchmarks.project import celery_app
    from benchmarks.project.tasks import noop
    from django_durable_tasks.celery.prepared_messages import _BODY, _headers, queue_of
    from django_durable_tasks.states.demand import QueueDemand
    from django_durable_tasks.store.clock import database_now
    from django_durable_tasks.store.connections import dedicated_connection
    from django_durable_tasks.tasks.claim import claim_of

    noop.schedule_many([(number,) for number in range(n)])
    demands = [QueueDemand(queue_of(noop.name, None), n)]
    messages = claim_of(demands, database_now(), n, uuid.uuid4()).messages
    hostname = f"profile@{platform.node()}"
    # The child process must not use its parent's connections: Celery would close their sockets.
    connections.close_all()
    signals.worker_init.send(sender=celery_app)
    signals.worker_process_init.send(sender=None)
    trace.setup_worker_optimizations(celery_app, hostname)
    task = celery_app.tasks[noop.name]
    task.__trace__ = trace.build_tracer(
        noop.name, task, celery_app.loader, hostname, app=celery_app
    )
    with dedicated_connection():
        database_now()  # so that the gate's connection stands before the clock runs
    more = {"hostname": hostname, "delivery_info": {}, "reply_to": "", "redelivered": False}

    def work() -> None:
        for message in messages:
            headers = _headers(message)
            request = {**headers, **more, "correlation_id": headers["id"]}
            trace.fast_trace_task(
                message.name, headers["id"], request, _BODY, "application/json", "utf-8"
            )

    return work


def _batches(n: int) -> Callable[[], None]:
    from celery.app.task import Context

    from benchmarks.project import celery_app
    from benchmarks.project.tasks import batched_noop
    from django_durable_tasks.celery import batch_runs, publisher, worker_node
    from django_durable_tasks.celery.prepared_messages import queue_of
    from django_durable_tasks.models import Task
    from django_durable_tasks.tasks.batches import TOKEN_BYTES

    batched_noop.schedule_many([(number,) for number in range(n)])
    task, queue = celery_app.tasks[batched_noop.name], queue_of(batched_noop.name, None)
    place = worker_node.place(60.0)
    waiting = Task.objects.filter(name=task.name, status="PENDING")
    setattr(publisher, "publish_batches", lambda _: 0)  # noqa: B010 - mypy knows it as a function

    def work() -> None:
        while waiting.exists():
            message = batch_runs._Message(task, queue, 0, bytes(TOKEN_BYTES), place, Context())
            message.run()

    return work


def _recurring(n: int) -> Callable[[], None]:
    from datetime import timedelta

    from benchmarks.ours import insert_schedules
    from django_durable_tasks.conf import settings
    from django_durable_tasks.schedules import trigger
    from django_durable_tasks.store.clock import database_now
    from django_durable_tasks.store.connections import dedicated_connection

    every = 10
    insert_schedules(n, every)
    now = database_now() + timedelta(seconds=every)

    def fire(at: datetime) -> None:
        with dedicated_connection():
            while trigger.fire_due(at, settings().BATCH_SIZE):
                pass

    began = time.perf_counter()
    fire(now)
    print(
        f"-- the first fires, with reading the schedules: {n / (time.perf_counter() - began):,.0f}/s"
    )

    def work() -> None:
        fire(now + timedelta(seconds=every))

    return work


COMMANDS: dict[str, Callable[[int], Callable[[], None]]] = {
    "enqueue": _enqueue,
    "bulk": _bulk,
    "run": _run,
    "batches": _batches,
    "dispatch": _dispatch,
    "recurring": _recurring,
}


def backends() -> list[int]:
    """Return the server processes of this database, including those of this process's connections."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
        return [pid for (pid,) in cursor.fetchall()]


def processor_time(pids: list[int]) -> float:
    """Return the processor time of local processes in seconds (Linux); 0 if it cannot be read."""
    total = 0.0
    for pid in pids:
        with suppress(OSError):
            total += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    return total


def _table(profile: cProfile.Profile, order: str, *which: str | int) -> str:
    text = io.StringIO()
    pstats.Stats(profile, stream=text).strip_dirs().sort_stats(order).print_stats(*which)
    return "\n".join(line for line in text.getvalue().splitlines() if line.strip())


def _ours(profile: cProfile.Profile) -> str:
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("cumulative").print_stats(
        "django_durable_tasks/", _LINES
    )
    return "\n".join(
        line for line in text.getvalue().splitlines() if "django_durable_tasks/" in line
    )


def main(command: str, given: dict[str, Any]) -> None:
    """Run a command twice, timed and profiled, and print the results."""
    django.setup()
    n = int(given["n"])
    work = COMMANDS[command](n)
    pids = backends()
    wall, cpu, server = time.perf_counter(), time.process_time(), processor_time(pids)
    work()
    wall, cpu, server = (
        time.perf_counter() - wall,
        time.process_time() - cpu,
        processor_time(pids) - server,
    )
    each = 1e6 / n
    print(
        f"== {command} x {n:,} in one process: {n / wall:,.0f}/s; each {wall * each:,.0f} us, of which"
        f" {cpu * each:,.0f} us are CPU of this process and {(wall - cpu) * each:,.0f} us wait for"
        " servers"
        + (f" ({server * each:,.0f} us of PostgreSQL's processor time)" if server > 0 else "")
    )
    if not given.get("deep", True):
        return
    profile = cProfile.Profile(
        time.thread_time
    )  # by processor time: waiting and a busy machine do not show
    profile.runcall(COMMANDS[command](n))
    print("-- processor time by function (profiled: slower than above)")
    print(_table(profile, "tottime", _LINES))
    print("-- of this package, by cumulative time")
    print(_ours(profile))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))

"""Measures one poll with many queues, and calls, claims and releases with many scopes: ``python -m
benchmarks.many_queues poll '{"queues": 1000, "tenants": 1, "mixed": false}'``.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Any

import django
from django.db import connection

from benchmarks.accounting import resident_mb
from benchmarks.contenders import Ours, patience
from benchmarks.contest import Measured
from benchmarks.processes import figures

DUE, ELSEWHERE, POLLS = 2, 20_000, 5
"""Due tasks per queue and poll, published tasks in other queues, and the number of polls."""


CALLS, TOGETHER, WAITING, ROUNDS = 200, 500, 10_000, 3
"""Calls of ``.delay()``, tasks of a claim or a release, waiting tasks, and rounds."""


def _fill(tenants: int, *, mixed: bool) -> None:
    """Insert the tenants, and published tasks in other queues, into an empty table.

    What an earlier measurement left is removed: its tenants, because shares are checked if there is
    more than one, and its dead rows, which autovacuum would remove within a minute.
    """
    from benchmarks.project.tasks import noop
    from django_durable_tasks.models import Task

    Task.objects.unguarded().all().delete()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM durable_tasks_tenant WHERE id > %s", [tenants])
        cursor.execute("VACUUM durable_tasks_task")
    _insert_tenants(tenants)
    places = [
        (f"elsewhere-{n % 300}", 1 + (n + (n // 300 if mixed else 0)) % tenants)
        for n in range(ELSEWHERE)
    ]
    _write(noop.name, "QUEUED", places, 3_600)


def _serve(queues: list[str]) -> None:
    """Record a worker of these queues. Without one a tenant has one place in each."""
    from django_durable_tasks.models import Node, NodeKind
    from django_durable_tasks.store.clock import database_now

    now = database_now()
    Node.objects.update_or_create(
        name="a worker",
        defaults={
            "kind": NodeKind.WORKER,
            "host": "a benchmark",
            "pid": 1,
            "version": "0",
            "started_at": now,
            "last_seen_at": now,
            "concurrency": 2 * TOGETHER,
            "queues": queues,
        },
    )


def _insert_tenants(last: int) -> None:
    """Insert the tenants 2 to ``last`` by SQL, so that the memory of this process does not grow."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO durable_tasks_tenant (id, slug, name, created_at)"
            " SELECT n, n::text, n::text, clock_timestamp() FROM generate_series(2, %s) AS n"
            " ON CONFLICT DO NOTHING",
            [last],
        )


def _write(name: str, status: str, places: list[tuple[str, int]], due: float) -> None:
    from django_durable_tasks.models import Task
    from django_durable_tasks.store.clock import database_now

    at = database_now() + timedelta(seconds=due)
    Task.objects.unguarded().bulk_create(
        [
            Task(
                name=name,
                queue=queue,
                tenant_id=tenant,
                status=status,
                run_at=at,
                due_at=at,
                args=[1],
            )
            for queue, tenant in places
        ],
        batch_size=5_000,
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_tasks_task")


def poll(queues: int, tenants: int, *, mixed: bool) -> dict[str, float]:
    """Make tasks due in each of ``queues`` queues and publish them by one poll, several times.
    Return the median. ``mixed``: the tasks of one queue have different tenants.
    """
    from benchmarks.project.tasks import noop
    from django_durable_tasks.models import Task
    from django_durable_tasks.scheduler.loop import Scheduler

    _fill(tenants, mixed=mixed)
    _serve([f"due-{n}" for n in range(queues)])
    gc.set_threshold(10_000)  # as run_scheduler does
    hands, took, sent = Scheduler("a benchmark").dispatching, list[float](), list[int]()
    for number in range(POLLS + 1):
        places = [
            (f"due-{n}", 1 + (n + (task if mixed else 0)) % tenants)
            for n in range(queues)
            for task in range(DUE)
        ]
        _write(noop.name, "PENDING", places, -1)
        began = time.perf_counter()
        published = hands.poll()
        if number:  # the first poll declares the queues at the broker and opens connections
            took.append(time.perf_counter() - began)
            sent.append(published)
        Task.objects.unguarded().filter(queue__startswith="due-").delete()
    if min(sent) != DUE * queues:
        raise AssertionError(f"Polls published {sent} rows of {DUE * queues} due ones")
    return {"seconds": median(took), "worst": max(took)}


_COPIES = """
    INSERT INTO durable_tasks_task ({columns})
    SELECT {values} FROM durable_tasks_task, generate_series(0, {number} - 1) AS n WHERE id = %(pattern)s
"""


def _copies(number: int, queues: int, keys: int, queue: str, **columns: str) -> None:
    """Insert tasks in turn of these queues, of as many tenants, and of these keys. ``columns``: SQL
    expressions.
    """
    from benchmarks.project.tasks import keyed
    from django_durable_tasks.models import Task

    pattern = keyed.schedule("key")
    columns |= {
        "id": "gen_random_uuid()",
        "queue": f"'{queue}-' || n %% {queues}",
        "tenant_id": f"2 + n %% {queues}",
        "limit_key": f"'key-' || n %% {keys}",
        "run_at": "clock_timestamp() - interval '1 second'",
    }
    names = [field.column for field in Task._meta.concrete_fields if field.column]
    values = ", ".join(columns.get(name, name) for name in names)
    sql = _COPIES.format(columns=", ".join(names), values=values, number=number)
    with connection.cursor() as cursor:
        cursor.execute(sql, {"pattern": pattern.pk})
    Task.objects.unguarded().filter(pk=pattern.pk).delete()


def _fill_scopes(queues: int, keys: int) -> None:
    """Insert due, published and waiting tasks in these scopes, and nothing else. At least one task
    waits for each key.
    """
    _insert_tenants(queues + 1)
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE durable_tasks_task CASCADE")
    due, waiting = "clock_timestamp() - interval '1 second'", f"'key:key-' || n %% {keys}"
    later, never = "clock_timestamp() + interval '1 hour'", "'9000-01-01Z'"
    _copies(TOGETHER, queues, keys, "scope", due_at=due)
    _copies(TOGETHER, queues, keys, "elsewhere", due_at=later, status="'QUEUED'")
    _copies(max(WAITING, keys), queues, keys, "scope", due_at=never, waiting_for_limit=waiting)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE durable_tasks_task")


def _timed(act: Callable[[], int], expected: int) -> float:
    """Return how long a call takes that must return ``expected``."""
    began = time.perf_counter()
    found = act()
    seconds = time.perf_counter() - began
    if found != expected:
        raise AssertionError(f"{found} tasks instead of {expected}")
    return seconds


def _calls(queues: int, keys: int) -> int:
    from benchmarks.project.tasks import keyed

    for n in range(CALLS):
        bound = keyed.using(queue=f"scope-{n % queues}", tenant=2 + n % queues)
        bound.delay(f"key-{n % keys}")
    return CALLS


def _claim() -> int:
    """Claim what is due, in the queues in which a task is due, as a poll does."""
    import uuid

    from django_durable_tasks.limits.backpressure import read_heads
    from django_durable_tasks.states.demand import QueueDemand
    from django_durable_tasks.store.clock import database_now
    from django_durable_tasks.tasks import claim

    now, node = database_now(), uuid.uuid4()
    demands = [QueueDemand(head.queue, TOGETHER, levels=head.levels) for head in read_heads(now)]
    parts = claim.parted(demands)
    return sum(len(claim.claim_of(part, now, TOGETHER, node).messages) for part in parts)


def _release() -> int:
    from django_durable_tasks.limits import release
    from django_durable_tasks.store.clock import database_now

    return release.release_waiting(database_now(), TOGETHER)


def scopes(queues: int, keys: int) -> dict[str, float]:
    """Compare calls, claims and releases in one queue, tenant and key with those in many, in
    alternate rounds. Return the medians in milliseconds, the ratios, and the resident memory of this
    process after the first round in one scope and at the end.
    """
    from django_durable_tasks.store.connections import dedicated_connection

    took, memory = defaultdict[str, list[float]](list), list[float]()
    _serve([f"scope-{n}" for n in range(queues)])
    for number in range(2 * (ROUNDS + 1)):
        size = (queues, keys) if number % 2 else (1, 1)
        _fill_scopes(*size)
        with dedicated_connection():
            parts = {
                "release": _timed(_release, TOGETHER),
                "claim": _timed(_claim, TOGETHER),
            }
        parts["delay"] = _timed(lambda size=size: _calls(*size), CALLS)  # type: ignore[misc]
        for what, seconds in parts.items() if number > 1 else ():
            took[f"{what}_{'many' if number % 2 else 'one'}_ms"].append(1e3 * seconds)
        memory.append(resident_mb())
    found = {name: round(median(times), 2) for name, times in took.items()}
    for what in ("delay", "claim", "release"):
        found[f"{what}_ratio"] = round(found[f"{what}_many_ms"] / found[f"{what}_one_ms"], 2)
    return found | {"rss_first_mb": memory[0], "rss_last_mb": memory[-1]}


@dataclass
class ManyQueues(Ours):
    """This package with due tasks in many queues."""

    def poll(self, queues: int, tenants: int, *, mixed: bool = False) -> Measured:
        """Measure one poll of a scheduler. ``mixed``: with several tenants in each queue."""
        self.prepare()
        command = [sys.executable, "-m", "benchmarks.many_queues", "poll"]
        try:
            found = figures(
                command,
                {"queues": queues, "tenants": tenants, "mixed": mixed},
                patience(ELSEWHERE),
                **self.variable(),
            )
        finally:
            self.servers.clear_broker(self.broker)
        facts = {
            "poll_p50_ms": round(1e3 * found["seconds"], 1),
            "poll_max_ms": round(1e3 * found["worst"], 1),
        }
        return Measured(found["seconds"], facts)

    def scopes(self, queues: int, keys: int) -> Measured:
        """Measure calls, claims and releases in one scope and in many."""
        self.prepare()
        command = [sys.executable, "-m", "benchmarks.many_queues", "scopes"]
        given = {"queues": queues, "keys": keys}
        found = figures(command, given, patience(max(WAITING, keys)), **self.variable())
        return Measured(found["claim_many_ms"] / 1e3, found)


if __name__ == "__main__":
    django.setup()
    given: dict[str, Any] = json.loads(sys.argv[2])
    commands: dict[str, Callable[..., dict[str, float]]] = {"poll": poll, "scopes": scopes}
    print(json.dumps(commands[sys.argv[1]](**given)))

"""Measures the broker in the database on PostgreSQL: ``python -m benchmarks.messages claim
'{"queued": 100000}'``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import django
import kombu
from django.core.management import call_command
from django.db import DatabaseError, connection, connections, transaction

from benchmarks.contenders import Ours, patience
from benchmarks.contest import Measured
from benchmarks.processes import figures

QUEUE, URL = "queued", "durable-database://default"
AT_ONCE, CLAIMS, FEW = 10, 200, 100
"""How many messages a claim takes, how many claims are measured, and the queue of comparison."""
COMMITTERS, COMMITS = 64, 100
_WARM_UP = 20
_ROWS = """
    INSERT INTO durable_tasks_transport_message (queue, rank, deliveries, body)
    SELECT %(queue)s, %(rank)s, 0, %(body)s FROM generate_series(1, %(number)s)
"""


def _fill(queue: int, rank: int, number: int) -> None:
    given: dict[str, Any] = {"queue": queue, "rank": rank, "number": number, "body": "x" * 600}
    with connection.cursor() as cursor:
        cursor.execute(_ROWS, given)


@contextmanager
def _dead_rows(queue: int, number: int) -> Iterator[None]:
    """Delete ``number`` messages before all others while a transaction that began earlier is open,
    so that no VACUUM removes them.
    """
    old = connection.copy()
    try:
        with transaction.atomic(using="default"), old.cursor() as cursor:
            _fill(queue, 0, number)
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        with old.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM durable_tasks_transport_message")
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM durable_tasks_transport_message WHERE rank = 0")
            cursor.execute("VACUUM ANALYZE durable_tasks_transport_message")
        yield
    finally:
        old.close()


def claim(queued: int, dead: int = 0) -> dict[str, float]:
    """Claim and acknowledge messages from a queue with ``queued`` of them, and ``dead`` rows that
    no VACUUM can remove. Return the median and the 95th percentile of a claim.
    """
    from django_durable_tasks.contrib.database_transport.consumers import Demand, Session

    call_command("migrate", verbosity=0)
    with kombu.Connection(URL) as broker, broker.channel() as channel:
        channel.queue_declare(QUEUE)
        queue = channel.declarations.queue_id(QUEUE)
        _fill(queue, 4, queued)
        with _dead_rows(queue, dead), closing(Session("default", 60.0, dict, print)) as session:
            took = list[float]()
            for _ in range(_WARM_UP + CLAIMS):
                _fill(queue, 4, AT_ONCE)
                began = time.perf_counter()
                rows = session.claim([Demand(queue, 0, AT_ONCE)])
                took.append(time.perf_counter() - began)
                if len(rows) != AT_ONCE:
                    raise AssertionError(f"{len(rows)} messages were claimed instead of {AT_ONCE}")
                for row in rows:
                    session.acknowledge(row.id)
    took = took[_WARM_UP:]
    return {"seconds": median(took), "p95": quantiles(took, n=20)[18]}


def commits(notify: bool) -> dict[str, float]:
    """Commit transactions that publish one message, in 64 processes. Return the seconds from the
    first to the last commit.
    """
    call_command("migrate", verbosity=0)
    options = {"notify": notify}
    with kombu.Connection(URL, transport_options=options) as broker, broker.channel() as channel:
        channel.queue_declare(QUEUE)
    connections.close_all()
    begin, started = os.pipe()
    connected, ready = os.pipe()
    children = []
    for _ in range(COMMITTERS):
        child = os.fork()
        if not child:
            os.close(started)
            os.close(connected)
            _commit(options, ready, begin)
        children.append(child)
    os.close(begin)
    os.close(ready)
    os.read(connected, 1)  # ends when each child has connected or has failed
    os.close(connected)
    # The children wait for the end of their own pipe, so that they begin together.
    began = time.perf_counter()
    os.close(started)
    codes = {os.waitpid(child, 0)[1] for child in children}
    if codes != {0}:
        raise AssertionError(f"committing processes ended with {codes}")
    return {"seconds": time.perf_counter() - began}


def _commit(options: dict[str, Any], ready: int, begin: int) -> None:
    code = 1
    try:
        with kombu.Connection(URL, transport_options=options) as broker:
            producer = broker.Producer()
            connection.ensure_connection()
            os.close(ready)
            os.read(begin, 1)
            for number in range(COMMITS):
                with transaction.atomic():
                    producer.publish({"number": number}, routing_key=QUEUE)
        code = 0
    except DatabaseError:
        traceback.print_exc()
    finally:
        os._exit(code)


@dataclass
class Messages(Ours):
    """The broker in a database that each measurement creates."""

    queued: int = FEW
    dead: int = 0

    def claim(self) -> Measured:
        """Measure a claim in a queue with ``queued`` messages and ``dead`` rows."""
        found = self._figures_of("claim", queued=self.queued, dead=self.dead)
        return Measured(
            found["seconds"],
            {
                "claim_p50_ms": round(1e3 * found["seconds"], 2),
                "claim_p95_ms": round(1e3 * found["p95"], 2),
            },
        )

    def commits(self, *, notify: bool) -> Measured:
        """Measure the commits of 64 processes."""
        return Measured(self._figures_of("commits", notify=notify)["seconds"], {})

    def _figures_of(self, command: str, **given: Any) -> dict[str, float]:
        self.servers.make_database(self.name)
        seconds = patience(COMMITTERS * COMMITS) + (self.queued + self.dead) / 5_000
        command_line = [sys.executable, "-m", "benchmarks.messages", command]
        return figures(command_line, given, seconds, **self.variable())


def main(command: str, given: dict[str, Any]) -> None:
    """Run one command and print its figures."""
    django.setup()
    commands: dict[str, Callable[..., dict[str, float]]] = {"claim": claim, "commits": commits}
    print(json.dumps(commands[command](**given)))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))

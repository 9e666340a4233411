"""The benchmarks: the contenders of each, in their order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.backlog import BATCH, FUTURE_OF, Backlog
from benchmarks.callbacks import PAUSE, RATE, THREADS, Callbacks
from benchmarks.contenders import BareCelery, Ours
from benchmarks.contest import OURS, Contender, Measured
from benchmarks.coroutines import coroutines
from benchmarks.durations import durations
from benchmarks.failover import Failover
from benchmarks.graphs import EDGES_CHECKED, Canvas, OurGraphs
from benchmarks.lag import lag
from benchmarks.lanes import lanes
from benchmarks.large_tables import LargeTables
from benchmarks.limit import limit
from benchmarks.many_queues import DUE, TOGETHER, ManyQueues
from benchmarks.messages import AT_ONCE, COMMITS, COMMITTERS, FEW, Messages
from benchmarks.neighbour import neighbour
from benchmarks.recurring import recurring
from benchmarks.stage import SLOW, Stage, a_contender, database_queues
from benchmarks.web_programme import admin, api

DEFAULT_N = {
    "enqueue": 2_000,
    "run": 4_000,
    "durations": 3_000,
    "coroutines": 1_000,
    "dispatch": 20_000,
    "recurring": 50_000,
    "graph": 10_000,
    "lag": 2_000,
    "lanes": 2_000,
    "limit": 400,
    "neighbour": 200,
    "claim": 1_000_000,
    "messages": 100_000,
    "large": 1_000_000,
    "queues": 1_000,
    "api": 1_000_000,
    "admin": 1_000_000,
    "callbacks": 1_000,
    "failover": 1,
}
_FEWEST = 10_000
BULK_TIMES = 10
"""The ratio of the tasks that are created in bulk to those created by single calls."""
BATCHED_TIMES = 5
"""The ratio of the tasks that run in batches to those that have messages of their own."""


_WITHOUT_BULK = frozenset({"dbos"})
_BATCHES = "PENDING first, batches of 100"
_STARTS_BATCHES = frozenset({"pgqueuer"})
"""Peers that start many tasks together. They are compared with batches of the same size."""
_CONCURRENCIES = {
    "procrastinate": (1, 20),
    "django-ox": (1, 4),
    "oban": (50,),
    "pgqueuer": (100,),
    "dbos": (20,),
}
"""Of pgqueuer: the number of jobs in a batch."""


def enqueue(stage: Stage) -> list[Contender]:
    """Compare enqueueing, one by one and in bulk."""
    found, many = [], BULK_TIMES * stage.n
    for broker in stage.brokers:
        ours = Ours(stage.servers, broker)
        found.append(
            a_contender(stage, "enqueue", "single", OURS, broker, partial(ours.enqueue, stage.n))
        )
        if "celery" in stage.pythons:
            celery = BareCelery(stage.servers, broker, stage.pythons["celery"])
            measure = partial(celery.enqueue, stage.n)
            found.append(
                a_contender(stage, "enqueue", "single", "celery", broker, measure, database=None)
            )
    ours = Ours(stage.servers, stage.brokers[0])
    unpublished = partial(ours.enqueue, stage.n, FAST_PATH=False)
    found.append(a_contender(stage, "enqueue", "single, not published", OURS, None, unpublished))
    batched = partial(ours.enqueue, stage.n, task="batched_noop")
    found.append(a_contender(stage, "enqueue", "single, batches", OURS, stage.brokers[0], batched))
    together = partial(ours.enqueue, stage.n, command="transactions")
    found.append(a_contender(stage, "enqueue", "in transactions", OURS, None, together))
    found.append(
        a_contender(stage, "enqueue", "bulk", OURS, None, partial(ours.bulk, many), n=many)
    )
    for name, peer in database_queues(stage).items():
        few = stage.n // SLOW.get(name, 1)
        single = partial(peer.run_command, "enqueue", few)
        found.append(a_contender(stage, "enqueue", "single", name, None, single, n=few))
        if name not in _WITHOUT_BULK:
            bulk = partial(peer.run_command, "bulk", many)
            found.append(a_contender(stage, "enqueue", "bulk", name, None, bulk, n=many))
    return found


def _run_with_memory(contender: Ours | BareCelery, n: int, prefetch: int, **more: Any) -> Measured:
    seconds = contender.run(n, prefetch, **more)
    return Measured(seconds, contender.accounts.memory)


def _our_runs(stage: Stage, broker: str) -> list[Contender]:
    """Return the variants of this package: tasks with messages of their own, and batches."""
    ours, found = Ours(stage.servers, broker), list[Contender]()
    for what, prefetch, published in (
        ("PENDING first, prefetch 1", 1, False),
        ("QUEUED first, prefetch 1", 1, True),
        ("QUEUED first, prefetch 4", 4, True),
    ):
        if published and broker == "database":
            continue  # nothing is published there
        measure = partial(_run_with_memory, ours, stage.n, prefetch, published=published)
        found.append(a_contender(stage, "run", what, OURS, broker, measure))
    many = BATCHED_TIMES * stage.n
    batched = partial(_run_with_memory, ours, many, 1, published=False, task="batched_noop")
    return [*found, a_contender(stage, "run", _BATCHES, OURS, broker, batched, n=many)]


def run(stage: Stage) -> list[Contender]:
    """Compare running no-op tasks."""
    found = []
    for broker in stage.brokers:
        found += _our_runs(stage, broker)
        if "celery" in stage.pythons:
            celery = BareCelery(stage.servers, broker, stage.pythons["celery"])
            found += [
                a_contender(
                    stage,
                    "run",
                    f"published first, prefetch {prefetch}",
                    "celery",
                    broker,
                    partial(_run_with_memory, celery, stage.n, prefetch),
                    database=None,
                    rival="PENDING first, prefetch 1",
                )
                for prefetch in (1, 4)
            ]
    for name, concurrencies in _CONCURRENCIES.items():
        if peer := database_queues(stage).get(name):
            together = name in _STARTS_BATCHES
            number = BATCHED_TIMES * stage.n if together else stage.n // SLOW.get(name, 1)
            found += [
                a_contender(
                    stage,
                    "run",
                    f"rows first, {'batches of' if together else 'concurrency'} {concurrency}",
                    name,
                    None,
                    partial(peer.run_command, "run", number, concurrency=concurrency),
                    n=number,
                    rival=_BATCHES if together else "PENDING first, prefetch 1",
                )
                for concurrency in concurrencies
            ]
    return found


def dispatch(stage: Stage) -> list[Contender]:
    """Measure how one scheduler publishes due tasks."""
    return [
        a_contender(
            stage,
            "dispatch",
            "due rows",
            OURS,
            broker,
            partial(Ours(stage.servers, broker).dispatch, stage.n),
        )
        for broker in stage.brokers
    ]


def graph(stage: Stage) -> list[Contender]:
    """Compare graphs: n into one, one into n, a chain of n/10, and with ``--large`` layers of 10 n.
    On Redis.
    """
    ours, found, n = OurGraphs(stage.servers, "redis"), [], stage.n
    canvas = (
        Canvas(stage.servers, "redis", stage.pythons["celery"])
        if "celery" in stage.pythons
        else None
    )
    for shape, nodes in (("fan-in", n + 1), ("fan-out", n + 1), ("chain", n // 10)):
        found.append(
            a_contender(
                stage, "graph", shape, OURS, "redis", partial(ours.run_graph, shape, nodes), n=nodes
            )
        )
        if canvas is not None:
            measure = partial(canvas.run_canvas, shape, nodes)
            found.append(
                a_contender(
                    stage, "graph", shape, "celery", "redis", measure, n=nodes, database=None
                )
            )
    if stage.large:
        measure = partial(ours.run_graph, "layered", 10 * n)
        found.append(a_contender(stage, "graph", "layered", OURS, "redis", measure, n=10 * n))
    found.append(
        a_contender(stage, "graph", "validate edges", OURS, None, ours.validate, n=EDGES_CHECKED)
    )
    return found


def claim(stage: Stage) -> list[Contender]:
    """Compare reading the queues and claiming a batch with 10,000 and with n ended tasks in the
    table.
    """
    found = []
    for finished in sorted({min(_FEWEST, stage.n), stage.n}):
        what = f"{BATCH} due, {finished:,} finished, {finished // FUTURE_OF:,} future"
        measure = Backlog(stage.servers, "redis", finished).claim
        found.append(a_contender(stage, "claim", what, OURS, None, measure, n=BATCH))
    return found


def messages(stage: Stage) -> list[Contender]:
    """Compare the broker in the database with 100 and with n queued messages, with n dead rows, and
    the commits of many processes with and without notifications.
    """
    found = []
    for queued, dead in ((FEW, 0), (stage.n, 0), (FEW, 10 * stage.n)):
        what = f"claim of {AT_ONCE}, {queued:,} queued, {dead:,} dead"
        measure = Messages(stage.servers, "database", queued=queued, dead=dead).claim
        found.append(a_contender(stage, "messages", what, OURS, "database", measure, n=AT_ONCE))
    ours = Messages(stage.servers, "database")
    for notify in (True, False):
        what = f"{COMMITTERS} processes commit, {'with' if notify else 'without'} notifications"
        measure = partial(ours.commits, notify=notify)
        number = COMMITTERS * COMMITS
        found.append(a_contender(stage, "messages", what, OURS, "database", measure, n=number))
    return found


def large(stage: Stage) -> list[Contender]:
    """Compare the statements of a task's life with 10,000 and with n ended, and as many future,
    tasks in the table.
    """
    found = []
    for number in sorted({min(_FEWEST, stage.n), stage.n}):
        what = f"{BATCH} due, {number:,} finished, {number:,} future"
        measure = LargeTables(stage.servers, "redis", number=number).operations
        found.append(a_contender(stage, "large", what, OURS, None, measure, n=BATCH))
    return found


def queues(stage: Stage) -> list[Contender]:
    """Measure one poll with due tasks in n queues, and operations in n, with ``--large`` 10 n, scopes."""
    ours, found = ManyQueues(stage.servers, "redis"), []
    for tenants, more in ((1, ""), (20, ""), (20, ", several in each queue")):
        what = f"{DUE} due in each of {stage.n:,} queues, tenants: {tenants}{more}"
        measure = partial(ours.poll, stage.n, tenants, mixed=bool(more))
        found.append(a_contender(stage, "queues", what, OURS, "redis", measure, n=DUE * stage.n))
    for n in (stage.n, 10 * stage.n)[: 1 + stage.large]:
        what = f"claim {TOGETHER} of {n:,} queues and tenants, {10 * n:,} keys"
        measure = partial(ours.scopes, n, 10 * n)
        found.append(a_contender(stage, "queues", what, OURS, None, measure, n=TOGETHER))
    return found


def callbacks(stage: Stage) -> list[Contender]:
    """Measure callbacks to a server that answers after 50 ms: how many one worker process with ten
    threads sends per second, and how late n/5 requests arrive at a low rate, alone and beside
    callbacks to a server that does not answer; and how many are lost if processes are killed.
    """
    found, few = [], max(1, stage.n // 5)
    for broker in stage.brokers:
        ours = Callbacks(stage.servers, broker)
        for what, measure, n in (
            (f"{THREADS} threads, {round(1e3 * PAUSE)} ms", ours.throughput, stage.n),
            (f"due at {RATE}/s", ours.start_late, few),
            (f"due at {RATE}/s beside a hanging server", ours.beside_a_hanging_server, stage.n),
            ("under kills", ours.under_kills, stage.n),
        ):
            found.append(
                a_contender(stage, "callbacks", what, OURS, broker, partial(measure, n), n=n)
            )
    return found


def failover(stage: Stage) -> list[Contender]:
    """Measure how long no schedule fires after the leader was killed, with two schedulers at default
    settings. On Redis.
    """
    measure = Failover(stage.servers, "redis").leader_killed
    return [a_contender(stage, "failover", "leader killed", OURS, "redis", measure, n=1)]


PROGRAMMES: dict[str, Callable[[Stage], list[Contender]]] = {
    "enqueue": enqueue,
    "run": run,
    "durations": durations,
    "coroutines": coroutines,
    "dispatch": dispatch,
    "recurring": recurring,
    "graph": graph,
    "lag": lag,
    "lanes": lanes,
    "limit": limit,
    "neighbour": neighbour,
    "claim": claim,
    "messages": messages,
    "large": large,
    "queues": queues,
    "api": api,
    "admin": admin,
    "callbacks": callbacks,
    "failover": failover,
}

"""The parameters of a benchmark, and what its contenders have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.contenders import DatabaseQueue
from benchmarks.contest import Contender, Measured
from benchmarks.servers import Servers


@dataclass(frozen=True)
class Stage:
    """The parameters of a benchmark: servers, brokers, sizes, and the interpreters of the peers."""

    servers: Servers
    brokers: tuple[str, ...]
    n: int
    pythons: dict[str, str]
    large: bool = False
    prunable: int = 0
    new_schedules: int = 0
    period: int = 0


_PROGRAMS = {
    "procrastinate": ("benchmarks.peers.procrastinate_jobs", ""),
    "django-ox": ("benchmarks.peers.ox.jobs", "benchmarks.peers.ox.settings"),
    "oban": ("benchmarks.peers.oban_jobs", ""),
    "pgqueuer": ("benchmarks.peers.pgqueuer_jobs", ""),
    "dbos": ("benchmarks.peers.dbos_workflows", ""),
}
SLOW = {"dbos": 4}
"""Peers that are measured with this part of the tasks, because they would need minutes."""


def database_queues(stage: Stage) -> dict[str, DatabaseQueue]:
    """Return the peers that use PostgreSQL as their queue, by name."""
    return {
        name: DatabaseQueue(
            stage.servers, name.replace("-", "_"), program, stage.pythons[name], settings
        )
        for name, (program, settings) in _PROGRAMS.items()
        if name in stage.pythons
    }


def a_contender(
    stage: Stage,
    benchmark: str,
    what: str,
    peer: str,
    broker: str | None,
    measure: Callable[[], float | Measured],
    *,
    n: int | None = None,
    rival: str = "",
    database: str | None = "postgresql",
) -> Contender:
    """Return a contender of this stage, with its n unless another is given."""
    return Contender(benchmark, what, peer, database, broker, n or stage.n, measure, rival)

"""The benchmark of async functions: as many wait at once as one process of a worker has threads."""

from __future__ import annotations

from functools import partial

from benchmarks.contenders import Ours
from benchmarks.contest import OURS, Contender, Measured
from benchmarks.stage import Stage, a_contender

# Seconds that each function waits.
_PAUSE = 1.0


class OurCoroutines(Ours):
    """This package with one scheduler and one worker with the pool ``threads``."""

    def run_waiting(self, n: int) -> Measured:
        """Time n functions that wait, all at once, from the first start to the last success."""
        seconds = self.run(
            n, 1, published=False, task="waiting", children=n, pool="threads", pause=_PAUSE
        )
        facts = {**self.accounts.memory, "database_connections": float(self.connections)}
        return Measured(seconds, facts)


def coroutines(stage: Stage) -> list[Contender]:
    """Measure n async functions that wait for a second each, at once in one process."""
    return [
        a_contender(
            stage,
            "coroutines",
            f"{stage.n:,} at once, {_PAUSE:g} s each",
            OURS,
            broker,
            partial(OurCoroutines(stage.servers, broker).run_waiting, stage.n),
        )
        for broker in stage.brokers
    ]

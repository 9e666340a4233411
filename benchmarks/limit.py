"""The benchmark of a concurrency limit: short tasks of which four may run at the same time."""

from __future__ import annotations

from functools import partial

from benchmarks.contenders import Ours
from benchmarks.contest import OURS, Contender, Measured
from benchmarks.project.limited import LIMIT, PAUSE
from benchmarks.stage import Stage, a_contender

CHILDREN = 8
CEILING = LIMIT / PAUSE
"""The tasks per second if each place is used again without any delay."""


class OurLimit(Ours):
    """This package with one scheduler and one worker that has more children than the limit."""

    def run_limited(self, n: int) -> Measured:
        """Time n waiting tasks under the limit, from the first start to the last success."""
        seconds = self.run(n, 1, published=False, task="limited", children=CHILDREN)
        return Measured(seconds, {"percent_of_ceiling": 100 * n / seconds / CEILING})


def limit(stage: Stage) -> list[Contender]:
    """Measure tasks of 50 ms with ``max_concurrency=4``, of which at most 80 per second can run."""
    what = f"{round(1e3 * PAUSE)} ms, max_concurrency={LIMIT}"
    return [
        a_contender(
            stage,
            "limit",
            what,
            OURS,
            broker,
            partial(OurLimit(stage.servers, broker).run_limited, stage.n),
        )
        for broker in stage.brokers
    ]

"""The benchmark of tasks that run for a while, beside bare Celery: one worker with two processes and
a backlog that was created before it.
"""

from __future__ import annotations

from functools import partial

from benchmarks.contenders import BareCelery, Ours
from benchmarks.contest import OURS, Contender, Measured
from benchmarks.stage import Stage, a_contender

# Seconds of each function; which part of the backlog is measured; and which of it for bare Celery,
# whose rate does not depend on how many have run. More than 1,000 of 0.1 s are measured, because
# that many are published before any worker is known.
DURATIONS = ((0.0, 1.0, 1.0), (0.1, 0.55, 0.13), (1.0, 0.027, 0.014))
# Two rounds of two processes.
_FEWEST = 4


def _measured(ours: Ours, n: int, pause: float, enough: int) -> Measured:
    seconds = ours.run(n, 1, published=False, task="lasting", pause=pause, enough=enough)
    return Measured(seconds, {"messages_per_100_tasks": round(100 * ours.messages, 1)})


def durations(stage: Stage) -> list[Contender]:
    """Compare tasks of 0, 0.1 and 1 s with a backlog of n."""
    found, ours = list[Contender](), {one: Ours(stage.servers, one) for one in stage.brokers}
    for pause, part, part_of_celery in DURATIONS:
        what = f"{pause:g} s, backlog of {stage.n:,}"
        for broker in stage.brokers:
            number = min(stage.n, max(_FEWEST, round(part * stage.n)))
            measure = partial(_measured, ours[broker], stage.n, pause, number)
            found.append(a_contender(stage, "durations", what, OURS, broker, measure, n=number))
            if "celery" in stage.pythons:
                celery = BareCelery(stage.servers, broker, stage.pythons["celery"])
                number = min(stage.n, max(_FEWEST, round(part_of_celery * stage.n)))
                run = partial(celery.run, stage.n, 1, pause=pause, enough=number)
                found.append(
                    a_contender(
                        stage, "durations", what, "celery", broker, run, n=number, database=None
                    )
                )
    return found

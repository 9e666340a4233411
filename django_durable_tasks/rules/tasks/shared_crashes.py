"""Which runs of a dead node are charged with its death, and when each of them starts again. Pure.

Any of the runs that died together may have ended the process. The first shared crash of a task is
not counted, because most deaths are those of a machine or a deployment. After the second one the
tasks start apart: each after the previous one has run for longer than it did before. If their node
dies again, the task that has not outlived its last crash is charged, if there is exactly one. A run
that was alone on its node is always charged.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

UNCOUNTED_MAX = 10
"""A task whose process died more often than this together with others is charged for each further
death. Otherwise one that ends its process at random times would end processes for ever.
"""
_SPREAD, _SPREAD_MAX = 600.0, 3_600.0
"""Seconds in which all tasks of a dead node start apart after their second shared crash, times the
number of their shared crashes, and the maximum. Long or many tasks start closer together then.
"""


class LostRun(NamedTuple):
    """A run of a dead node: its age when it was found lost (seconds), and for its task the number
    of counted and uncounted crashes, and the age of its last lost run.
    """

    task_id: uuid.UUID
    age: float
    counted: int = 0
    uncounted: int = 0
    last_age: float = 0.0


class Crash(NamedTuple):
    """Whether a crash is counted, and the seconds until the task starts again."""

    is_counted: bool
    delay: float = 0.0


def judged(runs: Sequence[LostRun], uncertainty: float) -> dict[uuid.UUID, Crash]:
    """Return how the runs that died together on one node are judged.

    ``uncertainty``: seconds by which the age of a run when it was found lost may exceed its age
    when it died.
    """
    if len(runs) == 1:
        return {runs[0].task_id: Crash(is_counted=True)}
    apart = [run for run in runs if run.uncounted >= 2]
    suspects = [run.task_id for run in apart if run.age <= run.last_age + uncertainty]
    charged = set(suspects if len(suspects) == 1 else ())
    charged |= {run.task_id for run in apart if run.uncounted >= UNCOUNTED_MAX}
    # Those that were charged before start last: the others have outlived their last crash then.
    again = sorted(
        (run for run in runs if run.uncounted),
        key=lambda run: (run.counted + (run.task_id in charged), run.age),
    )
    delays = _delays(again, uncertainty)
    return {
        run.task_id: Crash(run.task_id in charged, delays.get(run.task_id, 0.0)) for run in runs
    }


def _delays(runs: Iterable[LostRun], uncertainty: float) -> dict[uuid.UUID, float]:
    """Return when each of these tasks starts so that the previous one has outlived its crash."""
    found, at, most = dict[uuid.UUID, float](), 0.0, 0.0
    for run in runs:
        found[run.task_id] = at
        at += run.age + 2 * uncertainty
        most = max(most, min(_SPREAD * run.uncounted, _SPREAD_MAX))
    scale = min(1.0, most / at) if at else 1.0
    return {task_id: delay * scale for task_id, delay in found.items()}

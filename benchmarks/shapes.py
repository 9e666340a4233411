"""Workflows of known shapes: ``python -m benchmarks.shapes start '{"shape": "chain", "n": 1000}'``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import django

if TYPE_CHECKING:
    from django_durable_tasks import Workflow

LAYER, ABOVE = 1_000, 2
"""The tasks of each layer of a layered graph, and the upstreams of each task in the layer before.
"""


def _task() -> Any:
    from benchmarks.project.tasks import noop

    return noop


def fan_in(wf: Workflow, n: int) -> None:
    """Make one task depend on all others."""
    noop = _task()
    wf.add(noop, n, after=[wf.add(noop, number) for number in range(n - 1)])


def fan_out(wf: Workflow, n: int) -> None:
    """Make all tasks depend on the first."""
    noop = _task()
    first = wf.add(noop, 0)
    for number in range(1, n):
        wf.add(noop, number, after=first)


def chain(wf: Workflow, n: int) -> None:
    """Make each task depend on the one before."""
    noop, last = _task(), None
    for number in range(n):
        last = wf.add(noop, number, after=last)


def layered(wf: Workflow, n: int) -> None:
    """Make each task of a layer depend on two tasks of the layer before."""
    noop, above = _task(), list[Any]()
    for _ in range(n // LAYER):
        above = [
            wf.add(
                noop,
                place,
                after=[above[(place + step) % LAYER] for step in range(ABOVE)] if above else (),
            )
            for place in range(LAYER)
        ]


SHAPES: dict[str, Callable[[Workflow, int], None]] = {
    "fan-in": fan_in,
    "fan-out": fan_out,
    "chain": chain,
    "layered": layered,
}


def _built(shape: str, n: int) -> Workflow:
    from django_durable_tasks import Workflow

    wf = Workflow(shape)
    SHAPES[shape](wf, n)
    return wf


def start(shape: str, n: int) -> dict[str, Any]:
    """Start a workflow of n tasks. Return when it started (Unix time), its id, and how long the
    start took.
    """
    wf = _built(shape, n)
    began, clock = time.time(), time.perf_counter()
    run = wf.start()
    return {"began": began, "seconds": time.perf_counter() - clock, "run": str(run.pk)}


def validate(n: int) -> dict[str, Any]:
    """Check a layered graph of n edges: cycles, references, limits."""
    wf = _built("layered", n // ABOVE + LAYER)
    clock = time.perf_counter()
    plan = wf.plan(most_tasks=n, most_edges=n)
    took = time.perf_counter() - clock
    if plan.edges != n:
        raise AssertionError(f"{plan.edges} edges were checked, not {n}")
    return {"seconds": took}


def main(command: str, given: dict[str, Any]) -> None:
    """Run one command and print its figures."""
    django.setup()
    commands: dict[str, Callable[..., dict[str, Any]]] = {"start": start, "validate": validate}
    print(json.dumps(commands[command](**given)))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))

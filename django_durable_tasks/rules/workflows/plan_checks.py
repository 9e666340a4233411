"""Checks of a plan: no cycles, and references only to results of upstreams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django_durable_tasks.exceptions import (
    DependencyCycle,
    InvalidReference,
)
from django_durable_tasks.rules.dependencies import (
    cycle_in,
    layers,
)
from django_durable_tasks.rules.workflows.plan import (
    PlannedTask,
    references_in,
)


def refers(label: str, arguments: Any) -> bool:
    try:
        return bool(references_in(arguments))
    except RecursionError:
        raise InvalidReference(
            f"The arguments of {label!r} are nested too deep, or contain themselves."
        ) from None


def _above(tasks: Sequence[PlannedTask]) -> dict[int, list[int]]:
    return {
        place: [edge.upstream for edge in task.edges if isinstance(edge.upstream, int)]
        for place, task in enumerate(tasks)
    }


def check_cycle(tasks: Sequence[PlannedTask]) -> None:
    path = cycle_in(_above(tasks))
    if path:
        raise DependencyCycle(
            "The tasks wait for each other: " + " -> ".join(tasks[place].step for place in path)
        )


def check_references(tasks: Sequence[PlannedTask]) -> None:
    above = _above(tasks)
    ancestors: dict[int, int] | None = None
    for place, task in enumerate(tasks):
        for reference in references_in([task.args, dict(task.kwargs)]) if task.refers else ():
            if reference.place in above[place]:
                continue
            ancestors = _ancestors(above) if ancestors is None else ancestors
            if not ancestors[place] >> reference.place & 1:
                raise InvalidReference(
                    f"{task.step!r} refers to the result of {tasks[reference.place].step!r}, which"
                    " is not upstream of it: add it to after=..."
                )


def _ancestors(above: Mapping[int, list[int]]) -> dict[int, int]:
    """Return the set of upstreams of each position, as the bits of a number."""
    found: dict[int, int] = {}
    for layer in layers(above):
        for place in layer:
            bits = 0
            for upper in above[place]:
                bits |= found[upper] | 1 << upper
            found[place] = bits
    return found

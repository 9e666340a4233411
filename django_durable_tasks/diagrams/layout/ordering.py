"""The order of the items in each layer: few crossings, by barycentre sweeps (Sugiyama, Tagawa and
Toda, 1981).

The items of a sub-workflow are adjacent in every layer, and two sub-workflows have the same order
in every layer that they share; ``placement`` relies on both.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence

from django_durable_tasks.diagrams.layout.mesh import LayoutGraph

_SWEEPS = 14
_LARGE = 4_000
_PATIENCE = 4

Rows = list[list[int]]


def ordered(mesh: LayoutGraph, alone: frozenset[int]) -> Rows:
    """Return the items of each layer in order, without the boxes ``alone``; deterministic."""
    before, after = mesh.neighbours()
    rows = _discovered(mesh, after, alone)
    sweeps = _SWEEPS if len(mesh.links) < _LARGE else _PATIENCE
    best, fewest, patience = rows, crossings(rows, after), _PATIENCE
    for sweep in range(sweeps):
        if not fewest or not patience:
            break
        rows = _swept(
            mesh, rows, (after, before) if sweep % 2 else (before, after), upwards=bool(sweep % 2)
        )
        count = crossings(rows, after)
        patience = _PATIENCE if count < fewest else patience - 1
        if count < fewest:
            best, fewest = rows, count
    return best


def crossings(rows: Rows, after: Sequence[Sequence[int]]) -> int:
    """Return how many pairs of links cross."""
    total = 0
    place = {item: at for row in rows for at, item in enumerate(row)}
    for row in rows:
        ends: list[int] = []
        for item in row:
            reached = sorted(place[other] for other in after[item])
            total += sum(len(ends) - bisect_right(ends, end) for end in reached)
            for end in reached:
                insort(ends, end)
    return total


def _discovered(mesh: LayoutGraph, after: Sequence[Sequence[int]], alone: frozenset[int]) -> Rows:
    """Return the items in the order of a depth-first search, so that connected items start
    together.
    """
    seen: dict[int, int] = {}
    for root in sorted(
        set(range(len(mesh.layer))) - alone, key=lambda item: (mesh.layer[item], item)
    ):
        stack = [root]
        while stack:
            item = stack.pop()
            if item not in seen:
                seen[item] = len(seen)
                stack.extend(reversed(after[item]))
    everything = [[item for item in row if item in seen] for row in _by_layer(mesh)]
    keys = [float("inf")] * len(mesh.groups.paths)
    for item, met in seen.items():
        for group in mesh.groups.chain(mesh.group[item]):
            keys[group] = min(keys[group], met)
    return [
        _sorted(mesh, row, {item: float(seen[item]) for item in row}, keys) for row in everything
    ]


def _by_layer(mesh: LayoutGraph) -> Rows:
    rows: Rows = [[] for _ in range(max(mesh.layer, default=-1) + 1)]
    for item, layer in enumerate(mesh.layer):
        rows[layer].append(item)
    return rows


def _sorted(
    mesh: LayoutGraph, row: Sequence[int], values: dict[int, float], keys: Sequence[float]
) -> list[int]:
    """Sort by value; a group is sorted as one item by its own key, in every layer."""
    place = {item: at for at, item in enumerate(row)}
    groups = {
        group: tuple((keys[step], 1, step) for step in mesh.groups.chain(group))
        for group in set(map(mesh.group.__getitem__, row))
    }
    return sorted(row, key=lambda item: (*groups[mesh.group[item]], (values[item], 0, place[item])))


def _swept(
    mesh: LayoutGraph, rows: Rows, sides: tuple[list[list[int]], list[list[int]]], *, upwards: bool
) -> Rows:
    """Sort each layer by the mean position of its neighbours on the first side."""
    at = {item: (place + 0.5) / len(row) for row in rows for place, item in enumerate(row)}
    keys = _group_keys(mesh, at, sides)
    swept = [list(row) for row in rows]
    for layer in reversed(range(len(rows))) if upwards else range(len(rows)):
        values = {
            item: _mean([at[other] for other in sides[0][item]], at[item]) for item in rows[layer]
        }
        swept[layer] = _sorted(mesh, rows[layer], values, keys)
        for place, item in enumerate(swept[layer]):
            at[item] = (place + 0.5) / len(swept[layer])
    return swept


def _group_keys(
    mesh: LayoutGraph, at: dict[int, float], sides: tuple[list[list[int]], list[list[int]]]
) -> list[float]:
    """Return for each group the mean position of its neighbours outside; that of its items if it
    has none.
    """
    count = len(mesh.groups.paths)
    outside: list[list[float]] = [[] for _ in range(count)]
    inside: list[list[float]] = [[] for _ in range(count)]
    chains = [frozenset(mesh.groups.chain(group)) for group in range(count)]
    for item, place in at.items():
        for group in chains[mesh.group[item]]:
            inside[group].append(place)
            for side in sides:
                outside[group].extend(
                    at[other] for other in side[item] if group not in chains[mesh.group[other]]
                )
    return [_mean(outside[group], _mean(inside[group], 0.0)) for group in range(count)]


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise

"""The layers of the nodes: cycles are broken, then each node is placed by the longest path from a
node without upstreams.

A node's layer is the number of edges on the longest path that leads to it, so every edge goes from
a lower to a higher layer. A cycle is broken at the edge that closes it (depth first, in natural
order). All steps start from one canonical order, so the order of the input does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django_durable_tasks.diagrams.labels import natural
from django_durable_tasks.diagrams.model import Diagram, DiagramEdge, DiagramNode

Ends = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Layered:
    """A diagram in canonical order; nodes and edges are identified by their positions.

    ``ends``: the positions of the nodes of each edge. ``broken``: the edges that close a cycle.
    ``outside``: the edges with an end that is not in the diagram. ``critical``: the nodes of the
    critical path, in order.
    """

    diagram: Diagram
    nodes: tuple[DiagramNode, ...]
    edges: tuple[DiagramEdge, ...]
    ends: tuple[Ends, ...]
    broken: frozenset[int]
    outside: tuple[DiagramEdge, ...]
    layer: tuple[int, ...]
    critical: tuple[int, ...]

    def kept(self) -> Iterator[Ends]:
        """Yield the ends of the edges that close no cycle."""
        return (ends for place, ends in enumerate(self.ends) if place not in self.broken)

    def layers(self) -> list[list[int]]:
        """Return the nodes of each layer."""
        return by_layer(self.layer)

    def critical_microseconds(self) -> int:
        """Return the total duration of the nodes of the critical path."""
        return sum(self.nodes[place].microseconds or 0 for place in self.critical)


def layered(diagram: Diagram) -> Layered:
    """Return the diagram in canonical order, without cycles and in layers; linear in nodes and
    edges.
    """
    nodes = tuple(sorted(diagram.nodes, key=lambda node: (natural(node.label), node.id)))
    places = {node.id: place for place, node in enumerate(nodes)}
    inside: list[DiagramEdge] = []
    outside: list[DiagramEdge] = []
    for edge in diagram.edges:
        (inside if edge.source in places and edge.target in places else outside).append(edge)
    inside.sort(
        key=lambda edge: (
            places[edge.source],
            places[edge.target],
            edge.kind,
            edge.resolved,
            edge.outcome,
        )
    )
    outside.sort(
        key=lambda edge: (edge.source, edge.target, edge.kind, edge.resolved, edge.outcome)
    )
    ends = tuple((places[edge.source], places[edge.target]) for edge in inside)
    backwards = closing(len(nodes), ends)
    broken = frozenset(place for place, pair in enumerate(ends) if pair in backwards)
    kept = [pair for pair in ends if pair not in backwards]
    order = topological(len(nodes), kept)
    layer = depths(len(nodes), kept, order)
    critical = _heaviest(nodes, kept, order)
    return Layered(diagram, nodes, tuple(inside), ends, broken, tuple(outside), layer, critical)


def neighbours(count: int, ends: Sequence[Ends]) -> list[list[int]]:
    """Return the targets of each source, in the order of the edges."""
    found: list[list[int]] = [[] for _ in range(count)]
    for source, target in ends:
        found[source].append(target)
    return found


def closing(count: int, ends: Sequence[Ends]) -> set[Ends]:
    """Return the back edges of a depth-first search; without them there is no cycle."""
    targets = neighbours(count, ends)
    waited_for = {target for _, target in ends}
    roots = [place for place in range(count) if place not in waited_for]
    found: set[Ends] = set()
    entered, left = bytearray(count), bytearray(count)
    for root in [*roots, *range(count)]:
        if entered[root]:
            continue
        entered[root] = 1
        path = [(root, iter(targets[root]))]
        while path:
            place, following = path[-1]
            target = next(following, None)
            if target is None:
                left[place] = 1
                path.pop()
            elif not entered[target]:
                entered[target] = 1
                path.append((target, iter(targets[target])))
            elif not left[target]:
                found.add((place, target))
    return found


def topological(count: int, ends: Sequence[Ends]) -> list[int]:
    """Return the positions in topological order; shorter than ``count`` if there is a cycle."""
    targets = neighbours(count, ends)
    missing = [0] * count
    for _, target in ends:
        missing[target] += 1
    order = [place for place in range(count) if not missing[place]]
    for place in order:
        for target in targets[place]:
            missing[target] -= 1
            if not missing[target]:
                order.append(target)
    return order


def depths(count: int, ends: Sequence[Ends], order: Sequence[int]) -> tuple[int, ...]:
    """Return the length of the longest path to each position, in edges."""
    targets = neighbours(count, ends)
    depth = [0] * count
    for place in order:
        below = depth[place] + 1
        for target in targets[place]:
            depth[target] = max(depth[target], below)
    return tuple(depth)


def by_layer(layer: Sequence[int]) -> list[list[int]]:
    """Return the positions of each layer."""
    found: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for place, depth in enumerate(layer):
        found[depth].append(place)
    return found


def _heaviest(
    nodes: Sequence[DiagramNode], ends: Sequence[Ends], order: Sequence[int]
) -> tuple[int, ...]:
    """Return the critical path.

    Of all paths along edges that close no cycle it is the one with the longest total duration
    (start to completion of the run; an unmeasured duration counts as 0). Among equal ones it is the
    one with the most nodes, then the first in natural order.
    """
    targets = neighbours(len(nodes), ends)
    own = [(node.microseconds or 0, 1) for node in nodes]
    best, following = list(own), [-1] * len(nodes)
    for place in reversed(order):
        after = min(
            targets[place],
            key=lambda target: (-best[target][0], -best[target][1], target),
            default=-1,
        )
        if after >= 0:
            following[place] = after
            best[place] = (own[place][0] + best[after][0], 1 + best[after][1])
    place = min(
        range(len(nodes)), key=lambda start: (-best[start][0], -best[start][1], start), default=-1
    )
    path = []
    while place >= 0:
        path.append(place)
        place = following[place]
    return tuple(path)

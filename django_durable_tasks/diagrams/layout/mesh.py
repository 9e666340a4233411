"""The items of the layers: boxes, the bends of long edges, and the groups of sub-workflows.

Each sub-workflow is a group: a range across the layers, from its first to its last, without other
items. Therefore its frame is a rectangle that contains exactly its own items. A *bend* is the
position of an edge in a layer that it crosses; edges of one kind from one box share their bends. A
*keeper* reserves the space of a group in a layer where it would be empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from django_durable_tasks.diagrams.outline import Box, EdgePath, Outline

BEND = 6.0


@dataclass(slots=True)
class GroupTree:
    """The tree of sub-workflows; group 0 is the outer one, and a parent has a lower number than its
    children.
    """

    paths: list[tuple[str, ...]] = field(default_factory=lambda: [()])
    parents: list[int] = field(default_factory=lambda: [0])
    first: list[int] = field(default_factory=lambda: [0])
    last: list[int] = field(default_factory=lambda: [0])

    def chain(self, group: int) -> tuple[int, ...]:
        """Return the groups from the outermost, except group 0, to this one."""
        found = []
        while group:
            found.append(group)
            group = self.parents[group]
        return tuple(reversed(found))

    def shared(self, one: int, other: int) -> int:
        """Return the innermost group around both."""
        while one != other:
            one, other = (self.parents[one], other) if one > other else (one, self.parents[other])
        return one


@dataclass(slots=True)
class LayoutGraph:
    """Items by number: first the boxes, then bends and keepers; ``routes``: the items of each edge,
    left to right.

    ``links``: neighbours in adjacent layers with their weight, from the lower layer to the higher.
    """

    groups: GroupTree
    layer: list[int]
    group: list[int]
    size: list[float]
    routes: list[tuple[int, ...]]
    links: dict[tuple[int, int], float]
    boxes: int

    def add(self, layer: int, group: int, size: float) -> int:
        """Add an item; returns its number."""
        self.layer.append(layer)
        self.group.append(group)
        self.size.append(size)
        return len(self.layer) - 1

    def neighbours(self) -> tuple[list[list[int]], list[list[int]]]:
        """Return for each item its neighbours in the layer before and in the layer after."""
        before: list[list[int]] = [[] for _ in self.layer]
        after: list[list[int]] = [[] for _ in self.layer]
        for low, high in self.links:
            before[high].append(low)
            after[low].append(high)
        return before, after


def meshed(outline: Outline, size: float, alone: frozenset[int]) -> LayoutGraph:
    """Return the mesh of an outline with boxes of these sizes across the layers; without the boxes
    ``alone``.
    """
    boxes = outline.boxes
    groups, group = _group_tree(
        [() if place in alone else box.group for place, box in enumerate(boxes)]
    )
    mesh = LayoutGraph(
        groups, [box.layer for box in boxes], group, [size] * len(boxes), [], {}, len(boxes)
    )
    _measure(mesh, boxes, alone)
    bends: dict[tuple[int, str, int, int, bool], int] = {}
    for line in outline.lines:
        mesh.routes.append(tuple(_route(mesh, line, bends)))
        for low, high in zip(mesh.routes[-1], mesh.routes[-1][1:], strict=False):
            pull = 1.0 + 4.0 * (min(low, high) >= mesh.boxes) + 0.5 * line.critical
            mesh.links[low, high] = max(pull, mesh.links.get((low, high), 0.0))
    _keep_open(mesh, alone)
    return mesh


def _group_tree(owners: Sequence[tuple[str, ...]]) -> tuple[GroupTree, list[int]]:
    paths = sorted({owner[:depth] for owner in owners for depth in range(len(owner) + 1)} | {()})
    number = {path: place for place, path in enumerate(paths)}
    groups = GroupTree(
        paths, [number[path[:-1]] for path in paths], [0] * len(paths), [-1] * len(paths)
    )
    return groups, [number[owner] for owner in owners]


def _measure(mesh: LayoutGraph, boxes: Sequence[Box], alone: frozenset[int]) -> None:
    groups = mesh.groups
    groups.first = [max((box.layer for box in boxes), default=0)] * len(groups.paths)
    for place, box in enumerate(boxes):
        if place not in alone:
            for group in (0, *groups.chain(mesh.group[place])):
                groups.first[group] = min(groups.first[group], box.layer)
                groups.last[group] = max(groups.last[group], box.layer)


def _route(
    mesh: LayoutGraph, line: EdgePath, bends: dict[tuple[int, str, int, int, bool], int]
) -> Iterator[int]:
    low, high = sorted((line.source, line.target), key=lambda place: mesh.layer[place])
    group = mesh.groups.shared(mesh.group[low], mesh.group[high])
    yield low
    for layer in range(mesh.layer[low] + 1, mesh.layer[high]):
        key = (low, line.kind, group, layer, line.broken)
        if key not in bends:
            bends[key] = mesh.add(layer, group, BEND)
        yield bends[key]
    yield high


def _keep_open(mesh: LayoutGraph, alone: frozenset[int]) -> None:
    groups = mesh.groups
    filled = {
        (group, mesh.layer[item])
        for item, own in enumerate(mesh.group)
        if item not in alone
        for group in groups.chain(own)
    }
    for group in reversed(range(1, len(groups.paths))):
        for layer in range(groups.first[group], groups.last[group] + 1):
            if (group, layer) not in filled:
                mesh.add(layer, group, 0.0)
                filled.update((around, layer) for around in groups.chain(group))

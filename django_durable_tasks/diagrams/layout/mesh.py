"""The items of the layers: boxes, the bends of long edges, and lanes for sub-workflows.

Each sub-workflow has a lane: a range across the layers, from its first to its last, without other
items. Therefore its frame is a rectangle that contains exactly its own items. A *bend* is the
position of an edge in a layer that it crosses; edges of one kind from one box share their bends. A
*keeper* reserves a lane in a layer where it would be empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from django_durable_tasks.diagrams.outline import Box, EdgePath, Outline

BEND = 6.0


@dataclass(slots=True)
class Lanes:
    """The tree of sub-workflows; lane 0 is the outer one, and a parent has a lower number than its
    children.
    """

    paths: list[tuple[str, ...]] = field(default_factory=lambda: [()])
    parents: list[int] = field(default_factory=lambda: [0])
    first: list[int] = field(default_factory=lambda: [0])
    last: list[int] = field(default_factory=lambda: [0])

    def chain(self, lane: int) -> tuple[int, ...]:
        """Return the lanes from the outermost, except lane 0, to this one."""
        found = []
        while lane:
            found.append(lane)
            lane = self.parents[lane]
        return tuple(reversed(found))

    def shared(self, one: int, other: int) -> int:
        """Return the innermost lane around both."""
        while one != other:
            one, other = (self.parents[one], other) if one > other else (one, self.parents[other])
        return one


@dataclass(slots=True)
class Mesh:
    """Items by number: first the boxes, then bends and keepers; ``routes``: the items of each edge,
    left to right.

    ``links``: neighbours in adjacent layers with their weight, from the lower layer to the higher.
    """

    lanes: Lanes
    layer: list[int]
    lane: list[int]
    size: list[float]
    routes: list[tuple[int, ...]]
    links: dict[tuple[int, int], float]
    boxes: int

    def add(self, layer: int, lane: int, size: float) -> int:
        """Add an item; returns its number."""
        self.layer.append(layer)
        self.lane.append(lane)
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


def meshed(outline: Outline, size: float, alone: frozenset[int]) -> Mesh:
    """Return the mesh of an outline with boxes of these sizes across the layers; without the boxes
    ``alone``.
    """
    boxes = outline.boxes
    lanes, lane = _lanes([() if place in alone else box.group for place, box in enumerate(boxes)])
    mesh = Mesh(lanes, [box.layer for box in boxes], lane, [size] * len(boxes), [], {}, len(boxes))
    _measure(mesh, boxes, alone)
    bends: dict[tuple[int, str, int, int, bool], int] = {}
    for line in outline.lines:
        mesh.routes.append(tuple(_route(mesh, line, bends)))
        for low, high in zip(mesh.routes[-1], mesh.routes[-1][1:], strict=False):
            pull = 1.0 + 4.0 * (min(low, high) >= mesh.boxes) + 0.5 * line.critical
            mesh.links[low, high] = max(pull, mesh.links.get((low, high), 0.0))
    _keep_open(mesh, alone)
    return mesh


def _lanes(groups: Sequence[tuple[str, ...]]) -> tuple[Lanes, list[int]]:
    paths = sorted({group[:depth] for group in groups for depth in range(len(group) + 1)} | {()})
    number = {path: place for place, path in enumerate(paths)}
    lanes = Lanes(paths, [number[path[:-1]] for path in paths], [0] * len(paths), [-1] * len(paths))
    return lanes, [number[group] for group in groups]


def _measure(mesh: Mesh, boxes: Sequence[Box], alone: frozenset[int]) -> None:
    lanes = mesh.lanes
    lanes.first = [max((box.layer for box in boxes), default=0)] * len(lanes.paths)
    for place, box in enumerate(boxes):
        if place not in alone:
            for lane in (0, *lanes.chain(mesh.lane[place])):
                lanes.first[lane] = min(lanes.first[lane], box.layer)
                lanes.last[lane] = max(lanes.last[lane], box.layer)


def _route(
    mesh: Mesh, line: EdgePath, bends: dict[tuple[int, str, int, int, bool], int]
) -> Iterator[int]:
    low, high = sorted((line.source, line.target), key=lambda place: mesh.layer[place])
    lane = mesh.lanes.shared(mesh.lane[low], mesh.lane[high])
    yield low
    for layer in range(mesh.layer[low] + 1, mesh.layer[high]):
        key = (low, line.kind, lane, layer, line.broken)
        if key not in bends:
            bends[key] = mesh.add(layer, lane, BEND)
        yield bends[key]
    yield high


def _keep_open(mesh: Mesh, alone: frozenset[int]) -> None:
    lanes = mesh.lanes
    filled = {
        (lane, mesh.layer[item])
        for item, own in enumerate(mesh.lane)
        if item not in alone
        for lane in lanes.chain(own)
    }
    for lane in reversed(range(1, len(lanes.paths))):
        for layer in range(lanes.first[lane], lanes.last[lane] + 1):
            if (lane, layer) not in filled:
                mesh.add(layer, lane, 0.0)
                filled.update((around, layer) for around in lanes.chain(lane))

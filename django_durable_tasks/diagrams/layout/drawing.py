"""A drawing in pixels: rectangles for boxes and frames, points for edges; in the direction that
requires less scrolling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

from django_durable_tasks.diagrams.layout.mesh import LayoutGraph, meshed
from django_durable_tasks.diagrams.layout.ordering import ordered
from django_durable_tasks.diagrams.layout.placement import Distances, LayoutPositions, placed
from django_durable_tasks.diagrams.outline import Outline

BETWEEN = 16
_BETWEEN_LAYERS = 56
_MOST_BETWEEN = 150
_STEEP = 0.16
_FRAME = 12
_FRAME_TITLE = 26
_SCREEN = (1_280, 900)
_FEW = 3

Point = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle by its upper left corner; the y axis points down."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Frame:
    """The rectangle around a sub-workflow."""

    path: tuple[str, ...]
    around: Rectangle


@dataclass(frozen=True, slots=True)
class Drawing:
    """The positions of all elements; ``boxes`` and ``lines`` correspond to those of the outline.

    An edge is a list of points. Between two points it leaves and arrives in the direction of the
    layers, which is to the right, or down if ``downwards``.
    """

    outline: Outline
    downwards: bool
    boxes: tuple[Rectangle, ...]
    lines: tuple[tuple[Point, ...], ...]
    frames: tuple[Frame, ...]
    width: int
    height: int


def drawn(outline: Outline, width: int, height: int) -> Drawing:
    """Return the drawing of boxes of this size."""
    linked = {place for line in outline.lines for place in (line.source, line.target)}
    loose = [
        place for place, box in enumerate(outline.boxes) if place not in linked and not box.group
    ]
    alone = frozenset(loose) if len(loose) > _FEW else frozenset[int]()
    downwards = _better_downwards(outline, alone, width, height)
    draft = _drafted(
        outline, alone, (height, width) if downwards else (width, height), downwards=downwards
    )
    spots = {place: draft.box(place) for place in range(len(outline.boxes)) if place not in alone}
    frames = tuple(draft.frame(group) for group in sorted(draft.places.frames))
    lines = tuple(
        tuple(draft.points(route, backwards=line.source != route[0]))
        for line, route in zip(outline.lines, draft.mesh.routes, strict=True)
    )
    everything = [*spots.values(), *(frame.around for frame in frames)]
    passed = [point for line in lines for point in line]
    right = max([0, *(one.x + one.width for one in everything), *(x for x, _ in passed)])
    bottom = max([0, *(one.y + one.height for one in everything), *(y for _, y in passed)])
    spots |= _in_rows(sorted(alone), width, height, right, bottom)
    right = max([right, *(one.x + one.width for one in spots.values())])
    bottom = max([bottom, *(one.y + one.height for one in spots.values())])
    return Drawing(
        outline,
        downwards,
        tuple(spots[place] for place in sorted(spots)),
        lines,
        frames,
        right,
        bottom,
    )


def _better_downwards(outline: Outline, alone: frozenset[int], width: int, height: int) -> bool:
    """Return whether layers from top to bottom require less scrolling than layers from left to
    right.
    """
    sizes = Counter(box.layer for place, box in enumerate(outline.boxes) if place not in alone)
    layers, most = len(sizes), max(sizes.values(), default=0)
    right = (layers * (width + _BETWEEN_LAYERS), most * (height + BETWEEN))
    down = (most * (width + BETWEEN), layers * (height + _BETWEEN_LAYERS))
    scrolls = [max(size[0] / _SCREEN[0], size[1] / _SCREEN[1], 1.0) for size in (right, down)]
    return scrolls[1] < scrolls[0]


def _in_rows(
    alone: Sequence[int], width: int, height: int, right: int, bottom: int
) -> dict[int, Rectangle]:
    """Return positions for boxes without edges: rows below everything else."""
    step, fall = width + BETWEEN, height + BETWEEN
    square = round(sqrt(len(alone) * 1.6 * fall / step))
    count = max(1, min(_SCREEN[0] // step, max(square, (right + BETWEEN) // step)))
    top = bottom + 2 * BETWEEN if bottom else 0
    return {
        place: Rectangle(number % count * step, top + number // count * fall, width, height)
        for number, place in enumerate(alone)
    }


@dataclass(frozen=True, slots=True)
class _Draft:
    """The layout before the rotation: positions in the direction of the layers, and across it."""

    mesh: LayoutGraph
    places: LayoutPositions
    starts: Sequence[float]
    low: float
    size: tuple[int, int]
    downwards: bool

    def box(self, place: int) -> Rectangle:
        """Return the rectangle of a box."""
        along, across = self.size
        return self._turned(
            self.starts[self.mesh.layer[place]], self._at(place) - across // 2, along, across
        )

    def frame(self, group: int) -> Frame:
        """Return the frame of a sub-workflow, with a margin for the frames in it."""
        groups = self.mesh.groups
        start, end = (
            self.starts[groups.first[group]],
            self.starts[groups.last[group]] + self.size[0],
        )
        start -= _nested(self.mesh, groups.first[group], groups.first, group) * _opening(
            downwards=self.downwards
        )
        end += _nested(self.mesh, groups.last[group], groups.last, group) * _FRAME
        low, high = self.places.frames[group]
        return Frame(
            groups.paths[group], self._turned(start, low - self.low, end - start, high - low)
        )

    def points(self, route: Sequence[int], *, backwards: bool) -> Iterator[Point]:
        """Yield the points of an edge: out of a box, straight through each layer between, into the
        other box.
        """
        layer, along = self.mesh.layer, self.size[0]
        found = [(self.starts[layer[route[0]]] + along, self._at(route[0]))]
        for item in route[1:-1]:
            start = self.starts[layer[item]]
            found += [(start, self._at(item)), (start + along, self._at(item))]
        found.append((self.starts[layer[route[-1]]], self._at(route[-1])))
        for along_, across in reversed(found) if backwards else found:
            yield (across, round(along_)) if self.downwards else (round(along_), across)

    def _at(self, item: int) -> int:
        return round(self.places.at[item] - self.low)

    def _turned(self, along: float, across: float, length: float, breadth: float) -> Rectangle:
        x, y, width, height = round(along), round(across), round(length), round(breadth)
        return Rectangle(y, x, height, width) if self.downwards else Rectangle(x, y, width, height)


def _drafted(
    outline: Outline, alone: frozenset[int], size: tuple[int, int], *, downwards: bool
) -> _Draft:
    mesh = meshed(outline, size[1], alone)
    frame = (_FRAME, _FRAME) if downwards else (_FRAME_TITLE, _FRAME)
    rows = ordered(mesh, alone)
    places = placed(mesh, rows, Distances(BETWEEN, BETWEEN * 0.75, *frame))
    lowest = [places.at[item] - mesh.size[item] / 2 for row in rows for item in row]
    low = min([*lowest, *(ends[0] for ends in places.frames.values())], default=0.0)
    return _Draft(
        mesh, places, _starts(mesh, places, size[0], downwards=downwards), low, size, downwards
    )


def _starts(
    mesh: LayoutGraph, places: LayoutPositions, along: int, *, downwards: bool
) -> list[float]:
    """Return the start of each layer; the distance is larger for steep edges and at the ends of
    frames.
    """
    groups, count = mesh.groups, max(mesh.layer, default=-1) + 1
    steepest = [0.0] * (count + 1)
    for low, high in mesh.links:
        steepest[mesh.layer[high]] = max(
            steepest[mesh.layer[high]], abs(places.at[low] - places.at[high])
        )
    starts, start = [], 0.0
    for layer in range(count):
        if layer:
            start += along + min(_MOST_BETWEEN, max(_BETWEEN_LAYERS, steepest[layer] * _STEEP))
            start += _nested(mesh, layer - 1, groups.last) * _FRAME
        start += _nested(mesh, layer, groups.first) * _opening(downwards=downwards)
        starts.append(start)
    return starts


def _opening(*, downwards: bool) -> int:
    return _FRAME_TITLE if downwards else _FRAME


def _nested(mesh: LayoutGraph, layer: int, edges: Sequence[int], within: int = 0) -> int:
    """Return how many nested frames, including this one, have an edge at this layer."""
    groups = mesh.groups
    chains = (groups.chain(group) for group in range(1, len(groups.paths)))
    inner = (
        chain[chain.index(within) if within else 0 :]
        for chain in chains
        if not within or within in chain
    )
    return max((sum(edges[step] == layer for step in chain) for chain in inner), default=0)

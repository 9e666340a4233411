"""The layout of a drawing: boxes for one task or several, and their coordinates.

A sub-workflow is laid out on its own and is then one large box of the workflow around it, so its
frame contains exactly its own boxes.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt

from django_durable_tasks.choices import Status
from django_durable_tasks.texts import counted
from django_durable_tasks.workflows.diagrams import (
    KINDS,
    Diagram,
    DiagramNode,
    Ends,
    Layered,
    clean,
    layered,
    listed,
    longest_paths,
)

# Boxes and lines. Up to MOST_BOXES nodes each has its own box. Above, the first of several
# groupings is used that has few boxes and few lines.

MOST_BOXES = 200
MOST_LINES = 1_500
# Lines from which those are left out that a longer path implies.
_DENSE = 400
# Boxes of the coarsest grouping, one for each range of layers.
_BANDS = 160
# Nested frames that are drawn.
_DEEPEST = 6
# The status of a box is the first of these that one of its tasks has.
_ATTENTION = (
    *(Status.FAILED, Status.EXPIRED, Status.RUNNING, Status.QUEUED, Status.PENDING),
    *(Status.BLOCKED, Status.CANCELLED, Status.SKIPPED, Status.SUCCESS),
)


@dataclass(frozen=True, slots=True)
class Box:
    """One node, or several that are alike."""

    label: str
    nodes: tuple[DiagramNode, ...]
    group: tuple[str, ...]
    critical: bool

    @property
    def alone(self) -> bool:
        """Return whether the box is one node."""
        return len(self.nodes) == 1

    @property
    def counts(self) -> Counter[str]:
        """Return the number of nodes per status."""
        return Counter(node.status for node in self.nodes)

    @property
    def status(self) -> Status:
        """Return the most important status of its nodes."""
        counts = self.counts
        return next(status for status in _ATTENTION if counts[status])

    @property
    def duration(self) -> str:
        """Return the duration of the run as text; empty for several nodes."""
        return self.nodes[0].duration if self.alone else ""


@dataclass(frozen=True, slots=True)
class Line:
    """The edges of one kind between two boxes, by their positions; ``broken``: drawn, but ignored
    for the layers.
    """

    source: int
    target: int
    kind: str
    count: int
    unresolved: int
    critical: bool
    broken: bool
    outcome: str


@dataclass(frozen=True, slots=True)
class Outline:
    """Boxes in the order of their layers, lines in the order of their boxes, and remarks."""

    graph: Layered
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    remarks: tuple[str, ...]


def outlined(diagram: Diagram, most_lines: int = MOST_LINES) -> Outline:
    """Return the finest outline of at most MOST_BOXES boxes and ``most_lines`` lines. The coarsest
    one may have more lines.
    """
    graph = layered(diagram)
    for classes in _groupings(graph):
        if max(classes, default=-1) < MOST_BOXES:
            outline = _outline(graph, classes)
            if outline is not None and len(outline.lines) <= most_lines:
                return outline
    height = -(-(max(graph.layer, default=-1) + 1) // _BANDS)
    outline = _outline(graph, [layer // height for layer in graph.layer])
    assert outline is not None, "ranges of layers depend on earlier ranges only"  # noqa: S101
    return outline


def _groupings(graph: Layered) -> Iterator[list[int]]:
    """Yield the number of the box of each node, the finest grouping first: all alone; similar
    nodes; whole sub-workflows, the deepest first; nodes of one layer and name; whole layers.
    """
    nodes, layer = graph.nodes, graph.layer
    if len(nodes) <= MOST_BOXES:
        yield list(range(len(nodes)))
    yield _alike(graph)
    named = [(layer[place], node.name) for place, node in enumerate(nodes)]
    for depth in range(max((len(node.path) for node in nodes), default=0), 0, -1):
        yield _numbered(
            [
                (*named[place], node.path) if len(node.path) < depth else node.path[:depth]
                for place, node in enumerate(nodes)
            ]
        )
    yield _numbered(named)
    yield list(layer)


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    """Return a number for each key, the same for equal ones, in the order of their appearance."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(key, len(known)) for key in keys]


def _alike(graph: Layered) -> list[int]:
    """Divide the nodes of one layer, name and sub-workflow until all nodes of a class have the same
    classes before and after them. Stops early if there are too many classes.
    """
    classes = _numbered([(graph.layer[at], n.name, n.path) for at, n in enumerate(graph.nodes)])
    edges = {
        (*ends, graph.edges[place].kind)
        for place, ends in enumerate(graph.ends)
        if place not in graph.broken
    }
    count, former = max(classes, default=-1) + 1, 0
    while former < count <= MOST_BOXES:
        around: list[set[Hashable]] = [set() for _ in classes]
        for source, target, kind in edges:
            around[target].add((kind, "after", classes[source]))
            around[source].add((kind, "before", classes[target]))
        classes = _numbered(list(zip(classes, map(frozenset, around), strict=True)))
        count, former = max(classes) + 1, count
    return classes


def _outline(graph: Layered, classes: Sequence[int]) -> Outline | None:
    """Return the outline with a box for each class of nodes; None if the classes form a cycle."""
    count = max(classes, default=-1) + 1
    pairs = {(classes[source], classes[target]) for source, target in graph.kept()}
    order, layer = longest_paths(count, sorted(pair for pair in pairs if pair[0] != pair[1]))
    if len(order) < count:
        return None
    members: list[list[int]] = [[] for _ in range(count)]
    for place, known in enumerate(classes):
        members[known].append(place)
    ranked = sorted(range(count), key=lambda known: (layer[known], members[known][0]))
    rank = {known: place for place, known in enumerate(ranked)}
    boxes = tuple(_box(graph, members[known]) for known in ranked)
    lines = _lines(graph, [rank[known] for known in classes])
    kept = _without_implied(lines, len(boxes)) if len(lines) > _DENSE else lines
    remarks = list(graph.remarks)
    if count < len(graph.nodes):
        remarks.append(
            f"{len(graph.nodes):,} tasks are drawn as {count:,} boxes; the format json holds each."
        )
    if len(kept) < len(lines):
        remarks.append(
            f"Without {counted(len(lines) - len(kept), 'line')} that longer paths say as well; the"
            " format json holds each."
        )
    return Outline(graph, boxes, tuple(kept), tuple(remarks))


def _box(graph: Layered, places: Sequence[int]) -> Box:
    nodes = tuple(graph.nodes[place] for place in places)
    # What the first and the last path share, all of them share.
    ends = min(node.path for node in nodes), max(node.path for node in nodes)
    shared = next((at for at, (a, b) in enumerate(zip(*ends, strict=False)) if a != b), None)
    group = ends[0][:shared]
    critical = len(graph.critical) > 1 and not set(graph.critical).isdisjoint(places)
    if len(nodes) == 1:
        return Box(clean(nodes[0].label) or "(no label)", nodes, group[:_DEEPEST], critical)
    names = {clean(node.name) for node in nodes}
    first, last = (end(graph.layer[place] for place in places) + 1 for end in (min, max))
    layers = f"layer {first}" if first == last else f"layers {first}–{last}"
    if len(names) == 1 and (name := names.pop()):
        label = name.rpartition(".")[2] or name
    elif group and first != last:
        label = clean(group[-1])
    else:
        label = layers if names else "tasks"
    return Box(f"{label} × {len(nodes):,}", nodes, group[:_DEEPEST], critical)


def _lines(graph: Layered, box_of: Sequence[int]) -> list[Line]:
    critical = set(pairwise(graph.critical))
    places_of: dict[tuple[int, int, int, bool], list[int]] = {}
    for place, (source, target) in enumerate(graph.ends):
        kind = KINDS.index(graph.edges[place].kind)
        key = (box_of[source], box_of[target], kind, place in graph.broken)
        if key[0] != key[1]:
            places_of.setdefault(key, []).append(place)
    lines = []
    for (source, target, kind, broken), places in sorted(places_of.items()):
        outcomes = {clean(graph.edges[place].outcome) for place in places} - {""}
        unresolved = sum(not graph.edges[place].resolved for place in places)
        on_path = any(graph.ends[place] in critical for place in places)
        outcome = listed(sorted(outcomes), 3)
        lines.append(
            Line(source, target, KINDS[kind], len(places), unresolved, on_path, broken, outcome)
        )
    return lines


def _without_implied(lines: Sequence[Line], count: int) -> list[Line]:
    """Omit each line between boxes that a longer path connects as well; boxes are in the order of
    layers.
    """
    reached = [0] * count
    needed: set[Ends] = set()
    for source, target in sorted(
        ((line.source, line.target) for line in lines if not line.broken),
        key=lambda pair: (-pair[0], pair[1]),
    ):
        if not reached[source] >> target & 1:
            needed.add((source, target))
            reached[source] |= reached[target] | 1 << target
    return [
        line
        for line in lines
        if line.broken or line.critical or (line.source, line.target) in needed
    ]


# Coordinates: ``x`` is the direction of the layers, ``y`` the position in a layer. A drawing that
# leads downwards is turned when it is written. A *bend* is the position of a line in a layer that
# it crosses.

# Between two boxes of a layer, beside a bend, and between two layers, in pixels.
_BETWEEN, _BESIDE_BEND = 16, 12
_BETWEEN_LAYERS = 56
# The most that steep lines can move two layers apart, and the part of their height that they do.
_MOST_BETWEEN, _STEEP = 150, 0.16
_BEND = 6.0
# The inside of a frame, and the side with its title.
_FRAME, _TITLE = 12, 26
# What a reader sees without scrolling, in pixels.
_SCREEN = (1_280, 900)
# Boxes without lines, from which they stand in rows below the others.
_MANY_LOOSE = 4
_ORDERING_SWEEPS, _ALIGNING_SWEEPS, _FINISHING_SWEEPS = 14, 8, 5
_PATIENCE = 4

Point = tuple[float, float]


@dataclass(slots=True)
class Drawing:
    """Positions of the elements: the corner of each box, the corner and the size of each frame,
    and the points of each line from its source to its target.
    """

    boxes: dict[int, Point] = field(default_factory=dict)
    frames: dict[tuple[str, ...], tuple[Point, Point]] = field(default_factory=dict)
    lines: dict[int, list[Point]] = field(default_factory=dict)
    width: float = 0.0
    height: float = 0.0
    downwards: bool = False

    def add(self, other: Drawing, x: float, y: float) -> None:
        """Add another drawing with its corner at this point."""
        self.boxes |= {key: (px + x, py + y) for key, (px, py) in other.boxes.items()}
        for key, points in other.lines.items():
            self.lines[key] = [(px + x, py + y) for px, py in points]
        for path, ((px, py), size) in other.frames.items():
            self.frames[path] = ((px + x, py + y), size)
        self.width = max(self.width, x + other.width)
        self.height = max(self.height, y + other.height)

    def turned(self) -> Drawing:
        """Return the drawing with x and y exchanged."""
        return Drawing(
            {key: (y, x) for key, (x, y) in self.boxes.items()},
            {key: ((y, x), (h, w)) for key, ((x, y), (w, h)) in self.frames.items()},
            {key: [(y, x) for x, y in way] for key, way in self.lines.items()},
            self.height,
            self.width,
            downwards=True,
        )


def laid_out(outline: Outline, width: int, height: int) -> Drawing:
    """Return the drawing of boxes of this size, in the direction that requires less scrolling."""
    pairs = [(line.source, line.target) for line in outline.lines if not line.broken]
    _, layer = longest_paths(len(outline.boxes), pairs)
    sizes = Counter(layer[place] for place in {place for pair in pairs for place in pair})
    layers, most = len(sizes), max(sizes.values(), default=0)
    right = (layers * (width + _BETWEEN_LAYERS), most * (height + _BETWEEN))
    down = (most * (width + _BETWEEN), layers * (height + _BETWEEN_LAYERS))
    scrolls = [max(size[0] / _SCREEN[0], size[1] / _SCREEN[1], 1.0) for size in (right, down)]
    downwards = scrolls[1] < scrolls[0]
    layout = _Layout(
        outline.lines,
        [box.group for box in outline.boxes],
        (height, width) if downwards else (width, height),
        (_TITLE, _FRAME) if downwards else (_FRAME, _TITLE),
    )
    drawing = layout.level(0, list(range(len(outline.boxes))), list(range(len(outline.lines))))
    return drawing.turned() if downwards else drawing


@dataclass(frozen=True, slots=True)
class _Layout:
    """Lays out one level of sub-workflows after another, the inner ones first.

    ``groups``: the sub-workflows of each box. ``size``: of a box. ``inset``: where the content of a
    frame begins.
    """

    lines: Sequence[Line]
    groups: list[tuple[str, ...]]
    size: tuple[float, float]
    inset: tuple[float, float]

    def level(self, depth: int, boxes: list[int], lines: list[int]) -> Drawing:
        """Return the drawing of one sub-workflow, or of everything. Its parts are the boxes in it,
        and the frames of the sub-workflows in it.
        """
        linked = {box for line in lines for box in self._ends(line)}
        loose = [box for box in boxes if box not in linked and len(self.groups[box]) <= depth]
        if len(loose) < _MANY_LOOSE:
            loose = []
        boxes = [box for box in boxes if box not in set(loose)]
        part_of, layer = self._parts(depth, boxes, lines)
        members: list[list[int]] = [[] for _ in layer]
        for box in boxes:
            members[part_of[box]].append(box)
        inner: list[list[int]] = [[] for _ in layer]
        between: list[int] = []
        for line in lines:
            source, target = (part_of[box] for box in self._ends(line))
            (inner[source] if source == target else between).append(line)
        parts = [
            self._framed(depth + 1, within, inside)
            if len(self.groups[within[0]]) > depth
            else Drawing({within[0]: (0.0, 0.0)}, {}, {}, *self.size)
            for within, inside in zip(members, inner, strict=True)
        ]
        drawing = self._joined(parts, layer, part_of, between)
        # Boxes without lines, in rows below everything else.
        wide, high = self.size[0] + _BETWEEN, self.size[1] + _BETWEEN
        fitting = max(sqrt(len(loose) * 1.6 * high / wide), (drawing.width + _BETWEEN) / wide)
        number = max(1, min(round(fitting), round(_SCREEN[0] / wide)))
        top = drawing.height + 2 * _BETWEEN if drawing.height else 0.0
        for at, box in enumerate(loose):
            alone = Drawing({box: (0.0, 0.0)}, {}, {}, *self.size)
            drawing.add(alone, at % number * wide, top + at // number * high)
        return drawing

    def _ends(self, line: int) -> Ends:
        return self.lines[line].source, self.lines[line].target

    def _parts(
        self, depth: int, boxes: list[int], lines: list[int]
    ) -> tuple[dict[int, int], list[int]]:
        """Return the part to which each box belongs, and the layer of each part.

        A sub-workflow that depends on itself through other parts gets no frame.
        """
        while True:
            paths = [self.groups[box][: depth + 1] for box in boxes]
            keys = [path if path[depth:] else box for path, box in zip(paths, boxes, strict=True)]
            part_of = dict(zip(boxes, _numbered(keys), strict=True))
            count = max(part_of.values(), default=-1) + 1
            kept = (self._ends(line) for line in lines if not self.lines[line].broken)
            links = {(part_of[source], part_of[target]) for source, target in kept}
            pairs = sorted(pair for pair in links if pair[0] != pair[1])
            order, layer = longest_paths(count, pairs)
            if len(order) == count:
                return part_of, layer
            backwards, _ = longest_paths(count, [(target, source) for source, target in pairs])
            for box in boxes:
                if part_of[box] not in {*order, *backwards}:
                    self.groups[box] = self.groups[box][:depth]

    def _framed(self, depth: int, boxes: list[int], lines: list[int]) -> Drawing:
        path = self.groups[boxes[0]][:depth]
        framed = Drawing()
        framed.add(self.level(depth, boxes, lines), *self.inset)
        framed.width += _FRAME
        framed.height += _FRAME
        framed.frames[path] = ((0.0, 0.0), (framed.width, framed.height))
        return framed

    def _joined(
        self, parts: list[Drawing], layer: list[int], part_of: dict[int, int], lines: list[int]
    ) -> Drawing:
        """Return the drawing of the parts in their layers, with the lines between them."""

        def middle(box: int) -> float:
            """Return the middle of a box, as distance from the middle of its part."""
            part = parts[part_of[box]]
            return part.boxes[box][1] + (self.size[1] - part.height) / 2

        rows = _Rows(len(parts))
        for part, part_layer in zip(parts, layer, strict=True):
            rows.add(part_layer, part.height)
        routes = []
        bends: dict[tuple[int, str, bool, int], int] = {}
        for number in lines:
            line = self.lines[number]
            low, high = sorted(self._ends(number), key=lambda box: (layer[part_of[box]], box))
            route = [(part_of[low], middle(low))]
            for between in range(layer[part_of[low]] + 1, layer[part_of[high]]):
                # Lines of one kind from one box share their bends.
                key = (low, line.kind, line.broken, between)
                if key not in bends:
                    bends[key] = rows.add(between, _BEND)
                route.append((bends[key], 0.0))
            route.append((part_of[high], middle(high)))
            for previous, following in pairwise(route):
                bent = min(previous[0], following[0]) >= len(parts)
                rows.link(previous, following, 1.0 + 4.0 * bent + 0.5 * line.critical)
            routes.append((number, low, high, route))
        rows.arrange()
        starts, widths = rows.columns([part.width for part in parts])
        drawing = Drawing()
        for at, part in enumerate(parts):
            drawing.add(part, starts[layer[at]], rows.at[at] - part.height / 2)
        for number, low, high, route in routes:
            points = []
            for item, offset in route:
                start, y = starts[rows.layer[item]], rows.at[item] + offset
                points += [(start, y), (start + widths[rows.layer[item]], y)]
            points[0] = (drawing.boxes[low][0] + self.size[0], points[0][1])
            points[-1] = (drawing.boxes[high][0], points[-1][1])
            drawing.lines[number] = points if self.lines[number].source == low else points[::-1]
            drawing.height = max(drawing.height, *(y for _, y in points))
        return drawing


Pull = tuple[int, float, float]


@dataclass(slots=True)
class _Rows:
    """Items in layers: first the parts, then the bends.

    ``at`` is the middle of each, ``size`` its extent; ``before`` and ``after`` are its neighbours
    in the adjacent layers, each with the wished distance of the two middles and a weight.
    """

    parts: int
    layer: list[int] = field(default_factory=list)
    size: list[float] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    before: list[list[Pull]] = field(default_factory=list)
    after: list[list[Pull]] = field(default_factory=list)

    def add(self, layer: int, size: float) -> int:
        """Add an item; returns its number."""
        self.layer.append(layer)
        self.size.append(size)
        self.at.append(0.0)
        self.before.append([])
        self.after.append([])
        return len(self.layer) - 1

    def link(self, low: tuple[int, float], high: tuple[int, float], pull: float) -> None:
        """Let two items of adjacent layers attract each other at these distances from their
        middles.
        """
        self.before[high[0]].append((low[0], low[1] - high[1], pull))
        self.after[low[0]].append((high[0], high[1] - low[1], pull))

    def arrange(self) -> None:
        """Place every item: few crossings, then straight lines."""
        rows = self._ordered()
        # Move the items of each layer towards their neighbours, in sweeps up and down.
        for row in rows:
            self._settle(row, [(0.0, 1.0)] * len(row))
        for sweep in range(_ALIGNING_SWEEPS + _FINISHING_SWEEPS):
            upwards, finishing = bool(sweep % 2), sweep >= _ALIGNING_SWEEPS
            for row in reversed(rows) if upwards else rows:
                wishes = []
                for item in row:
                    pulls = self.after[item] if upwards else self.before[item]
                    # Bends follow one side only, so that a long line is straight with one step.
                    if finishing and item < self.parts:
                        pulls = self.before[item] + self.after[item]
                    wished = [
                        (self.at[neighbour] + distance, pull) for neighbour, distance, pull in pulls
                    ]
                    middle = (_median if finishing else _mean)(wished, self.at[item])
                    wishes.append((middle, sum(pull for _, pull in wished) or 0.1))
                self._settle(row, wishes)
        top = min((at - size / 2 for at, size in zip(self.at, self.size, strict=True)), default=0)
        self.at = [at - top for at in self.at]

    def columns(self, widths: list[float]) -> tuple[list[float], list[float]]:
        """Return the start and the width of each layer; steep lines get more space."""
        count = max(self.layer, default=-1) + 1
        widest, steepest = [0.0] * count, [0.0] * count
        for layer, width in zip(self.layer, widths, strict=False):
            widest[layer] = max(widest[layer], width)
        for item, layer in enumerate(self.layer):
            for neighbour, distance, _ in self.before[item]:
                fall = abs(self.at[item] - self.at[neighbour] - distance)
                steepest[layer] = max(steepest[layer], fall)
        starts, start = [], 0.0
        for layer in range(count):
            if layer:
                start += min(_MOST_BETWEEN, max(_BETWEEN_LAYERS, steepest[layer] * _STEEP))
            starts.append(start)
            start += widest[layer]
        return starts, widest

    def _ordered(self) -> list[list[int]]:
        """Return the items of each layer in an order with few crossings, by barycentre sweeps
        (Sugiyama, Tagawa and Toda, 1981).
        """
        rows: list[list[int]] = [[] for _ in range(max(self.layer, default=-1) + 1)]
        visited: set[int] = set()
        for root in sorted(range(len(self.layer)), key=lambda item: (self.layer[item], item)):
            stack = [root]
            while stack:
                item = stack.pop()
                if item not in visited:
                    visited.add(item)
                    rows[self.layer[item]].append(item)
                    stack.extend(neighbour for neighbour, _, _ in reversed(self.after[item]))
        best, fewest, patience = rows, self._crossings(rows), _PATIENCE
        for sweep in range(_ORDERING_SWEEPS):
            if not fewest or not patience:
                break
            beside = self.after if sweep % 2 else self.before
            rows = [list(row) for row in rows]
            at = {item: (n + 0.5) / len(row) for row in rows for n, item in enumerate(row)}
            for row in reversed(rows) if sweep % 2 else rows:
                wished = {
                    item: [(at[neighbour], 1.0) for neighbour, _, _ in beside[item]] for item in row
                }
                row.sort(key=lambda item: _mean(wished[item], at[item]))
                at.update((item, (place + 0.5) / len(row)) for place, item in enumerate(row))
            count = self._crossings(rows)
            patience = _PATIENCE if count < fewest else patience - 1
            if count < fewest:
                best, fewest = rows, count
        return best

    def _crossings(self, rows: list[list[int]]) -> int:
        """Return how many pairs of links cross."""
        total = 0
        place = {item: at for row in rows for at, item in enumerate(row)}
        for row in rows:
            ends: list[int] = []
            for item in row:
                reached = sorted(place[neighbour] for neighbour, _, _ in self.after[item])
                total += sum(len(ends) - bisect_right(ends, end) for end in reached)
                for end in reached:
                    insort(ends, end)
        return total

    def _settle(self, row: list[int], wishes: list[tuple[float, float]]) -> None:
        """Place the items of a layer as close to the wished places (least squares, with weights) as
        their order and distances allow, by isotonic regression.
        """
        starts, start = [], 0.0
        pools: list[tuple[float, float, int]] = []
        for place, (wish, weight) in enumerate(wishes):
            if place:
                before, after = row[place - 1], row[place]
                space = _BETWEEN if max(before, after) < self.parts else _BESIDE_BEND
                start += (self.size[before] + self.size[after]) / 2 + space
            starts.append(start)
            total, mass, number = (wish - start) * weight, weight, 1
            while pools and pools[-1][0] * mass >= total * pools[-1][1]:
                former = pools.pop()
                total, mass, number = total + former[0], mass + former[1], number + former[2]
            pools.append((total, mass, number))
        shifts = [total / mass for total, mass, number in pools for _ in range(number)]
        for item, start, shift in zip(row, starts, shifts, strict=True):
            self.at[item] = start + shift


def _mean(wished: list[tuple[float, float]], otherwise: float) -> float:
    mass = sum(pull for _, pull in wished)
    return sum(place * pull for place, pull in wished) / mass if mass else otherwise


def _median(wished: list[tuple[float, float]], otherwise: float) -> float:
    """Return the weighted median, which makes more lines straight than the mean; the midpoint if
    there are two.
    """
    wished.sort()
    half, passed = sum(pull for _, pull in wished) / 2, 0.0
    for (place, pull), (following, _) in pairwise(wished):
        passed += pull
        if passed >= half:
            return place if passed > half else (place + following) / 2
    return wished[-1][0] if wished else otherwise

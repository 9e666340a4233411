"""Layout of layered diagrams: the order of boxes within a layer, and their coordinates."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, sqrt

from django_durable_tasks.diagrams.outline import Box, EdgePath, Outline

# The items of the layers: boxes, the bends of long edges, and the groups of sub-workflows.
#
# Each sub-workflow is a group: a range across the layers, from its first to its last, without
# other items. Therefore its frame is a rectangle that contains exactly its own items. A *bend* is
# the position of an edge in a layer that it crosses; edges of one kind from one box share their
# bends. A *keeper* reserves the space of a group in a layer where it would be empty.


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


# The order of the items in each layer: few crossings, by barycentre sweeps (Sugiyama, Tagawa and
# Toda, 1981).
#
# The items of a sub-workflow are adjacent in every layer, and two sub-workflows have the same
# order in every layer that they share; ``placement`` relies on both.


_ORDERING_SWEEPS = 14
_LARGE = 4_000
_PATIENCE = 4

Rows = list[list[int]]


def ordered(mesh: LayoutGraph, alone: frozenset[int]) -> Rows:
    """Return the items of each layer in order, without the boxes ``alone``; deterministic."""
    before, after = mesh.neighbours()
    rows = _discovered(mesh, after, alone)
    sweeps = _ORDERING_SWEEPS if len(mesh.links) < _LARGE else _PATIENCE
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
            item: _mean_or([at[other] for other in sides[0][item]], at[item])
            for item in rows[layer]
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
    return [_mean_or(outside[group], _mean_or(inside[group], 0.0)) for group in range(count)]


def _mean_or(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


# Positions in one group: close to the neighbours, in the given order, without overlap.
#
# Each layer is solved by isotonic regression (the positions closest to the desired ones that keep
# order and distance), in sweeps up and down the layers. A block, which covers several layers, gets
# one position from two passes that only push apart, one from each end: the mean of two solutions
# without overlap has no overlap. Then the blocks are fixed, and the items between them are solved
# again.


_ALIGNMENT_SWEEPS = 8
_FINISHING = 5
_BLOCK_TURNS = 3

Pull = tuple[int, float, float]
Wishes = Sequence[tuple[float, float]]


@dataclass(slots=True)
class Cell:
    """The extent of one item, or of one layer of a block, in a layer; ``at`` is its middle.

    ``entry``: the item's number, or minus the number of the block's group. ``before`` and
    ``after``: the cells in adjacent layers that attract it, the distance from their middle, and the
    weight.
    """

    half: float
    entry: int
    bend: bool
    before: list[Pull] = field(default_factory=list)
    after: list[Pull] = field(default_factory=list)
    at: float = 0.0

    @property
    def block(self) -> bool:
        """Return whether the cell is a layer of a block."""
        return self.entry < 0


@dataclass(slots=True)
class GroupCells:
    """The cells of a group by layer, in order; ``gaps``: the minimum distance from each middle to
    the next.
    """

    layers: list[list[Cell]]
    gaps: list[list[float]]
    cells: list[Cell]

    def place(self) -> None:
        """Assign a position to every cell."""
        for row, gaps in zip(self.layers, self.gaps, strict=True):
            _settle(row, gaps, [(0.0, 1.0)] * len(row))
        self._sweep(_ALIGNMENT_SWEEPS, _ALIGNMENT_SWEEPS + _FINISHING)
        of_entry: dict[int, list[Cell]] = {}
        for cell in self.cells:
            of_entry.setdefault(cell.entry, []).append(cell)
        if any(entry < 0 for entry in of_entry):
            order, beside = self._constraints()
            for turn in range(_BLOCK_TURNS):
                _push_apart(
                    of_entry, {} if not turn else self._block_wishes(of_entry), order, beside
                )
                self._sweep(0, _FINISHING, blocks_stand=True)

    def _sweep(self, rough: int, sweeps: int, *, blocks_stand: bool = False) -> None:
        """Solve the layers in sweeps; the first ``rough`` sweeps use the neighbours on one side
        only.
        """
        for sweep in range(sweeps):
            upwards = bool(sweep % 2)
            for layer in reversed(range(len(self.layers))) if upwards else range(len(self.layers)):
                row = self.layers[layer]
                wishes = [self._wish(cell, upwards=upwards, both=sweep >= rough) for cell in row]
                if blocks_stand:
                    _settle_between(row, self.gaps[layer], wishes)
                else:
                    _settle(row, self.gaps[layer], wishes)

    def _wish(self, cell: Cell, *, upwards: bool, both: bool) -> tuple[float, float]:
        """Return the desired position of a cell, and its weight."""
        # Bends follow one side only, so that a long edge is straight with one step, not many small
        # ones.
        pulls = (
            cell.before + cell.after
            if both and not cell.bend
            else cell.after
            if upwards
            else cell.before
        )
        if not pulls:
            return cell.at, 0.1
        wishes = [(self.cells[other].at + offset, pull) for other, offset, pull in pulls]
        return (_median(wishes) if both else _mean_wish(wishes)), sum(pull for _, pull in wishes)

    def _block_wishes(self, of_entry: dict[int, list[Cell]]) -> dict[int, float]:
        """Return the desired positions of the blocks, by the neighbours outside of them."""
        wishes = {}
        for entry, own in of_entry.items():
            pulls = [pull for cell in own for pull in cell.before + cell.after if entry < 0]
            outside = [
                (self.cells[other].at + offset, pull)
                for other, offset, pull in pulls
                if self.cells[other].entry != entry and not self.cells[other].bend
            ]
            if outside:
                wishes[entry] = _mean_wish(outside)
        return wishes

    def _constraints(self) -> tuple[list[int], dict[int, list[tuple[int, float]]]]:
        """Return the entries in an order that is consistent with every layer, and the minimum
        distances.
        """
        beside: dict[int, list[tuple[int, float]]] = {cell.entry: [] for cell in self.cells}
        missing = dict.fromkeys(beside, 0)
        for row, gaps in zip(self.layers, self.gaps, strict=True):
            for (one, other), gap in zip(pairwise(row), gaps, strict=True):
                beside[one.entry].append((other.entry, gap))
                missing[other.entry] += 1
        order = [entry for entry, waits in missing.items() if not waits]
        for entry in order:
            for following, _ in beside[entry]:
                missing[following] -= 1
                if not missing[following]:
                    order.append(following)
        return order, beside


def _settle(
    row: Sequence[Cell], gaps: Sequence[float], wishes: Wishes, low: float = -inf, high: float = inf
) -> None:
    """Move the cells as close to the desired positions (weighted least squares) as order, distance
    and bounds allow.
    """
    start = 0.0
    starts, pools = [], list[tuple[float, float, int]]()
    for place, (wish, weight) in enumerate(wishes):
        start += gaps[place - 1] if place else 0.0
        starts.append(start)
        total, mass, size = (wish - start) * weight, weight, 1
        while pools and pools[-1][0] * mass >= total * pools[-1][1]:
            former = pools.pop()
            total, mass, size = total + former[0], mass + former[1], size + former[2]
        pools.append((total, mass, size))
    place = 0
    for total, mass, size in pools:
        for _ in range(size):
            row[place].at = starts[place] + max(low, min(total / mass, high - start))
            place += 1


def _settle_between(row: Sequence[Cell], gaps: Sequence[float], wishes: Wishes) -> None:
    """Move the cells between the fixed blocks."""
    ends = [-1, *(place for place, cell in enumerate(row) if cell.block), len(row)]
    for before, after in pairwise(ends):
        first, last = before + 1, after
        if first == last:
            continue
        low = row[before].at + gaps[before] if before >= 0 else -inf
        high = row[after].at - gaps[after - 1] if after < len(row) else inf
        _settle(row[first:last], gaps[first : last - 1], wishes[first:last], low, high)


def _push_apart(
    of_entry: dict[int, list[Cell]],
    wishes: dict[int, float],
    order: Sequence[int],
    beside: dict[int, list[tuple[int, float]]],
) -> None:
    """Assign every entry one position close to the desired one, by default its present one, without
    overlap.
    """
    down = {
        entry: wishes.get(entry, sum(cell.at for cell in own) / len(own))
        for entry, own in of_entry.items()
    }
    up = dict(down)
    for entry in order:
        for other, gap in beside[entry]:
            down[other] = max(down[other], down[entry] + gap)
    for entry in reversed(order):
        up[entry] = min([up[entry], *(up[other] - gap for other, gap in beside[entry])])
    for entry, own in of_entry.items():
        for cell in own:
            cell.at = (down[entry] + up[entry]) / 2


def _mean_wish(wishes: Wishes) -> float:
    return sum(at * pull for at, pull in wishes) / sum(pull for _, pull in wishes)


def _median(wishes: list[tuple[float, float]]) -> float:
    """Return the weighted median, which makes more edges straight than the mean; the midpoint if
    there are two.
    """
    wishes.sort()
    half, passed = sum(pull for _, pull in wishes) / 2, 0.0
    for place, (at, pull) in enumerate(wishes):
        passed += pull
        if passed == half:
            return (at + wishes[place + 1][0]) / 2
        if passed > half:
            return at
    return wishes[-1][0]


# Positions of the items across the layers: group by group, the inner ones first, each as a block
# in the group around it.


_STRAIGHT = 20.0


@dataclass(frozen=True, slots=True)
class Distances:
    """Distances in pixels: between two items (smaller beside a bend) and inside a frame at its two
    ends.
    """

    boxes: float
    bends: float
    frame_start: float
    frame_end: float


@dataclass(slots=True)
class LayoutPositions:
    """The middle of each item across the layers, and the two ends of each group's frame."""

    at: list[float]
    frames: dict[int, tuple[float, float]]


def placed(mesh: LayoutGraph, rows: Rows, distances: Distances) -> LayoutPositions:
    """Return the positions of all items in the rows."""
    found = LayoutPositions([0.0] * len(mesh.layer), {})
    inside: list[list[int]] = [[] for _ in mesh.groups.paths]
    for row in rows:
        for item in row:
            inside[mesh.group[item]].append(item)
    for group in reversed(range(len(mesh.groups.paths))):
        children = [child for child in found.frames if mesh.groups.parents[child] == group]
        entry_of = {item: item for item in inside[group]}
        for child in children:
            entry_of.update((item, -child) for item in inside[child])
            inside[group].extend(inside[child])
        low, high = _place_group(mesh, rows, entry_of, found, distances)
        if group:
            found.frames[group] = (low - distances.frame_start, high + distances.frame_end)
            _shift(mesh, found, inside[group], group, -sum(found.frames[group]) / 2)
    return found


def _place_group(
    mesh: LayoutGraph,
    rows: Rows,
    entry_of: dict[int, int],
    found: LayoutPositions,
    distances: Distances,
) -> tuple[float, float]:
    """Place the entries of one group: items by their number, blocks by minus the number of their
    group.
    """
    layers = [_cells(mesh, row, entry_of, found) for row in rows]
    gaps = [[_distance(one, other, distances) for one, other in pairwise(row)] for row in layers]
    cells = _connected(mesh, layers, entry_of, found)
    GroupCells(layers, gaps, cells).place()
    at = {cell.entry: cell.at for cell in cells}
    for item, entry in entry_of.items():
        found.at[item] = at[entry] + (found.at[item] if entry < 0 else 0.0)
    for entry, middle in at.items():
        if entry < 0:
            _shift(mesh, found, (), -entry, middle)
    low = min((cell.at - cell.half for cell in cells), default=0.0)
    return low, max((cell.at + cell.half for cell in cells), default=0.0)


def _cells(
    mesh: LayoutGraph, row: Sequence[int], entry_of: dict[int, int], found: LayoutPositions
) -> list[Cell]:
    cells: list[Cell] = []
    for item in row:
        entry = entry_of.get(item)
        if entry is None or (cells and cells[-1].entry == entry):
            continue
        half = found.frames[-entry][1] if entry < 0 else mesh.size[item] / 2
        cells.append(Cell(half, entry, bend=entry >= mesh.boxes))
    return cells


def _connected(
    mesh: LayoutGraph,
    layers: Sequence[Sequence[Cell]],
    entry_of: dict[int, int],
    found: LayoutPositions,
) -> list[Cell]:
    """Return all cells with their neighbours; the layers of a block have the highest weight for
    each other.
    """
    number: dict[tuple[int, int], int] = {}
    cells: list[Cell] = []
    for layer, row in enumerate(layers):
        for cell in row:
            number[cell.entry, layer] = len(cells)
            cells.append(cell)
            if cell.block and (cell.entry, layer - 1) in number:
                former = number[cell.entry, layer - 1]
                cell.before.append((former, 0.0, _STRAIGHT))
                cells[former].after.append((len(cells) - 1, 0.0, _STRAIGHT))
    for (low, high), pull in mesh.links.items():
        one, other = entry_of.get(low), entry_of.get(high)
        if one is None or other is None or one == other:
            continue
        # Inside a block the position of an item is relative to its middle; found.at holds that
        # offset until the block itself is placed.
        offset = (found.at[low] if one < 0 else 0.0) - (found.at[high] if other < 0 else 0.0)
        left, right = number[one, mesh.layer[low]], number[other, mesh.layer[high]]
        cells[right].before.append((left, offset, pull))
        cells[left].after.append((right, -offset, pull))
    return cells


def _distance(one: Cell, other: Cell, distances: Distances) -> float:
    return one.half + other.half + (distances.bends if one.bend or other.bend else distances.boxes)


def _shift(
    mesh: LayoutGraph, found: LayoutPositions, items: Iterable[int], group: int, by: float
) -> None:
    """Move the items, and the frames of the group and of those in it."""
    for item in items:
        found.at[item] += by
    for other, (low, high) in found.frames.items():
        if group in mesh.groups.chain(other):
            found.frames[other] = (low + by, high + by)


# A drawing in pixels: rectangles for boxes and frames, points for edges; in the direction that
# requires less scrolling.


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

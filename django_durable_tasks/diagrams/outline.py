"""From a diagram to the elements that are drawn: layers, boxes for one node or several, and
edges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from django_durable_tasks.choices import Status
from django_durable_tasks.diagrams.model import (
    ATTENTION,
    KINDS,
    Diagram,
    DiagramEdge,
    DiagramNode,
    clean,
    counted,
    in_order,
    lasted,
    listed,
    natural,
    shortened,
    summed_up,
)

# The layers of the nodes: cycles are broken, then each node is placed by the longest path from a
# node without upstreams.
#
# A node's layer is the number of edges on the longest path that leads to it, so every edge goes
# from a lower to a higher layer. A cycle is broken at the edge that closes it (depth first, in
# natural order). All steps start from one canonical order, so the order of the input does not
# matter.


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


DENSE = 400
_DEEPEST = 6
_LONG_PATH = 8
_ROOM = 24.0


@dataclass(frozen=True, slots=True)
class Box:
    """One node, or several that are alike; ``layer`` counts the boxes' own layers."""

    label: str
    nodes: tuple[DiagramNode, ...]
    layer: int
    group: tuple[str, ...]
    critical: bool

    @property
    def alone(self) -> bool:
        """Return whether the box is one node."""
        return len(self.nodes) == 1

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the number of nodes per status."""
        return Counter(str(node.status) for node in self.nodes)

    @property
    def status(self) -> Status:
        """Return the most important status of its nodes."""
        counts = self.counts
        return next(status for status in ATTENTION if counts.get(status))

    @property
    def duration(self) -> str:
        """Return the duration of the run as text; empty for several nodes or if it is unknown."""
        measured = self.nodes[0].microseconds if self.alone else None
        return "" if measured is None else lasted(measured)


@dataclass(frozen=True, slots=True)
class EdgePath:
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
    """Boxes in the order of their layers, edges in the order of their boxes, and remarks for the
    reader.
    """

    layered: Layered
    boxes: tuple[Box, ...]
    lines: tuple[EdgePath, ...]
    warning: str
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        """Return the title as safe text."""
        return clean(self.layered.diagram.title) or "Untitled"

    @property
    def status(self) -> str:
        """Return the status of the whole diagram as safe text."""
        return clean(self.layered.diagram.status)

    @property
    def summary(self) -> str:
        """Return the number of tasks per status in one line."""
        nodes = self.layered.nodes
        if not nodes:
            return "No tasks"
        layers = counted(max(self.layered.layer) + 1, "layer")
        return (
            f"{counted(len(nodes), 'task')} in {layers}:"
            f" {summed_up(Counter(str(node.status) for node in nodes))}"
        )

    @property
    def critical_path(self) -> str:
        """Return the critical path in one line; empty if it is a single node."""
        path = [
            shortened(clean(self.layered.nodes[place].label), _ROOM)
            for place in self.layered.critical
        ]
        if len(path) < 2:
            return ""
        if len(path) > _LONG_PATH:
            path = [
                *path[: _LONG_PATH // 2],
                f"… {len(path) - _LONG_PATH} more …",
                *path[-_LONG_PATH // 2 :],
            ]
        took = self.layered.critical_microseconds()
        return " → ".join(path) + (f" ({lasted(took)})" if took else "")


def quotient(graph: Layered, classes: Sequence[int]) -> list[Ends]:
    """Return the kept edges between different classes, each once, in order."""
    found = {(classes[source], classes[target]) for source, target in graph.kept()}
    return sorted(pair for pair in found if pair[0] != pair[1])


def outlined(graph: Layered, classes: Sequence[int]) -> Outline:
    """Return the outline with a box for each class of nodes; the classes must not form a cycle."""
    count = max(classes, default=-1) + 1
    pairs = quotient(graph, classes)
    layer = depths(count, pairs, topological(count, pairs))
    members: list[list[int]] = [[] for _ in range(count)]
    for place, known in enumerate(classes):
        members[known].append(place)
    ranked = sorted(range(count), key=lambda known: (layer[known], members[known][0]))
    critical = set(graph.critical) if len(graph.critical) > 1 else set()
    boxes = tuple(_box(graph, members[known], layer[known], critical) for known in ranked)
    rank = {known: place for place, known in enumerate(ranked)}
    lines = _lines(graph, [rank[known] for known in classes])
    kept = _without_implied(lines, boxes) if len(lines) > DENSE else lines
    return Outline(
        graph,
        boxes,
        tuple(kept),
        _warning(graph),
        tuple(_notes(graph, boxes, len(lines) - len(kept))),
    )


def _box(graph: Layered, places: Sequence[int], layer: int, critical: set[int]) -> Box:
    nodes = tuple(graph.nodes[place] for place in places)
    layers = [graph.layer[place] for place in places]
    group = _shared(sorted({node.path for node in nodes}))
    label = (
        clean(nodes[0].label)
        if len(nodes) == 1
        else f"{_name(nodes, group, layers)} × {len(nodes):,}"
    )
    return Box(
        label or "(no label)", nodes, layer, group[:_DEEPEST], not critical.isdisjoint(places)
    )


def _shared(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the beginning that sorted paths share."""
    first, last = paths[0], paths[-1]
    length = next(
        (
            place
            for place, (one, other) in enumerate(zip(first, last, strict=False))
            if one != other
        ),
        None,
    )
    return first[:length] if length is not None else min(first, last, key=len)


def _name(nodes: Sequence[DiagramNode], group: Sequence[str], layers: Sequence[int]) -> str:
    names = {node.name for node in nodes}
    if len(names) == 1 and (name := clean(nodes[0].name)):
        return name.rpartition(".")[2] or name
    first, last = min(layers) + 1, max(layers) + 1
    if group and first != last:
        return clean(group[-1])
    if len(names) > 1:
        return f"layer {first}" if first == last else f"layers {first}–{last}"
    return "tasks"


def _lines(graph: Layered, box_of: Sequence[int]) -> list[EdgePath]:
    critical = set(pairwise(graph.critical))
    found: dict[tuple[int, int, str, bool], list[int]] = {}
    for place, (source, target) in enumerate(graph.ends):
        key = (box_of[source], box_of[target], graph.edges[place].kind, place in graph.broken)
        if key[0] != key[1]:
            found.setdefault(key, []).append(place)
    lines = []
    for key in sorted(found, key=lambda key: (key[0], key[1], KINDS.index(key[2]), key[3])):
        places = found[key]
        outcomes = sorted({clean(graph.edges[place].outcome) for place in places} - {""})
        waiting = sum(not graph.edges[place].resolved for place in places)
        on_path = any(graph.ends[place] in critical for place in places)
        lines.append(
            EdgePath(
                key[0], key[1], key[2], len(places), waiting, on_path, key[3], listed(outcomes, 3)
            )
        )
    return lines


def _without_implied(lines: Sequence[EdgePath], boxes: Sequence[Box]) -> list[EdgePath]:
    """Omit each edge between boxes that a longer path connects as well; boxes are in the order of
    layers.
    """
    reached = [0] * len(boxes)
    targets: list[set[int]] = [set() for _ in boxes]
    for line in lines:
        if not line.broken:
            targets[line.source].add(line.target)
    needed: set[Ends] = set()
    for source in reversed(range(len(boxes))):
        for target in sorted(targets[source]):
            if not reached[source] >> target & 1:
                needed.add((source, target))
                reached[source] |= reached[target] | 1 << target
    return [
        line
        for line in lines
        if line.broken or line.critical or (line.source, line.target) in needed
    ]


def _warning(graph: Layered) -> str:
    if not graph.broken:
        return ""
    labels = {node.id: shortened(clean(node.label), _ROOM) for node in graph.nodes}
    closing = (graph.edges[place] for place in sorted(graph.broken))
    shown = listed((f"{labels[edge.source]} → {labels[edge.target]}" for edge in closing), 3)
    return (
        f"This graph holds a cycle, which can never run; for the drawing it is broken at {shown}."
    )


def _notes(graph: Layered, boxes: Sequence[Box], implied: int) -> Iterator[str]:
    if len(boxes) < len(graph.nodes):
        yield (
            f"{len(graph.nodes):,} tasks are drawn as {len(boxes):,} boxes; the format json holds"
            " each."
        )
    if implied:
        yield (
            f"Without {counted(implied, 'line')} that longer paths say as well; the format json"
            " holds each."
        )
    if graph.outside:
        lead = "dependency leads" if len(graph.outside) == 1 else "dependencies lead"
        yield f"{len(graph.outside):,} {lead} to tasks outside this diagram."


# Groups many nodes into few boxes: the finest of several groupings that stays under the limits.
#
# Up to 200 nodes each has its own box. Above, the groupings are tried in this order: similar nodes
# (same layer, name and sub-workflow, and the same kinds of nodes before and after them); whole
# sub-workflows as one box, the deepest first; similar nodes of any sub-workflow; one box per layer
# and name; one per layer; one per range of layers.


MOST_BOXES = 200
MOST_LINES = 1_500
_BANDS = 160


def collapsed(graph: Layered, most_lines: int = MOST_LINES) -> Outline:
    """Return the finest outline of at most 200 boxes and ``most_lines`` edges. The coarsest one may
    have more edges.
    """
    for classes in _ways(graph):
        if max(classes, default=-1) < MOST_BOXES:
            outline = outlined(graph, classes)
            if len(outline.lines) <= most_lines:
                return outline
    return outlined(graph, _bands(graph))


def _ways(graph: Layered) -> Iterator[list[int]]:
    nodes, layer = graph.nodes, graph.layer
    if len(nodes) <= MOST_BOXES:
        yield list(range(len(nodes)))
    yield alike(graph, [(layer[place], node.name, node.path) for place, node in enumerate(nodes)])
    for depth in range(max((len(node.path) for node in nodes), default=0), 0, -1):
        yield _whole_groups(graph, depth)
    yield alike(graph, [(layer[place], node.name) for place, node in enumerate(nodes)])
    yield numbered([(layer[place], node.name) for place, node in enumerate(nodes)])
    yield list(layer)


def _bands(graph: Layered) -> list[int]:
    height = -(-(max(graph.layer, default=-1) + 1) // _BANDS)
    return [layer // height for layer in graph.layer]


def numbered(keys: Sequence[Hashable]) -> list[int]:
    """Return a number for each key, the same for equal ones, in the order of their first
    appearance.
    """
    known: dict[Hashable, int] = {}
    return [known.setdefault(key, len(known)) for key in keys]


def alike(
    graph: Layered, keys: Sequence[Hashable], units: Sequence[int] | None = None
) -> list[int]:
    """Divide the classes of equal keys until all nodes of a class have the same classes before and
    after them.

    The classes then contain no cycle if the units contain none: each unit of a class on a cycle
    would have another one after it. ``units``: nodes with the same number stay together, and must
    have equal keys. Stops early above 200 classes, because the result would not be used.
    """
    units = range(len(keys)) if units is None else units
    of_unit = dict(zip(units, keys, strict=True))
    classes = numbered([of_unit[unit] for unit in sorted(of_unit)])
    edges = {
        (units[source], units[target], graph.edges[place].kind)
        for place, (source, target) in enumerate(graph.ends)
        if place not in graph.broken and units[source] != units[target]
    }
    count, former = max(classes, default=-1) + 1, 0
    while former < count <= MOST_BOXES:
        before: list[set[Hashable]] = [set() for _ in classes]
        after: list[set[Hashable]] = [set() for _ in classes]
        for source, target, kind in edges:
            before[target].add((kind, classes[source]))
            after[source].add((kind, classes[target]))
        around = zip(classes, map(frozenset, before), map(frozenset, after), strict=True)
        classes, former = numbered(list(around)), count
        count = max(classes) + 1
    return [classes[unit] for unit in units]


def _whole_groups(graph: Layered, depth: int) -> list[int]:
    """Put each sub-workflow of this depth in one class, unless it would depend on itself through
    other nodes.
    """
    paths = [node.path[:depth] if len(node.path) >= depth else None for node in graph.nodes]
    whole = numbered([place if path is None else path for place, path in enumerate(paths)])
    entangled = _entangled(graph, whole)
    paths = [None if unit in entangled else path for path, unit in zip(paths, whole, strict=True)]
    units = numbered([place if path is None else path for place, path in enumerate(paths)])
    keys = [
        (graph.layer[place], node.name, node.path) if path is None else (path,)
        for place, (node, path) in enumerate(zip(graph.nodes, paths, strict=True))
    ]
    return alike(graph, keys, units)


def _entangled(graph: Layered, classes: Sequence[int]) -> set[int]:
    """Return the classes on cycles between classes, and those on paths between such cycles."""
    pairs = quotient(graph, classes)
    count = max(classes, default=-1) + 1
    forwards = topological(count, pairs)
    backwards = topological(count, [(target, source) for source, target in pairs])
    return set(range(count)).difference(forwards, backwards)


# The tooltips of boxes and edges: several short lines of text.


_TOOLTIP_ROOM = 120.0


def of_box(box: Box) -> str:
    """Return label, name, status, reason and duration; for many nodes the numbers by status and the
    total duration.
    """
    return "\n".join(
        shortened(line, _TOOLTIP_ROOM)
        for line in (_of_one(box) if box.alone else _of_many(box))
        if line
    )


def of_line(outline: Outline, line: EdgePath) -> str:
    """Return the ends, the kind, and whether the edge is resolved."""
    ends = [
        shortened(outline.boxes[place].label, _TOOLTIP_ROOM / 3)
        for place in (line.source, line.target)
    ]
    if line.count == 1:
        state = "not resolved yet" if line.unresolved else "resolved"
    else:
        state = f"{line.count:,} dependencies, {line.unresolved:,} not resolved yet"
    broken = "closes a cycle" if line.broken else ""
    parts = (
        " → ".join(ends),
        f"{line.kind}: {state}",
        shortened(line.outcome, _TOOLTIP_ROOM),
        broken,
    )
    return "\n".join(part for part in parts if part)


def _of_one(box: Box) -> Iterator[str]:
    node = box.nodes[0]
    yield box.label
    yield clean(node.name) if node.name != node.label else ""
    yield f"{node.status}: {reason}" if (reason := clean(node.reason)) else str(node.status)
    yield f"took {box.duration}" if box.duration else _since(box)
    yield _on_path(box)


def _since(box: Box) -> str:
    started = box.nodes[0].started_at
    return f"started {started.isoformat(' ', 'seconds')}" if started is not None else ""


def _of_many(box: Box) -> Iterator[str]:
    yield box.label
    yield clean(box.nodes[0].name) if len({node.name for node in box.nodes}) == 1 else ""
    yield from (f"{number:,} {status}" for status, number in in_order(box.counts))
    measured = [node.microseconds for node in box.nodes if node.microseconds is not None]
    yield f"took {lasted(sum(measured))} together" if measured else ""
    yield _on_path(box)


def _on_path(box: Box) -> str:
    return "on the critical path" if box.critical else ""

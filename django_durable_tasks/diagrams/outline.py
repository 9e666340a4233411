"""The elements that are drawn: boxes for one node or several, and the edges between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from django_durable_tasks.diagrams.labels import (
    ATTENTION,
    clean,
    counted,
    lasted,
    listed,
    shortened,
    summed_up,
)
from django_durable_tasks.diagrams.layers import Ends, Layered, depths, topological
from django_durable_tasks.diagrams.model import KINDS, DiagramNode
from django_durable_tasks.rules.states import Status

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

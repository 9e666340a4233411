"""Groups many nodes into few boxes: the finest of several groupings that stays under the limits.

Up to 200 nodes each has its own box. Above, the groupings are tried in this order: similar nodes
(same layer, name and sub-workflow, and the same kinds of nodes before and after them); whole
sub-workflows as one box, the deepest first; similar nodes of any sub-workflow; one box per layer
and name; one per layer; one per range of layers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from django_durable_tasks.diagrams.layers import Layered, topological
from django_durable_tasks.diagrams.outline import Outline, outlined, quotient

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

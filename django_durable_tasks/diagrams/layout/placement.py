"""Positions of the items across the layers: group by group, the inner ones first, each as a block
in the group around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from django_durable_tasks.diagrams.layout.alignment import Cell, GroupCells
from django_durable_tasks.diagrams.layout.mesh import LayoutGraph
from django_durable_tasks.diagrams.layout.ordering import Rows

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

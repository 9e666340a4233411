"""Positions in one group: close to the neighbours, in the given order, without overlap.

Each layer is solved by isotonic regression (the positions closest to the desired ones that keep
order and distance), in sweeps up and down the layers. A block, which covers several layers, gets
one position from two passes that only push apart, one from each end: the mean of two solutions
without overlap has no overlap. Then the blocks are fixed, and the items between them are solved
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

_SWEEPS = 8
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
        self._sweep(_SWEEPS, _SWEEPS + _FINISHING)
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
        return (_median(wishes) if both else _mean(wishes)), sum(pull for _, pull in wishes)

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
                wishes[entry] = _mean(outside)
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


def _mean(wishes: Wishes) -> float:
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

"""The edges of an SVG: smooth between layers, straight through them, with an arrow head at
the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from django_durable_tasks.diagrams.layout.drawing import Point

_HEAD, _HALF = 7, 4


def path_data(points: Sequence[Point], *, downwards: bool) -> str:
    """Return the data of a path; it ends where the arrow head begins."""
    return "".join(_steps(_straightened(points, downwards=downwards), downwards=downwards))


def arrow_head(points: Sequence[Point], *, downwards: bool) -> str:
    """Return the data of a triangle whose point is the end of the edge."""
    (x, y), sign = points[-1], _sign(points, downwards=downwards)
    if downwards:
        return f"M{x} {y}L{x - _HALF} {y - sign * _HEAD}H{x + _HALF}Z"
    return f"M{x} {y}L{x - sign * _HEAD} {y - _HALF}V{y + _HALF}Z"


def _sign(points: Sequence[Point], *, downwards: bool) -> int:
    """Return -1 for an edge against the direction of the layers, otherwise 1."""
    axis = 1 if downwards else 0
    return 1 if points[-1][axis] >= points[0][axis] else -1


def _straightened(points: Sequence[Point], *, downwards: bool) -> list[Point]:
    """Remove points in the middle of a straight part, and shorten the end by the arrow head."""
    across = 0 if downwards else 1
    kept = [
        point
        for place, point in enumerate(points)
        if place in {0, len(points) - 1}
        or not points[place - 1][across] == point[across] == points[place + 1][across]
    ]
    x, y = kept[-1]
    cut = _sign(points, downwards=downwards) * _HEAD
    kept[-1] = (x, y - cut) if downwards else (x - cut, y)
    return kept


def _steps(points: Sequence[Point], *, downwards: bool) -> Iterator[str]:
    yield f"M{points[0][0]} {points[0][1]}"
    for (x, y), (to_x, to_y) in pairwise(points):
        if downwards and x == to_x:
            yield f"V{to_y}"
        elif not downwards and y == to_y:
            yield f"H{to_x}"
        elif downwards:
            middle = (y + to_y) / 2
            yield f"C{x} {middle:g} {to_x} {middle:g} {to_x} {to_y}"
        else:
            middle = (x + to_x) / 2
            yield f"C{middle:g} {y} {middle:g} {to_y} {to_x} {to_y}"

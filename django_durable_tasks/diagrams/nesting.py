"""Boxes inside their sub-workflows, for formats with blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django_durable_tasks.diagrams.outline import Box, Outline


def nested(
    outline: Outline,
    *,
    opened: Callable[[int, str], Iterator[str]],
    closed: str,
    shown: Callable[[int, Box], str],
) -> Iterator[str]:
    """Yield a line for each box, indented inside the blocks of its sub-workflows; every block is
    opened once.

    ``opened`` returns the lines that open a block, given its number and its name.
    """
    number = 0
    path: tuple[str, ...] = ()
    for place, box in sorted(enumerate(outline.boxes), key=lambda pair: (pair[1].group, pair[0])):
        kept = 0
        while kept < min(len(path), len(box.group)) and path[kept] == box.group[kept]:
            kept += 1
        yield from ("  " * depth + closed for depth in range(len(path), kept, -1))
        for depth in range(kept, len(box.group)):
            number += 1
            yield from ("  " * (depth + 1) + line for line in opened(number, box.group[depth]))
        path = box.group
        yield "  " * (len(path) + 1) + shown(place, box)
    yield from ("  " * depth + closed for depth in range(len(path), 0, -1))

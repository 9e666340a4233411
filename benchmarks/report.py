"""Prints the figures as one JSON object per line, or as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence

from benchmarks.contest import Figure, in_words

_HEADS = (
    "what",
    "peer",
    "database",
    "broker",
    "n",
    "per second",
    "x ours",
    "rounds (per second)",
    "",
)


def as_json(figures: Sequence[Figure], machine: dict[str, str | int]) -> str:
    """Return one JSON object per line."""
    return "\n".join(json.dumps(figure.as_object(machine)) for figure in figures)


def as_table(figures: Sequence[Figure], machine: dict[str, str | int]) -> str:
    """Return a table, followed by the description of the machine."""
    rows = [_HEADS, *(_cells(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines = [
        "  ".join(
            _set(cell, width, column)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    about = ", ".join(f"{name} {value}" for name, value in machine.items())
    return "\n".join([*(line.rstrip() for line in lines), "", about])


def _set(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if 4 <= column <= 6 else cell.ljust(width)


def _cells(figure: Figure) -> tuple[str, ...]:
    ratio = "" if figure.ratio_to_ours is None else f"{figure.ratio_to_ours:.2f}"
    rounds = " ".join(f"{value:,.0f}" for value in figure.rounds)
    return (
        figure.what,
        figure.peer,
        figure.database or "-",
        figure.broker or "-",
        f"{figure.n:,}",
        f"{figure.per_second:,.0f}",
        ratio,
        rounds,
        ", ".join(in_words(figure.facts)),
    )

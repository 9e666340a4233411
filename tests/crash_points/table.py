"""The verdicts as a table: one line per point, one column per fault."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tests.crash_points.explorer import Verdict

ACTIONS = (("kill", "before"), ("kill", "after"), ("drop", "before"), ("drop", "after"))
HEAD = ("scenario", "point", "called by", "what", *(" ".join(action) for action in ACTIONS))
_WIDEST = 48


def table(found: Sequence[Verdict]) -> str:
    """Return the table, the number of points and faults, and a sentence for each violated
    guarantee.

    A cell is ``kept: nothing`` or ``kept: rows``, depending on what the disturbed process left
    behind, ``BROKEN``, or empty if it was not tried.
    """
    lines = [HEAD, *(_line(list(group)) for _, group in groupby(found, _point))]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    broken = [
        f"{_name(one)}, {one.fault.action} {one.fault.when}: {why}"
        for one in found
        for why in one.broken
    ]
    return "\n".join(
        [
            *text,
            f"{len(lines) - 1} points, {len(found)} faults, {len(broken)} broken promises",
            *broken,
        ]
    )


def _point(verdict: Verdict) -> tuple[str, str, int]:
    return verdict.scenario, verdict.variant, verdict.number


def _name(verdict: Verdict) -> str:
    return f"{verdict.scenario}, {verdict.variant}, point {verdict.number} ({verdict.point.place})"


def _line(group: Sequence[Verdict]) -> tuple[str, ...]:
    first, by_action = group[0], {(one.fault.action, one.fault.when): one for one in group}
    words = (
        first.point.words
        if len(first.point.words) <= _WIDEST
        else f"{first.point.words[: _WIDEST - 1]}…"
    )
    cells = (_cell(by_action[action]) if action in by_action else "" for action in ACTIONS)
    return f"{first.scenario}: {first.variant}", str(first.number), first.point.place, words, *cells


def _cell(verdict: Verdict) -> str:
    if verdict.broken:
        return "BROKEN"
    return "kept: rows" if verdict.left else "kept: nothing"

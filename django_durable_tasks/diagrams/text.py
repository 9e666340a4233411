"""Diagrams as text for a terminal of 100 columns: the layers in order, below each task its
upstreams.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django_durable_tasks.diagrams.grouping import collapsed
from django_durable_tasks.diagrams.labels import (
    SIGNS,
    clean,
    columns,
    counted,
    in_order,
    listed,
    shortened_columns,
)
from django_durable_tasks.diagrams.layers import layered
from django_durable_tasks.diagrams.model import Diagram
from django_durable_tasks.diagrams.outline import Box, EdgePath, Outline

WIDTH = 100
_LABEL = 76
_LEAST_LABEL = 24
_MOST_NAMED = 6


def as_text(diagram: Diagram) -> str:
    """Return lines of at most 100 columns, each task in its layer with its sign, status and
    duration.

    ``*`` marks the critical path. Unresolved upstreams are listed first, after ``waits for``;
    resolved ones after ``after``.
    """
    outline = collapsed(layered(diagram))
    return "\n".join(shortened_columns(line, WIDTH).rstrip() for line in _lines(outline)) + "\n"


def _lines(outline: Outline) -> Iterator[str]:
    yield f"{outline.title} · {outline.status}" if outline.status else outline.title
    yield outline.summary
    if outline.critical_path:
        yield f"* Critical path: {outline.critical_path}"
    if outline.warning:
        yield f"! {outline.warning}"
    yield from (f"({note})" for note in outline.notes)
    upstream: dict[int, list[EdgePath]] = {}
    for line in outline.lines:
        upstream.setdefault(line.target, []).append(line)
    missing = {edge.target: edge.source for edge in reversed(outline.layered.outside)}
    layer = -1
    group: tuple[str, ...] = ()
    for place, box in _grouped(outline.boxes):
        if box.layer != layer:
            layer, group = box.layer, ()
            yield ""
            yield _ruled(outline, layer)
        if box.group != group:
            group = box.group
            yield f"│ {clean('/'.join(group))}/" if group else "│"
        inset = "│   " if group else "│ "
        yield _headline(box, inset)
        yield from (
            f"{inset}    {waiting}"
            for waiting in _waits(outline, upstream.get(place, []), missing, box)
        )
        if box.alone and box.nodes[0].reason:
            yield f"{inset}    because: {clean(box.nodes[0].reason)}"


def _grouped(boxes: Sequence[Box]) -> list[tuple[int, Box]]:
    """Return the boxes with those of one sub-workflow adjacent in each layer."""
    return sorted(enumerate(boxes), key=lambda pair: (pair[1].layer, pair[1].group, pair[0]))


def _ruled(outline: Outline, layer: int) -> str:
    number = sum(len(box.nodes) for box in outline.boxes if box.layer == layer)
    title = f"┌─ layer {layer + 1} · {counted(number, 'task')} "
    return title + "─" * (WIDTH - columns(title))


def _headline(box: Box, inset: str) -> str:
    if box.alone:
        right_text = f"{box.status:<9}  {box.duration}"
    else:
        right_text = "  ".join(
            f"{SIGNS[status]} {number:,} {status}" for status, number in in_order(box.counts)
        )
    signs = f"{inset}{SIGNS[box.status]}{'*' if box.critical else ' '} "
    available = max(_LEAST_LABEL, min(_LABEL, WIDTH - columns(right_text) - 1) - columns(signs))
    label = shortened_columns(box.label, available)
    return f"{signs}{label}{' ' * (available - columns(label))} {right_text}"


def _waits(
    outline: Outline, lines: Sequence[EdgePath], missing: dict[str, str], box: Box
) -> Iterator[str]:
    unresolved = [_named(outline, line) for line in lines if line.unresolved]
    absent = sorted({clean(missing[node.id]) for node in box.nodes if node.id in missing})
    unresolved += [f"{name} (outside this diagram)" for name in absent]
    resolved = [_named(outline, line) for line in lines if not line.unresolved]
    if unresolved:
        yield f"{'├' if resolved else '└'} waits for {listed(unresolved, _MOST_NAMED)}"
    if resolved:
        yield f"└ after {listed(resolved, _MOST_NAMED)}"


def _named(outline: Outline, line: EdgePath) -> str:
    source = outline.boxes[line.source]
    kind = "" if line.kind == "MUST_SUCCEED" else f" ({line.kind})"
    broken = " (closes a cycle)" if line.broken else ""
    return f"{SIGNS[source.status]} {shortened_columns(source.label, 30)}{kind}{broken}"

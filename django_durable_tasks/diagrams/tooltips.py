"""The tooltips of boxes and edges: several short lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from django_durable_tasks.diagrams.labels import clean, in_order, lasted, shortened
from django_durable_tasks.diagrams.outline import Box, EdgePath, Outline

_ROOM = 120.0


def of_box(box: Box) -> str:
    """Return label, name, status, reason and duration; for many nodes the numbers by status and the
    total duration.
    """
    return "\n".join(
        shortened(line, _ROOM) for line in (_of_one(box) if box.alone else _of_many(box)) if line
    )


def of_line(outline: Outline, line: EdgePath) -> str:
    """Return the ends, the kind, and whether the edge is resolved."""
    ends = [
        shortened(outline.boxes[place].label, _ROOM / 3) for place in (line.source, line.target)
    ]
    if line.count == 1:
        state = "not resolved yet" if line.unresolved else "resolved"
    else:
        state = f"{line.count:,} dependencies, {line.unresolved:,} not resolved yet"
    broken = "closes a cycle" if line.broken else ""
    parts = (" → ".join(ends), f"{line.kind}: {state}", shortened(line.outcome, _ROOM), broken)
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

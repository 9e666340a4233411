"""Diagrams in the DOT language of Graphviz."""

from __future__ import annotations

from collections.abc import Iterator

from django_durable_tasks.diagrams.grouping import collapsed
from django_durable_tasks.diagrams.labels import clean, safe_link, shortened, summed_up
from django_durable_tasks.diagrams.layers import layered
from django_durable_tasks.diagrams.model import Diagram
from django_durable_tasks.diagrams.nesting import nested
from django_durable_tasks.diagrams.outline import Box, EdgePath, Outline
from django_durable_tasks.diagrams.palette import BROKEN, CRITICAL, FRAME, FRAME_EDGE, LINE, STYLES
from django_durable_tasks.diagrams.tooltips import of_box, of_line

_STYLES = {"MUST_SUCCEED": "solid", "MUST_FINISH": "dashed", "MUST_FAIL": "dotted"}
_ROOM = 34.0


def as_dot(diagram: Diagram) -> str:
    """Return a digraph with a cluster for each sub-workflow.

    Solid is MUST_SUCCEED, dashed MUST_FINISH, dotted MUST_FAIL; a hollow arrow head is an
    unresolved edge. Ids are numbered, and foreign text occurs only in quoted strings, where
    Graphviz does not interpret it.
    """
    outline = collapsed(layered(diagram))
    label = "\n".join(
        part for part in (_title(outline), outline.summary, outline.warning, *outline.notes) if part
    )
    head = _attributes(
        label=label, labelloc="t", rankdir="LR", fontname="sans-serif", tooltip=outline.title
    )
    lines = [
        f"digraph {_quoted(outline.title)} {{",
        f"  graph {head};",
        f"  node {_attributes(shape='box', style='rounded,filled', fontname='sans-serif')};",
        f"  edge {_attributes(color=LINE, fontname='sans-serif')};",
        *nested(outline, opened=_cluster, closed="}", shown=_box),
        *(_line(outline, line) for line in outline.lines),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _title(outline: Outline) -> str:
    return " · ".join(part for part in (outline.title, outline.status) if part)


def _cluster(number: int, name: str) -> Iterator[str]:
    yield f"subgraph cluster_{number} {{"
    label = shortened(clean(name), _ROOM)
    yield f"  graph {_attributes(label=label, color=FRAME_EDGE, bgcolor=FRAME, style='rounded')};"


def _box(place: int, box: Box) -> str:
    style = STYLES[box.status]
    below = (
        f"{box.status}{' · ' + box.duration if box.duration else ''}"
        if box.alone
        else summed_up(box.counts)
    )
    link = safe_link(box.nodes[0].href) if box.alone else ""
    return (
        f"n{place} "
        + _attributes(
            label=f"{shortened(box.label, _ROOM)}\n{below}",
            fillcolor=style.soft,
            fontcolor=style.ink,
            color=CRITICAL if box.critical else style.strong,
            penwidth="2.6" if box.critical else "1.2",
            peripheries="1" if box.alone else "2",
            tooltip=of_box(box),
            **({"URL": link} if link else {}),
        )
        + ";"
    )


def _line(outline: Outline, line: EdgePath) -> str:
    given = {
        "style": _STYLES[line.kind],
        "arrowhead": "empty" if line.unresolved else "normal",
        "tooltip": of_line(outline, line),
    }
    if line.count > 1:
        given["label"] = f"{line.count:,}"
    if line.critical:
        given |= {"color": CRITICAL, "penwidth": "2.6"}
    if line.broken:
        given |= {"color": BROKEN, "label": "closes a cycle", "constraint": "false"}
    return f"  n{line.source} -> n{line.target} {_attributes(**given)};"


def _attributes(**given: str) -> str:
    return "[" + ", ".join(f"{name}={_quoted(value)}" for name, value in given.items()) + "]"


def _quoted(text: str) -> str:
    """Return a quoted string. Backslashes and ampersands are escaped twice, because Graphviz
    interprets escapes and HTML entities.
    """
    escaped = (
        text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;").replace("\n", "\\n")
    )
    return f'"{escaped}"'

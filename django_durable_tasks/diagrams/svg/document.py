"""Diagrams as SVG without scripts, styles or external resources, so that the strictest CSP allows
them.
"""

from __future__ import annotations

from collections.abc import Iterator

from django_durable_tasks.diagrams import palette
from django_durable_tasks.diagrams.grouping import collapsed
from django_durable_tasks.diagrams.labels import ems, safe_link, shortened
from django_durable_tasks.diagrams.layers import layered
from django_durable_tasks.diagrams.layout.drawing import Drawing, drawn
from django_durable_tasks.diagrams.model import Diagram
from django_durable_tasks.diagrams.outline import Outline
from django_durable_tasks.diagrams.svg.legend import entries
from django_durable_tasks.diagrams.svg.markup import Markup, element, moved, text
from django_durable_tasks.diagrams.svg.shapes import (
    LABEL,
    box_shape,
    frame_shape,
    line_shape,
    wished_width,
)

_MARGIN = 20
_LINE = 20
_NARROWEST = 560
_WIDEST = 1_600
_HEIGHT, _HEIGHT_OF_MANY = 46, 62
_WIDEST_BOX = 250
_FONT = "ui-sans-serif, system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def as_svg(diagram: Diagram) -> str:
    """Return the diagram as one SVG element; all foreign text is escaped.

    Links are included if they are relative, http or https. A tooltip of each box and edge has its
    details.
    """
    outline = collapsed(layered(diagram))
    longest = max((wished_width(box) for box in outline.boxes), default=0)
    height = _HEIGHT if all(box.alone for box in outline.boxes) else _HEIGHT_OF_MANY
    drawing = drawn(outline, min(_WIDEST_BOX, longest), height)
    across = max(_NARROWEST, drawing.width + 2 * _MARGIN + 6)
    head, top = _head(outline, min(across, _WIDEST) - 2 * _MARGIN)
    tall = top + drawing.height + _MARGIN + 6
    panel = element(
        "rect",
        x=0.5,
        y=0.5,
        width=across - 1,
        height=tall - 1,
        rx=10,
        fill=palette.PANEL,
        stroke=palette.PANEL_EDGE,
    )
    body = moved((across - drawing.width) // 2, top, *_body(drawing))
    descriptions = (element("title", outline.title), element("desc", _described(outline)))
    linked = any(box.alone and safe_link(box.nodes[0].href) for box in outline.boxes)
    return element(
        "svg",
        *descriptions,
        panel,
        *head,
        body,
        xmlns="http://www.w3.org/2000/svg",
        width=across,
        height=tall,
        viewBox=f"0 0 {across} {tall}",
        role="group" if linked else "img",
        aria_label=f"{outline.title}: {_described(outline)}",
        font_family=_FONT,
    )


def _described(outline: Outline) -> str:
    whole = f"{outline.status}." if outline.status else ""
    path = f"Critical path: {outline.critical_path}." if outline.critical_path else ""
    return " ".join(
        part
        for part in (whole, outline.warning, f"{outline.summary}.", path, *outline.notes)
        if part
    )


def _head(outline: Outline, available: int) -> tuple[list[Markup], int]:
    """Return title, numbers, remarks and legend, and the position at which the drawing begins."""
    y = _MARGIN + 10
    status = f"  ·  {outline.status}" if outline.status else ""
    title = shortened(outline.title, available / 18 - ems(status))
    found = [text(_MARGIN, y, title + status, 17, palette.INK, font_weight=600)]
    path = f"Critical path: {outline.critical_path}" if outline.critical_path else ""
    for words in (outline.warning, outline.summary, path, *outline.notes):
        if words:
            y += _LINE
            colour = palette.WARNING if words == outline.warning else palette.QUIET
            found.append(text(_MARGIN, y, shortened(words, available / 12), 12, colour))
    x: float = _MARGIN
    y += _LINE + 4
    for entry in entries(outline):
        if x > _MARGIN and x + entry.width > _MARGIN + available:
            x, y = _MARGIN, y + _LINE + 2
        found.append(moved(x, y, *entry.parts))
        x += entry.width
    return found, y + _LINE + 8


def _body(drawing: Drawing) -> Iterator[Markup]:
    outline = drawing.outline
    if not outline.boxes:
        yield text(0, 10, "There is nothing to draw.", LABEL, palette.QUIET)
    for frame in drawing.frames:
        yield frame_shape(frame)
    lines = outline.lines
    for place in sorted(
        range(len(lines)), key=lambda place: (lines[place].critical, lines[place].broken, place)
    ):
        yield line_shape(drawing, place)
    for box, around in zip(outline.boxes, drawing.boxes, strict=True):
        yield box_shape(box, around)

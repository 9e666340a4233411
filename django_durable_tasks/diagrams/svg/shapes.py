"""The shapes of an SVG: boxes for tasks, frames for sub-workflows, paths for dependencies."""

from __future__ import annotations

from collections.abc import Iterator

from django_durable_tasks.diagrams import palette
from django_durable_tasks.diagrams.labels import clean, ems, in_order, safe_link, shortened
from django_durable_tasks.diagrams.layout.drawing import Drawing, Frame, Rectangle
from django_durable_tasks.diagrams.outline import Box
from django_durable_tasks.diagrams.svg.markup import Markup, element, icon, moved, text
from django_durable_tasks.diagrams.svg.paths import arrow_head, path_data
from django_durable_tasks.diagrams.tooltips import of_box, of_line
from django_durable_tasks.rules.states import Status

LABEL = 13
_STRIP = 30
_SMALL = 11
_BOLD = 1.12


def frame_shape(frame: Frame) -> Markup:
    """Return the frame around a sub-workflow, with its name."""
    around = frame.around
    plane = element(
        "rect",
        width=around.width,
        height=around.height,
        rx=10,
        fill=palette.FRAME,
        stroke=palette.FRAME_EDGE,
        stroke_dasharray="2 3",
    )
    name = shortened(clean(frame.path[-1]), (around.width - 24) / _SMALL)
    label = text(12, 17, name, _SMALL, palette.QUIET, font_weight=600)
    return moved(
        around.x,
        around.y,
        element("title", "Sub-workflow " + clean("/".join(frame.path))),
        plane,
        label,
    )


def line_shape(drawing: Drawing, place: int) -> Markup:
    """Return an edge: its dashes show the kind, a hollow arrow head that it is unresolved."""
    line, points = drawing.outline.lines[place], drawing.lines[place]
    colour = palette.BROKEN if line.broken else palette.CRITICAL if line.critical else palette.LINE
    dashes = palette.BROKEN_DASHES if line.broken else palette.DASHES[line.kind]
    curve = element(
        "path",
        d=path_data(points, downwards=drawing.downwards),
        fill="none",
        stroke=colour,
        stroke_width=2.6 if line.critical else 1.4,
        stroke_linecap="round",
        stroke_dasharray=dashes or None,
    )
    head = element(
        "path",
        d=arrow_head(points, downwards=drawing.downwards),
        stroke=colour,
        stroke_width=1.4,
        stroke_linejoin="round",
        fill=palette.PANEL if line.unresolved else colour,
    )
    return element("g", element("title", of_line(drawing.outline, line)), curve, head)


def box_shape(box: Box, around: Rectangle) -> Markup:
    """Return a box: icon, label and status; for several nodes a stack with the numbers per
    status.
    """
    style, width, height = palette.STYLES[box.status], around.width, around.height
    rounded = {"width": width, "height": height, "rx": 8}
    behind = [
        element("rect", x=off, y=off, fill=style.soft, stroke=style.strong, **rounded)
        for off in (() if box.alone else (6, 3))
    ]
    plane = element("rect", fill=style.soft, **rounded)
    strip = element(
        "path",
        d=f"M8 0H{_STRIP}V{height}H8A8 8 0 0 1 0 {height - 8}V8A8 8 0 0 1 8 0Z",
        fill=style.strong,
    )
    border = element(
        "rect",
        fill="none",
        stroke=palette.CRITICAL if box.critical else style.strong,
        stroke_width=2.6 if box.critical else 1.2,
        **rounded,
    )
    sign = moved(_STRIP / 2, height / 2, icon(box.status, "#ffffff", 2))
    words = _words_of_one(box, width, height) if box.alone else _words_of_many(box, width, height)
    inner = (element("title", of_box(box)), *behind, plane, strip, sign, border, *words)
    link = safe_link(box.nodes[0].href) if box.alone else ""
    return moved(
        around.x, around.y, element("a", *inner, href=link) if link else Markup("".join(inner))
    )


def wished_width(box: Box) -> int:
    """Return the width that a box requires for its content."""
    if box.alone:
        below = (ems(f"{box.status}  {box.duration}") if box.duration else ems(box.status)) * _SMALL
    else:
        below = sum(22 + ems(f"{number:,}") * _SMALL for _, number in in_order(box.counts))
    return round(max(ems(box.label) * LABEL * _BOLD, below)) + _STRIP + 24


def _words_of_one(box: Box, width: int, height: int) -> Iterator[Markup]:
    ink, middle = palette.STYLES[box.status].ink, height / 2
    yield _label(box, width, middle - 4)
    yield text(_STRIP + 10, middle + 13, str(box.status), _SMALL - 0.5, ink)
    if box.duration:
        yield text(width - 10, middle + 13, box.duration, _SMALL - 0.5, ink, text_anchor="end")


def _words_of_many(box: Box, width: int, height: int) -> Iterator[Markup]:
    ink, x = palette.STYLES[box.status].ink, _STRIP + 10.0
    yield _label(box, width, height / 2 - 9)
    counts = list(in_order(box.counts))
    for at, (status, number) in enumerate(counts):
        words = f"{number:,}"
        wide = 16 + ems(words) * _SMALL
        if x + wide + (14 if at + 1 < len(counts) else 0) > width - 4:
            yield text(x, height / 2 + 9, "…", _SMALL, ink)
            break
        yield moved(x + 5, height / 2 + 5, icon(status, palette.STYLES[status].strong, 1.8))
        yield text(x + 14, height / 2 + 9, words, _SMALL, ink)
        x += wide + 6
    yield from _bar(counts, len(box.nodes), _STRIP + 10, width - _STRIP - 20, height - 12)


def _label(box: Box, width: int, y: float) -> Markup:
    return text(
        _STRIP + 10,
        y,
        shortened(box.label, (width - _STRIP - 18) / LABEL / _BOLD),
        LABEL,
        palette.INK,
        font_weight=600,
    )


def _bar(
    counts: list[tuple[Status, int]], total: int, x: float, width: float, y: float
) -> Iterator[Markup]:
    """Yield the parts of a bar that shows the shares of the statuses."""
    for status, number in counts:
        share = width * number / total
        yield element(
            "rect",
            x=round(x, 1),
            y=y,
            width=round(max(share - 1, 0.6), 1),
            height=4,
            fill=palette.STYLES[status].strong,
        )
        x += share

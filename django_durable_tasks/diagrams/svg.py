"""Diagrams as SVG, without scripts, styles or external resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from django_durable_tasks.choices import Status
from django_durable_tasks.diagrams import model
from django_durable_tasks.diagrams.layout import Drawing, Frame, Point, Rectangle, drawn
from django_durable_tasks.diagrams.model import (
    KINDS,
    STYLES,
    Diagram,
    clean,
    ems,
    in_order,
    safe_link,
    shortened,
)
from django_durable_tasks.diagrams.outline import Box, Outline, collapsed, layered, of_box, of_line

# SVG elements as text. Only this module writes markup, so all escaping is here.


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element. Children that are not Markup are escaped, attributes always; attributes
    that are None are omitted.

    An underscore in an attribute's name represents a hyphen.
    """
    given = "".join(
        f' {key.replace("_", "-")}="{escape(_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(child if isinstance(child, Markup) else escape(child) for child in children)
    return Markup(f"<{name}{given}>{inside}</{name}>" if inside else f"<{name}{given}/>")


def moved(x: float, y: float, *children: str) -> Markup:
    """Return the children moved by x and y."""
    return element("g", *children, transform=f"translate({x:g} {y:g})")


def text(
    x: float, y: float, words: str, size: float, colour: str, **attributes: str | float
) -> Markup:
    """Return one line of text; ``y`` is its baseline. Further attributes: ``font_weight``,
    ``text_anchor``.
    """
    return element("text", words, x=x, y=y, font_size=size, fill=colour, **attributes)


def icon(status: Status, colour: str, thickness: float) -> Markup:
    """Return the sign of a status, 12 by 12 around 0,0."""
    return element(
        "path",
        d=STYLES[status].icon,
        fill="none",
        stroke=colour,
        stroke_width=thickness,
        stroke_linecap="round",
        stroke_linejoin="round",
    )


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.10g}"


# The edges of an SVG: smooth between layers, straight through them, with an arrow head at the end.


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


# The shapes of an SVG: boxes for tasks, frames for sub-workflows, paths for dependencies.


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
        fill=model.FRAME,
        stroke=model.FRAME_EDGE,
        stroke_dasharray="2 3",
    )
    name = shortened(clean(frame.path[-1]), (around.width - 24) / _SMALL)
    label = text(12, 17, name, _SMALL, model.QUIET, font_weight=600)
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
    colour = model.BROKEN if line.broken else model.CRITICAL if line.critical else model.LINE
    dashes = model.BROKEN_DASHES if line.broken else model.DASHES[line.kind]
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
        fill=model.PANEL if line.unresolved else colour,
    )
    return element("g", element("title", of_line(drawing.outline, line)), curve, head)


def box_shape(box: Box, around: Rectangle) -> Markup:
    """Return a box: icon, label and status; for several nodes a stack with the numbers per
    status.
    """
    style, width, height = model.STYLES[box.status], around.width, around.height
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
        stroke=model.CRITICAL if box.critical else style.strong,
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
    ink, middle = model.STYLES[box.status].ink, height / 2
    yield _label(box, width, middle - 4)
    yield text(_STRIP + 10, middle + 13, str(box.status), _SMALL - 0.5, ink)
    if box.duration:
        yield text(width - 10, middle + 13, box.duration, _SMALL - 0.5, ink, text_anchor="end")


def _words_of_many(box: Box, width: int, height: int) -> Iterator[Markup]:
    ink, x = model.STYLES[box.status].ink, _STRIP + 10.0
    yield _label(box, width, height / 2 - 9)
    counts = list(in_order(box.counts))
    for at, (status, number) in enumerate(counts):
        words = f"{number:,}"
        wide = 16 + ems(words) * _SMALL
        if x + wide + (14 if at + 1 < len(counts) else 0) > width - 4:
            yield text(x, height / 2 + 9, "…", _SMALL, ink)
            break
        yield moved(x + 5, height / 2 + 5, icon(status, model.STYLES[status].strong, 1.8))
        yield text(x + 14, height / 2 + 9, words, _SMALL, ink)
        x += wide + 6
    yield from _bar(counts, len(box.nodes), _STRIP + 10, width - _STRIP - 20, height - 12)


def _label(box: Box, width: int, y: float) -> Markup:
    return text(
        _STRIP + 10,
        y,
        shortened(box.label, (width - _STRIP - 18) / LABEL / _BOLD),
        LABEL,
        model.INK,
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
            fill=model.STYLES[status].strong,
        )
        x += share


# The legend of an SVG, limited to the elements that occur in it.


_SIZE = 11
_AFTER = 16


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """One sign with its text, drawn to the right from 0,0, its middle on the line y = 0."""

    parts: tuple[Markup, ...]
    width: float


def entries(outline: Outline) -> Iterator[LegendEntry]:
    """Yield the statuses with their numbers, the kinds of edges, and the critical path, as far as
    they occur.
    """
    counts = Counter(str(node.status) for node in outline.layered.nodes)
    for status, _ in in_order(counts):
        style = model.STYLES[status]
        badge = element("rect", y=-8, width=16, height=16, rx=4, fill=style.strong)
        yield _entry(16, str(status), badge, moved(8, 0, icon(status, "#ffffff", 1.7)))
    kinds = {line.kind for line in outline.lines if not line.broken}
    for kind in KINDS:
        if kind in kinds:
            yield _entry(34, kind, _stroke(model.LINE, 1.6, model.DASHES[kind]))
    if any(line.unresolved for line in outline.lines) and any(
        not line.unresolved for line in outline.lines
    ):
        yield _entry(10, "resolved", _arrow_head(model.LINE))
        yield _entry(10, "not yet", _arrow_head(model.PANEL))
    if any(line.critical for line in outline.lines):
        yield _entry(34, "critical path", _stroke(model.CRITICAL, 2.8, ""))
    if any(line.broken for line in outline.lines):
        yield _entry(34, "closes a cycle", _stroke(model.BROKEN, 1.6, model.BROKEN_DASHES))


def _entry(width: float, words: str, *signs: Markup) -> LegendEntry:
    label = text(width + 6, 4, words, _SIZE, model.QUIET)
    return LegendEntry((*signs, label), width + 6 + ems(words) * _SIZE + _AFTER)


def _stroke(colour: str, thickness: float, dashes: str) -> Markup:
    return element(
        "path",
        d="M0 0H34",
        stroke=colour,
        stroke_width=thickness,
        stroke_dasharray=dashes or None,
        stroke_linecap="round",
    )


def _arrow_head(fill: str) -> Markup:
    return element("path", d="M9 0L1 -4.5V4.5Z", stroke=model.LINE, stroke_width=1.4, fill=fill)


# Diagrams as SVG without scripts, styles or external resources, so that the strictest CSP allows
# them.


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
    head, top = _heading(outline, min(across, _WIDEST) - 2 * _MARGIN)
    tall = top + drawing.height + _MARGIN + 6
    panel = element(
        "rect",
        x=0.5,
        y=0.5,
        width=across - 1,
        height=tall - 1,
        rx=10,
        fill=model.PANEL,
        stroke=model.PANEL_EDGE,
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


def _heading(outline: Outline, available: int) -> tuple[list[Markup], int]:
    """Return title, numbers, remarks and legend, and the position at which the drawing begins."""
    y = _MARGIN + 10
    status = f"  ·  {outline.status}" if outline.status else ""
    title = shortened(outline.title, available / 18 - ems(status))
    found = [text(_MARGIN, y, title + status, 17, model.INK, font_weight=600)]
    path = f"Critical path: {outline.critical_path}" if outline.critical_path else ""
    for words in (outline.warning, outline.summary, path, *outline.notes):
        if words:
            y += _LINE
            colour = model.WARNING if words == outline.warning else model.QUIET
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
        yield text(0, 10, "There is nothing to draw.", LABEL, model.QUIET)
    for frame in drawing.frames:
        yield frame_shape(frame)
    lines = outline.lines
    for place in sorted(
        range(len(lines)), key=lambda place: (lines[place].critical, lines[place].broken, place)
    ):
        yield line_shape(drawing, place)
    for box, around in zip(outline.boxes, drawing.boxes, strict=True):
        yield box_shape(box, around)

"""Drawings as SVG without scripts, and as Mermaid. Foreign text is escaped in ``element``, which
writes all markup of an SVG.

Light colours are attributes of the elements: viewers without style sheets and printers use them.
A style sheet has the dark ones. A page links it, so that the strictest Content-Security-Policy
allows it, and a file contains it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache, partial
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from django.templatetags.static import static

from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.diagrams import layout
from django_durable_tasks.workflows.diagrams import (
    KINDS,
    Diagram,
    clean,
    lasted,
    longest_paths,
    safe_link,
    shortened,
    summed_up,
)

# Colours, dashes and icons. Text has a contrast of at least 4.5 to 1 on its fill, lines of 3 to 1
# (WCAG 2.2, AA), also in the dark colours.

STYLE_SHEET = "django_durable_tasks/diagrams.css"
LIGHT = {
    "panel": "#ffffff",
    "panel-edge": "#cbd5e1",
    "ink": "#0f172a",
    "quiet": "#475569",
    "line": "#64748b",
    "critical": "#0f172a",
    "broken": "#b91c1c",
    "frame": "#f8fafc",
    "frame-edge": "#64748b",
    "warning": "#9a3412",
    "icon": "#ffffff",
}
DASHES = {"MUST_SUCCEED": "", "MUST_FINISH": "7 4", "MUST_FAIL": "1.5 4"}
BROKEN_DASHES = "9 4 1.5 4"


class StatusStyle(NamedTuple):
    """The appearance of a status: ``strong`` is the background of its icon, ``soft`` that of text
    in ``text``. ``path`` is the data of the icon, 12 by 12 around 0,0, drawn as strokes.
    """

    strong: str
    soft: str
    text: str
    path: str


_CIRCLE = "M0 -4.6A4.6 4.6 0 1 1 -.01 -4.6"
STYLES = {
    Status.BLOCKED: StatusStyle("#b45309", "#fffbeb", "#78350f", "M-2.2 -3.8V3.8M2.2 -3.8V3.8"),
    Status.PENDING: StatusStyle("#475569", "#f8fafc", "#1e293b", f"{_CIRCLE}M0 -2.4V.3L1.9 1.5"),
    Status.QUEUED: StatusStyle(
        "#0e7490", "#ecfeff", "#164e63", "M-4 -3.6L-.4 0L-4 3.6M.6 -3.6L4.2 0L.6 3.6"
    ),
    Status.RUNNING: StatusStyle("#1d4ed8", "#eff6ff", "#1e3a8a", "M-2.6 -4.2L4.2 0L-2.6 4.2Z"),
    Status.SUCCESS: StatusStyle("#15803d", "#f0fdf4", "#14532d", "M-4.4 .4L-1.4 3.4L4.4 -3.2"),
    Status.FAILED: StatusStyle(
        "#b91c1c", "#fef2f2", "#7f1d1d", "M-3.6 -3.6L3.6 3.6M3.6 -3.6L-3.6 3.6"
    ),
    Status.CANCELLED: StatusStyle("#7e22ce", "#faf5ff", "#581c87", f"{_CIRCLE}M-3.2 3.2L3.2 -3.2"),
    Status.SKIPPED: StatusStyle(
        "#52525b", "#f4f4f5", "#3f3f46", "M-4.6 2.6C-3.8 -3.6 2.6 -4.4 4.2 1.6M4.8 -2.2L4.3 2L.4 .8"
    ),
    Status.EXPIRED: StatusStyle("#9d174d", "#fdf2f8", "#831843", "M-3.2 -4.4H3.2L-3.2 4.4H3.2Z"),
}


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def element(
    name: str, *children: str, status: Status | None = None, **attributes: str | float | None
) -> Markup:
    """Return an element. Children that are not Markup are escaped, attributes always; attributes
    that are None are omitted. An underscore in an attribute's name represents a hyphen.

    ``fill`` and ``stroke`` are names of colours, of the status if it is given.
    """
    classes = ["dg"] if name == "svg" else []
    if status and name == "g":
        classes.append(f"dg-{status.lower()}")
    for paint in ("fill", "stroke"):
        colour = attributes.get(paint)
        if isinstance(colour, str) and colour != "none":
            classes.append(f"dg-{paint}-{colour}")
            colours = STYLES[status]._asdict() if status else {}
            attributes[paint] = colours.get(colour) or LIGHT[colour]
    if classes:
        attributes["class"] = " ".join(classes)
    written = "".join(
        f' {key.replace("_", "-")}="{escape(value if isinstance(value, str) else f"{value:.10g}")}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(child if isinstance(child, Markup) else escape(child) for child in children)
    return Markup(f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>")


def _moved(x: float, y: float, *children: str, status: Status | None = None) -> Markup:
    return element("g", *children, status=status, transform=f"translate({x:g} {y:g})")


def _text(x: float, y: float, words: str, size: float, fill: str, **attributes: Any) -> Markup:
    """Return one line of text; ``y`` is its baseline."""
    return element("text", words, x=x, y=y, font_size=size, fill=fill, **attributes)


_ROUND: dict[str, Any] = {"stroke_linecap": "round", "stroke_linejoin": "round"}


def _icon(status: Status, stroke: str, thickness: float) -> Markup:
    path = STYLES[status].path
    return element(
        "path", d=path, fill="none", stroke=stroke, status=status, stroke_width=thickness, **_ROUND
    )


_NARROW = frozenset("iljtfrI.,:;|!'`()[]{}/ ")
_BROAD = frozenset("mwMW@%…—")


def ems(text: str) -> float:
    """Return the approximate width of the text in a sans-serif font, in ems; rather too wide than
    too narrow.
    """
    return sum(map(_ems_of, text))


def _ems_of(character: str) -> float:
    if character in _NARROW:
        return 0.36
    if character in _BROAD or not character.isascii():
        return 1.05
    return 0.71 if character.isupper() else 0.62


# Shapes: boxes for tasks, frames for sub-workflows, paths for dependencies. Sizes are in pixels.

_LABEL, _SMALL = 13, 11
_BOLD = 1.12
_STRIP = 30
_HEAD, _HALF = 7, 4


def _frame(path: Sequence[str], corner: layout.Point, size: layout.Point) -> Markup:
    name = shortened(clean(path[-1]), (size[0] - 24) / _SMALL, ems)
    shape: dict[str, Any] = {"width": round(size[0]), "height": round(size[1])}
    return _moved(
        round(corner[0]),
        round(corner[1]),
        element("title", "Sub-workflow " + clean("/".join(path))),
        element("rect", **shape, rx=10, fill="frame", stroke="frame-edge", stroke_dasharray="2 3"),
        _text(12, 17, name, _SMALL, "quiet", font_weight=600),
    )


def _line(
    outline: layout.Outline, line: layout.Line, points: list[layout.Point], *, downwards: bool
) -> Markup:
    """Return a line: its dashes show the kind, a hollow arrow head that it is unresolved."""
    colour = "broken" if line.broken else "critical" if line.critical else "line"
    curve, head = path_data(points, downwards=downwards)
    width = 2.6 if line.critical else 1.4
    dashes = (BROKEN_DASHES if line.broken else DASHES[line.kind]) or None
    drawn = partial(element, "path", stroke=colour, **_ROUND)
    ends = (outline.boxes[line.source].label, outline.boxes[line.target].label)
    state = "not resolved yet" if line.unresolved else "resolved"
    if line.count > 1:
        state = f"{line.count:,} dependencies, {line.unresolved:,} not resolved yet"
    between = " → ".join(shortened(end, _TOOLTIP / 3) for end in ends)
    cycle = "closes a cycle" * line.broken
    return element(
        "g",
        element("title", _tooltip(between, f"{line.kind}: {state}", line.outcome, cycle)),
        drawn(d=curve, fill="none", stroke_width=width, stroke_dasharray=dashes),
        drawn(d=head, fill="panel" if line.unresolved else colour, stroke_width=1.4),
    )


def path_data(points: Sequence[layout.Point], *, downwards: bool) -> tuple[str, str]:
    """Return the data of the path, which is smooth between layers and straight through them, and of
    the arrow head at its end.
    """
    # u is the direction of the layers.
    way = [(round(y), round(x)) if downwards else (round(x), round(y)) for x, y in points]
    sign = 1 if way[-1][0] >= way[0][0] else -1
    (end, across), back = way[-1], way[-1][0] - sign * _HEAD
    way[-1] = (back, across)

    def at(u: float, v: float) -> str:
        return f"{v:g} {u:g}" if downwards else f"{u:g} {v:g}"

    steps = [f"M{at(*way[0])}"]
    for (u, v), (to_u, to_v) in pairwise(way):
        if v == to_v:
            steps.append(f"L{at(to_u, to_v)}")
        else:
            middle = (u + to_u) / 2
            steps.append(f"C{at(middle, v)} {at(middle, to_v)} {at(to_u, to_v)}")
    head = f"M{at(end, across)}L{at(back, across - _HALF)}L{at(back, across + _HALF)}Z"
    return "".join(steps), head


def _box(box: layout.Box, corner: layout.Point, width: int, height: int) -> Markup:
    """Return a box: icon, label and status; for several nodes a stack with the numbers per
    status.
    """
    rect = partial(element, "rect", status=box.status, width=width, height=height, rx=8)
    shapes = [
        element("title", _title_of_box(box)),
        *([] if box.alone else [rect(x=6, y=3, fill="soft", stroke="strong")]),
        rect(fill="soft"),
        element(
            "path",
            d=f"M8 0H{_STRIP}V{height}H8A8 8 0 0 1 0 {height - 8}V8A8 8 0 0 1 8 0Z",
            fill="strong",
            status=box.status,
        ),
        rect(
            fill="none",
            stroke="critical" if box.critical else "strong",
            stroke_width=2.6 if box.critical else 1.2,
        ),
        _moved(_STRIP / 2, height / 2, _icon(box.status, "icon", 2)),
    ]
    left, middle = _STRIP + 10.0, height / 2
    label = shortened(box.label, (width - _STRIP - 18) / _LABEL / _BOLD, ems)
    baseline = middle - (4 if box.alone else 5)
    shapes.append(_text(left, baseline, label, _LABEL, "ink", font_weight=600))
    if box.alone:
        small = partial(_text, y=middle + 13, size=_SMALL - 0.5, fill="text", status=box.status)
        shapes.append(small(left, words=str(box.status)))
        if box.duration:
            shapes.append(small(width - 10, words=box.duration, text_anchor="end"))
    else:
        counts = [(status, box.counts[status]) for status in Status if box.counts[status]]
        for at, (status, number) in enumerate(counts):
            wide = 16 + ems(f"{number:,}") * _SMALL
            if left + wide + (14 if at + 1 < len(counts) else 0) > width - 4:
                shapes.append(_text(left, middle + 14, "…", _SMALL, "text", status=box.status))
                break
            icon = _icon(status, "strong", 1.8)
            shapes.append(_moved(left + 5, middle + 10, icon, status=status))
            words = f"{number:,}"
            shapes.append(_text(left + 14, middle + 14, words, _SMALL, "text", status=box.status))
            left += wide + 6
    link = safe_link(box.nodes[0].href) if box.alone else ""
    inner = [element("a", *shapes, href=link)] if link else shapes
    return _moved(round(corner[0]), round(corner[1]), *inner, status=box.status)


# Tooltips: several short lines of text.

_TOOLTIP = 160


def _tooltip(*lines: str) -> str:
    return "\n".join(shortened(line, _TOOLTIP) for line in lines if line)


def _title_of_box(box: layout.Box) -> str:
    """Return label, name, status, reason and duration; for many nodes the numbers by status and the
    total duration.
    """
    node = box.nodes[0]
    names = {node.name for node in box.nodes}
    path = "on the critical path" if box.critical else ""
    if not box.alone:
        counts = [f"{box.counts[status]:,} {status}" for status in Status if box.counts[status]]
        measured = [node.microseconds for node in box.nodes if node.microseconds is not None]
        took = f"took {lasted(sum(measured))} together" if measured else ""
        return _tooltip(box.label, clean(node.name) * (len(names) == 1), *counts, took, path)
    reason = clean(node.reason)
    took = f"took {box.duration}" if box.duration else ""
    if not took and node.started_at is not None:
        took = f"started {node.started_at.isoformat(' ', 'seconds')}"
    return _tooltip(
        box.label,
        clean(node.name) * (node.name != node.label),
        f"{node.status}: {reason}" if reason else str(node.status),
        took,
        path,
    )


# The whole drawing: heading, legend of what occurs in it, frames, lines and boxes.

_MARGIN = 20
_ROW = 20
_NARROWEST, _WIDEST, _WIDEST_BOX = 560, 1_600, 250
_HEIGHT, _HEIGHT_OF_MANY = 46, 54
_FONT = "ui-sans-serif, system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@lru_cache(maxsize=32)
def as_svg(diagram: Diagram, *, with_style: bool = True) -> str:
    """Return the drawing as one SVG element. It is drawn once for each state of the diagram.

    Links are included if they are relative, http or https. A tooltip of each box and line has its
    details.
    """
    outline = layout.outlined(diagram)
    graph = outline.graph
    wished = 0.0
    for box in outline.boxes:
        if box.alone:
            below = ems(f"{box.status}  {box.duration}".rstrip()) * _SMALL
        else:
            below = sum(22 + ems(f"{number:,}") * _SMALL for number in box.counts.values())
        wished = max(wished, max(ems(box.label) * _LABEL * _BOLD, below) + _STRIP + 24)
    width = min(_WIDEST_BOX, round(wished))
    height = _HEIGHT if all(box.alone for box in outline.boxes) else _HEIGHT_OF_MANY
    drawing = layout.laid_out(outline, width, height)
    across = max(_NARROWEST, round(drawing.width) + 2 * _MARGIN + 6)
    # Title, numbers, remarks and legend.
    available = min(across, _WIDEST) - 2 * _MARGIN
    x: float = _MARGIN
    y = _MARGIN + 10
    head = [_text(x, y, shortened(graph.title, available / 18, ems), 17, "ink", font_weight=600)]
    path = f"Critical path: {graph.critical_path}" if graph.critical_path else ""
    for words in (graph.summary, path, *outline.remarks):
        if words:
            y += _ROW
            colour = "warning" if "cycle" in words and words in outline.remarks else "quiet"
            head.append(_text(x, y, shortened(words, available / 12, ems), 12, colour))
    y += _ROW + 4
    for signs, sign_width, words in _legend(outline):
        wide = sign_width + 22 + ems(words) * _SMALL
        if x > _MARGIN and x + wide > _MARGIN + available:
            x, y = _MARGIN, y + _ROW + 2
        head.append(_moved(x, y, *signs, _text(sign_width + 6, 4, words, _SMALL, "quiet")))
        x += wide
    top = y + _ROW + 8
    tall = top + round(drawing.height) + _MARGIN + 6
    sentences = (clean(diagram.status), graph.summary.rstrip("."), path, *outline.remarks)
    described = " ".join(f"{sentence.rstrip('.')}." for sentence in sentences if sentence)
    title = clean(diagram.title) or "Untitled"
    linked = any(box.alone and safe_link(box.nodes[0].href) for box in outline.boxes)
    size: dict[str, Any] = {"width": across - 1, "height": tall - 1}
    panel = element("rect", x=0.5, y=0.5, **size, rx=10, fill="panel", stroke="panel-edge")
    return element(
        "svg",
        *([element("style", _style())] if with_style else []),
        element("title", title),
        element("desc", described),
        panel,
        *head,
        _moved((across - round(drawing.width)) // 2, top, *_body(outline, drawing, width, height)),
        xmlns="http://www.w3.org/2000/svg",
        width=across,
        height=tall,
        viewBox=f"0 0 {across} {tall}",
        role="group" if linked else "img",
        aria_label=f"{title}: {described}",
        font_family=_FONT,
    )


def as_html(diagram: Diagram) -> str:
    """Return the drawing for a page of this site, with a link to its style sheet."""
    link = element("link", rel="stylesheet", href=static(STYLE_SHEET))
    return link + as_svg(diagram, with_style=False)


@cache
def _style() -> Markup:
    text = (Path(__file__).parent / "static" / STYLE_SHEET).read_text(encoding="utf-8")
    return Markup(text)


def _legend(outline: layout.Outline) -> Iterator[tuple[list[Markup], int, str]]:
    """Yield the signs that occur, with their widths and texts; the middle is on the line y = 0."""
    counts = Counter(node.status for node in outline.graph.nodes)
    for status in Status:
        if counts[status]:
            badge = element("rect", y=-8, width=16, height=16, rx=4, fill="strong", status=status)
            icon = _moved(8, 0, _icon(status, "icon", 1.7))
            yield [element("g", badge, icon, status=status)], 16, str(status)
    stroke = partial(element, "path", d="M0 0H34", stroke_linecap="round")
    kinds = {line.kind for line in outline.lines if not line.broken}
    for kind in KINDS:
        if kind in kinds:
            dashes = DASHES[kind] or None
            yield [stroke(stroke="line", stroke_width=1.6, stroke_dasharray=dashes)], 34, kind
    if len({bool(line.unresolved) for line in outline.lines}) > 1:
        head = partial(element, "path", d="M9 0L1 -4.5V4.5Z", stroke="line", stroke_width=1.4)
        yield [head(fill="line")], 10, "resolved"
        yield [head(fill="panel")], 10, "not yet"
    if any(line.critical for line in outline.lines):
        yield [stroke(stroke="critical", stroke_width=2.8)], 34, "critical path"
    if any(line.broken for line in outline.lines):
        broken = stroke(stroke="broken", stroke_width=1.6, stroke_dasharray=BROKEN_DASHES)
        yield [broken], 34, "closes a cycle"


def _body(
    outline: layout.Outline, drawing: layout.Drawing, width: int, height: int
) -> Iterator[Markup]:
    if not outline.boxes:
        yield _text(0, 10, "There is nothing to draw.", _LABEL, "quiet")
    for path, (corner, size) in sorted(drawing.frames.items()):
        yield _frame(path, corner, size)
    for place in sorted(
        range(len(outline.lines)),
        key=lambda at: (outline.lines[at].critical, outline.lines[at].broken, at),
    ):
        line, points = outline.lines[place], drawing.lines[place]
        yield _line(outline, line, points, downwards=drawing.downwards)
    for place, box in enumerate(outline.boxes):
        yield _box(box, drawing.boxes[place], width, height)


# Diagrams as Mermaid flowcharts, within what Mermaid draws by default.

# The defaults of Mermaid's settings maxEdges and maxTextSize.
MOST_EDGES = 500
MOST_CHARACTERS = 50_000
# All except letters, digits and plain signs, and characters that begin a list in Markdown.
_MEANING = re.compile(r"[^\w \-.,:/()×…→·–]|[-.)](?= )")
_ARROWS = {"MUST_SUCCEED": "-->", "MUST_FINISH": "-.->", "MUST_FAIL": "--x"}
# Characters of links that are not percent-encoded, beside letters and digits.
_IN_LINKS = "~/:?#[]@!$&()*+,=%"
# Columns of a label.
_MERMAID_LABEL = 48


def as_mermaid(diagram: Diagram) -> str:
    """Return a flowchart with a class for each status and a subgraph for each sub-workflow.

    ``-->`` is MUST_SUCCEED, ``-.->`` MUST_FINISH, ``--x`` MUST_FAIL. Ids are numbered, and every
    special character of a label is written as its number. Links are omitted if they would exceed
    the size limit.
    """
    outline = layout.outlined(diagram, MOST_EDGES)
    lines = [*_head(outline), *_boxes(outline), *_lines(outline)]
    for status in sorted({box.status for box in outline.boxes}):
        style = STYLES[status]
        colors = f"fill:{style.soft},stroke:{style.strong},color:{style.text}"
        lines.append(f"  classDef {status.lower()} {colors}")
    critical = [f"n{place}" for place, box in enumerate(outline.boxes) if box.critical]
    if critical:
        lines.append(f"  classDef critical stroke:{LIGHT['critical']},stroke-width:3px")
        lines.append(f"  class {','.join(critical)} critical")
    links = [
        f'  click n{place} href "{quote(link, safe=_IN_LINKS)}"'
        for place, box in enumerate(outline.boxes)
        if box.alone and (link := safe_link(box.nodes[0].href))
    ]
    fits = sum(map(len, lines + links)) + len(lines + links) <= MOST_CHARACTERS
    return "\n".join(lines + links if fits else lines) + "\n"


def _head(outline: layout.Outline) -> Iterator[str]:
    # A JSON string is also YAML. Characters that have a meaning in Mermaid are written as numbers.
    title = json.dumps(shortened(outline.graph.title, 120))
    title = "".join(f"\\u{ord(c):04x}" if c in "<>&%{}#`" else c for c in title)
    pairs = [(line.source, line.target) for line in outline.lines if not line.broken]
    layers = max(longest_paths(len(outline.boxes), pairs)[1], default=0) + 1
    rightwards = layers <= 8 or len(outline.boxes) > 3 * layers
    yield from ("---", f"title: {title}", "---", f"flowchart {'LR' if rightwards else 'TB'}")
    for comment in (outline.graph.summary, *outline.remarks):
        yield f"  %% {_encoded(shortened(comment, 160))}"


def _boxes(outline: layout.Outline) -> Iterator[str]:
    """Yield a line for each box, indented inside the subgraphs of its sub-workflows; every subgraph
    is opened once.
    """
    number = 0
    path: tuple[str, ...] = ()
    for place, box in sorted(enumerate(outline.boxes), key=lambda pair: (pair[1].group, pair[0])):
        kept = 0
        while kept < min(len(path), len(box.group)) and path[kept] == box.group[kept]:
            kept += 1
        yield from ("  " * depth + "end" for depth in range(len(path), kept, -1))
        for depth in range(kept, len(box.group)):
            number += 1
            title = _encoded(shortened(clean(box.group[depth]), _MERMAID_LABEL))
            yield f'{"  " * (depth + 1)}subgraph g{number}["{title}"]'
        path = box.group
        below = " · ".join(text for text in (box.status, box.duration) if text)
        below = below if box.alone else summed_up(box.counts)
        words = f"{_encoded(shortened(box.label, _MERMAID_LABEL))}<br/>{_encoded(below)}"
        yield f'{"  " * (len(path) + 1)}n{place}["{words}"]:::{box.status.lower()}'
    yield from ("  " * depth + "end" for depth in range(len(path), 0, -1))


def _lines(outline: layout.Outline) -> Iterator[str]:
    for line in outline.lines:
        label = "closes a cycle" if line.broken else f"{line.count:,}" if line.count > 1 else ""
        arrow = _ARROWS[line.kind] + (f"|{label}|" if label else "")
        yield f"  n{line.source} {arrow} n{line.target}"
    for name, width in (("critical", 3), ("broken", 2)):
        indexes = [str(at) for at, line in enumerate(outline.lines) if getattr(line, name)]
        if indexes:
            yield f"  linkStyle {','.join(indexes)} stroke:{LIGHT[name]},stroke-width:{width}px"


def _encoded(text: str) -> str:
    return _MEANING.sub(lambda match: f"#{ord(match[0])};", text)

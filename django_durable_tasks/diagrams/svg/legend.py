"""The legend of an SVG, limited to the elements that occur in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from django_durable_tasks.diagrams import palette
from django_durable_tasks.diagrams.labels import ems, in_order
from django_durable_tasks.diagrams.model import KINDS
from django_durable_tasks.diagrams.outline import Outline
from django_durable_tasks.diagrams.svg.markup import Markup, element, icon, moved, text

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
        style = palette.STYLES[status]
        badge = element("rect", y=-8, width=16, height=16, rx=4, fill=style.strong)
        yield _entry(16, str(status), badge, moved(8, 0, icon(status, "#ffffff", 1.7)))
    kinds = {line.kind for line in outline.lines if not line.broken}
    for kind in KINDS:
        if kind in kinds:
            yield _entry(34, kind, _stroke(palette.LINE, 1.6, palette.DASHES[kind]))
    if any(line.unresolved for line in outline.lines) and any(
        not line.unresolved for line in outline.lines
    ):
        yield _entry(10, "resolved", _head(palette.LINE))
        yield _entry(10, "not yet", _head(palette.PANEL))
    if any(line.critical for line in outline.lines):
        yield _entry(34, "critical path", _stroke(palette.CRITICAL, 2.8, ""))
    if any(line.broken for line in outline.lines):
        yield _entry(34, "closes a cycle", _stroke(palette.BROKEN, 1.6, palette.BROKEN_DASHES))


def _entry(width: float, words: str, *signs: Markup) -> LegendEntry:
    label = text(width + 6, 4, words, _SIZE, palette.QUIET)
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


def _head(fill: str) -> Markup:
    return element("path", d="M9 0L1 -4.5V4.5Z", stroke=palette.LINE, stroke_width=1.4, fill=fill)

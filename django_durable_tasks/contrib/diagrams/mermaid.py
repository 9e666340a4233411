"""Diagrams as Mermaid flowcharts, within what Mermaid draws by default."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.parse import quote

from django_durable_tasks.contrib.diagrams.layout import Outline, outlined
from django_durable_tasks.contrib.diagrams.svg import LIGHT, STYLES
from django_durable_tasks.workflows.diagrams import (
    Diagram,
    clean,
    longest_paths,
    safe_link,
    shortened,
    summed_up,
)

# The defaults of Mermaid's settings maxEdges and maxTextSize.
MOST_EDGES = 500
MOST_CHARACTERS = 50_000
# All except letters, digits and plain signs, and characters that begin a list in Markdown.
_MEANING = re.compile(r"[^\w \-.,:/()×…→·–]|[-.)](?= )")
_ARROWS = {"MUST_SUCCEED": "-->", "MUST_FINISH": "-.->", "MUST_FAIL": "--x"}
# Characters of links that are not percent-encoded, beside letters and digits.
_IN_LINKS = "~/:?#[]@!$&()*+,=%"
# Columns of a label.
_LABEL = 48


def as_mermaid(diagram: Diagram) -> str:
    """Return a flowchart with a class for each status and a subgraph for each sub-workflow.

    ``-->`` is MUST_SUCCEED, ``-.->`` MUST_FINISH, ``--x`` MUST_FAIL. Ids are numbered, and every
    special character of a label is written as its number. Links are omitted if they would exceed
    the size limit.
    """
    outline = outlined(diagram, MOST_EDGES)
    lines = [*_head(outline), *_boxes(outline), *_lines(outline), *_classes(outline)]
    links = [
        f'  click n{place} href "{quote(link, safe=_IN_LINKS)}"'
        for place, box in enumerate(outline.boxes)
        if box.alone and (link := safe_link(box.nodes[0].href))
    ]
    fits = sum(map(len, lines + links)) + len(lines + links) <= MOST_CHARACTERS
    return "\n".join(lines + links if fits else lines) + "\n"


def _head(outline: Outline) -> Iterator[str]:
    # A JSON string is also YAML. Characters that have a meaning in Mermaid are written as numbers.
    title = json.dumps(shortened(outline.graph.title, 120))
    title = "".join(f"\\u{ord(c):04x}" if c in "<>&%{}#`" else c for c in title)
    pairs = [(line.source, line.target) for line in outline.lines if not line.broken]
    layers = max(longest_paths(len(outline.boxes), pairs)[1], default=0) + 1
    rightwards = layers <= 8 or len(outline.boxes) > 3 * layers
    yield from ("---", f"title: {title}", "---", f"flowchart {'LR' if rightwards else 'TB'}")
    for comment in (outline.graph.summary, *outline.remarks):
        yield f"  %% {_encoded(shortened(comment, 160))}"


def _boxes(outline: Outline) -> Iterator[str]:
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
            title = _encoded(shortened(clean(box.group[depth]), _LABEL))
            yield f'{"  " * (depth + 1)}subgraph g{number}["{title}"]'
        path = box.group
        below = " · ".join(part for part in (box.status, box.duration) if part)
        below = below if box.alone else summed_up(box.counts)
        words = f"{_encoded(shortened(box.label, _LABEL))}<br/>{_encoded(below)}"
        yield f'{"  " * (len(path) + 1)}n{place}["{words}"]:::{box.status.lower()}'
    yield from ("  " * depth + "end" for depth in range(len(path), 0, -1))


def _lines(outline: Outline) -> Iterator[str]:
    for line in outline.lines:
        label = "closes a cycle" if line.broken else f"{line.count:,}" if line.count > 1 else ""
        arrow = _ARROWS[line.kind] + (f"|{label}|" if label else "")
        yield f"  n{line.source} {arrow} n{line.target}"
    for name, width in (("critical", 3), ("broken", 2)):
        these = [str(at) for at, line in enumerate(outline.lines) if getattr(line, name)]
        if these:
            yield f"  linkStyle {','.join(these)} stroke:{LIGHT[name]},stroke-width:{width}px"


def _classes(outline: Outline) -> Iterator[str]:
    for status in sorted({box.status for box in outline.boxes}):
        style = STYLES[status]
        colors = f"fill:{style.soft},stroke:{style.strong},color:{style.text}"
        yield f"  classDef {status.lower()} {colors}"
    critical = [f"n{place}" for place, box in enumerate(outline.boxes) if box.critical]
    if critical:
        yield f"  classDef critical stroke:{LIGHT['critical']},stroke-width:3px"
        yield f"  class {','.join(critical)} critical"


def _encoded(text: str) -> str:
    return _MEANING.sub(lambda found: f"#{ord(found[0])};", text)

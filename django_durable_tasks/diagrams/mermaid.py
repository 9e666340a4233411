"""Diagrams as Mermaid flowcharts, within what Mermaid draws by default: 500 edges and 50,000
characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from django_durable_tasks.diagrams.grouping import collapsed
from django_durable_tasks.diagrams.labels import clean, safe_link, shortened, summed_up
from django_durable_tasks.diagrams.layers import layered
from django_durable_tasks.diagrams.model import Diagram
from django_durable_tasks.diagrams.outline import Box, EdgePath, Outline
from django_durable_tasks.diagrams.palette import BROKEN, CRITICAL, STYLES

MOST_EDGES = 500
MOST_CHARACTERS = 50_000
# All except letters, digits and plain signs, and characters that begin a list in Markdown.
_MEANING = re.compile(r"[^\w \-.,:/()×…→·–]|[-.)](?= )")
_ARROWS = {"MUST_SUCCEED": "-->", "MUST_FINISH": "-.->", "MUST_FAIL": "--x"}
_ROOM = 34.0


def as_mermaid(diagram: Diagram) -> str:
    """Return a flowchart with a class for each status and a subgraph for each sub-workflow.

    ``-->`` is MUST_SUCCEED, ``-.->`` MUST_FINISH, ``--x`` MUST_FAIL. Ids are numbered, and every
    special character of a label is written as its number. Links are omitted if they would exceed
    the size limit.
    """
    outline = collapsed(layered(diagram), most_lines=MOST_EDGES)
    lines = [*_head(outline), *_boxes(outline), *_lines(outline), *_classes(outline)]
    links = list(_links(outline))
    fits = sum(map(len, lines + links)) + len(lines + links) <= MOST_CHARACTERS
    return "\n".join(lines + links if fits else lines) + "\n"


def _head(outline: Outline) -> Iterator[str]:
    title = " · ".join(part for part in (outline.title, outline.status) if part)
    yield "---"
    yield f"title: {_yaml(shortened(title, 90))}"
    yield "---"
    yield f"flowchart {'LR' if _reads_rightwards(outline) else 'TB'}"
    for comment in (outline.summary, outline.warning, *outline.notes):
        if comment:
            yield f"  %% {_encoded(shortened(comment, 120))}"


def _reads_rightwards(outline: Outline) -> bool:
    layers = max((box.layer for box in outline.boxes), default=0) + 1
    return layers <= 8 or len(outline.boxes) > 3 * layers


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
            title = _encoded(shortened(clean(box.group[depth]), _ROOM))
            yield f'{"  " * (depth + 1)}subgraph g{number}["{title}"]'
        path = box.group
        yield "  " * (len(path) + 1) + _box(place, box)
    yield from ("  " * depth + "end" for depth in range(len(path), 0, -1))


def _box(place: int, box: Box) -> str:
    return f'n{place}["{_worded(box)}"]:::{str(box.status).lower()}'


def _worded(box: Box) -> str:
    below = (
        f"{box.status}{' · ' + box.duration if box.duration else ''}"
        if box.alone
        else summed_up(box.counts)
    )
    return f"{_encoded(shortened(box.label, _ROOM))}<br/>{_encoded(below)}"


def _lines(outline: Outline) -> Iterator[str]:
    for line in outline.lines:
        label = _label(line)
        yield f"  n{line.source} {_ARROWS[line.kind]}{f'|{label}|' if label else ''} n{line.target}"
    critical = [str(place) for place, line in enumerate(outline.lines) if line.critical]
    broken = [str(place) for place, line in enumerate(outline.lines) if line.broken]
    if critical:
        yield f"  linkStyle {','.join(critical)} stroke:{CRITICAL},stroke-width:3px"
    if broken:
        yield f"  linkStyle {','.join(broken)} stroke:{BROKEN},stroke-width:2px"


def _label(line: EdgePath) -> str:
    return "closes a cycle" if line.broken else f"{line.count:,}" if line.count > 1 else ""


def _classes(outline: Outline) -> Iterator[str]:
    for status in sorted({box.status for box in outline.boxes}):
        style = STYLES[status]
        colors = f"fill:{style.soft},stroke:{style.strong},color:{style.ink}"
        yield f"  classDef {status.lower()} {colors}"
    critical = [f"n{place}" for place, box in enumerate(outline.boxes) if box.critical]
    if critical:
        yield f"  classDef critical stroke:{CRITICAL},stroke-width:3px"
        yield f"  class {','.join(critical)} critical"


def _links(outline: Outline) -> Iterator[str]:
    for place, box in enumerate(outline.boxes):
        link = safe_link(box.nodes[0].href) if box.alone else ""
        if link:
            yield f'  click n{place} href "{_percent(link)}"'


def _encoded(text: str) -> str:
    return _MEANING.sub(lambda found: f"#{ord(found[0])};", text)


def _percent(link: str) -> str:
    """Percent-encode all characters of a link except letters and usual signs, as UTF-8."""
    return "".join(
        character
        if character.isascii() and (character.isalnum() or character in "-._~/:?#[]@!$&()*+,=%")
        else "".join(f"%{byte:02X}" for byte in character.encode())
        for character in link
    )


def _yaml(text: str) -> str:
    """Write a JSON string, which is also YAML, with all characters except plain ones as their
    numbers.
    """
    written = json.dumps(text)[1:-1]
    return '"' + "".join(f"\\u{ord(c):04x}" if c in "<>&%{}#`" else c for c in written) + '"'

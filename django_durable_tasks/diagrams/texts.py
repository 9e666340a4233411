"""Diagrams as text for a terminal, as Mermaid flowcharts and as JSON."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from django_durable_tasks.diagrams.model import (
    BROKEN,
    CRITICAL,
    SIGNS,
    STYLES,
    Diagram,
    DiagramNode,
    clean,
    columns,
    counted,
    in_order,
    listed,
    safe_link,
    shortened,
    shortened_columns,
    summed_up,
)
from django_durable_tasks.diagrams.outline import (
    Box,
    EdgePath,
    Layered,
    Outline,
    collapsed,
    layered,
)

# Diagrams as text for a terminal of 100 columns: the layers in order, below each task its
# upstreams.


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
    return (
        "\n".join(shortened_columns(line, WIDTH).rstrip() for line in _text_lines(outline)) + "\n"
    )


def _text_lines(outline: Outline) -> Iterator[str]:
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


# Diagrams as Mermaid flowcharts, within what Mermaid draws by default: 500 edges and 50,000
# characters.


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
    lines = [*_head(outline), *_boxes(outline), *_mermaid_lines(outline), *_classes(outline)]
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


def _mermaid_lines(outline: Outline) -> Iterator[str]:
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


# Diagrams as JSON: every node and every edge, with the values from which the drawings are made.
#
# ``schema`` is incremented when a key is renamed or removed; keys may be added.


SCHEMA = 1
# As in Django's json_script: safe inside <script> too.
_IN_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def as_json(diagram: Diagram) -> str:
    """Return everything as one JSON object: times in ISO 8601, durations in seconds, layers from 0.

    ``critical_path.measured`` is true if it is based on durations, not on the number of nodes.
    ``broken`` edges close a cycle and are ignored for the layers; ``outside`` edges lead to tasks
    that are not among the nodes.
    """
    graph = layered(diagram)
    document = {
        "schema": SCHEMA,
        "title": diagram.title,
        "status": diagram.status,
        "counts": {
            str(status): number
            for status, number in in_order(Counter(str(n.status) for n in graph.nodes))
        },
        "critical_path": {
            "nodes": [graph.nodes[place].id for place in graph.critical],
            "seconds": graph.critical_microseconds() / 1_000_000,
            "measured": graph.critical_microseconds() > 0,
        },
        "layers": [[graph.nodes[place].id for place in row] for row in graph.layers()],
        "nodes": _nodes(graph),
        "edges": _edges(graph),
    }
    return json.dumps(document, indent=1).translate(_IN_HTML)


def _nodes(graph: Layered) -> list[dict[str, Any]]:
    critical = set(graph.critical)
    return [
        _node(graph.nodes[place]) | {"layer": layer, "critical": place in critical}
        for layer, row in enumerate(graph.layers())
        for place in row
    ]


def _node(node: DiagramNode) -> dict[str, Any]:
    measured = node.microseconds
    return {
        "id": node.id,
        "label": node.label,
        "name": node.name,
        "status": str(node.status),
        "started_at": _iso(node.started_at),
        "completed_at": _iso(node.completed_at),
        "seconds": None if measured is None else measured / 1_000_000,
        "reason": node.reason,
        "group": node.group,
        "href": safe_link(node.href),
    }


def _edges(graph: Layered) -> list[dict[str, Any]]:
    critical = set(pairwise(graph.critical))
    inside = [
        (
            edge,
            {
                "critical": graph.ends[place] in critical,
                "broken": place in graph.broken,
                "outside": False,
            },
        )
        for place, edge in enumerate(graph.edges)
    ]
    outside = [
        (edge, {"critical": False, "broken": False, "outside": True}) for edge in graph.outside
    ]
    return [
        {
            "source": edge.source,
            "target": edge.target,
            "kind": str(edge.kind),
            "resolved": edge.resolved,
            "outcome": edge.outcome,
            **values,
        }
        for edge, values in inside + outside
    ]


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()

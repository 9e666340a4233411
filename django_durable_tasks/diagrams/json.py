"""Diagrams as JSON: every node and every edge, with the values from which the drawings are made.

``schema`` is incremented when a key is renamed or removed; keys may be added.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from itertools import pairwise
from typing import Any

from django_durable_tasks.diagrams.labels import in_order, safe_link
from django_durable_tasks.diagrams.layers import Layered, layered
from django_durable_tasks.diagrams.model import Diagram, DiagramNode

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

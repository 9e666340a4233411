"""Diagrams of a graph of tasks: layered drawings as text, Mermaid, Graphviz, SVG and JSON; the
layout is our own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from django_durable_tasks.diagrams.dot import as_dot
from django_durable_tasks.diagrams.json import as_json
from django_durable_tasks.diagrams.mermaid import as_mermaid
from django_durable_tasks.diagrams.model import Diagram, Edge, Node
from django_durable_tasks.diagrams.svg.document import as_svg
from django_durable_tasks.diagrams.text import as_text
from django_durable_tasks.did_you_mean import did_you_mean
from django_durable_tasks.exceptions import InvalidOption

__all__ = ["FORMATS", "Diagram", "Edge", "Node", "draw"]

FORMATS: Mapping[str, Callable[[Diagram], str]] = MappingProxyType(
    {"text": as_text, "mermaid": as_mermaid, "dot": as_dot, "svg": as_svg, "json": as_json}
)


def draw(diagram: Diagram, format: str) -> str:
    """Return the diagram in this format; raises InvalidOption that names the nearest one.

    The answer depends on the diagram alone: not on the order of its nodes and edges, and on no
    clock. Foreign text in it is escaped for the format. Above 200 nodes alike ones are put
    together, but in json, which holds everything.
    """
    drawer = FORMATS.get(format)
    if drawer is None:
        hint = did_you_mean(str(format).lower(), FORMATS) or f"Give one of {', '.join(FORMATS)}."
        raise InvalidOption(f"format={format!r}: no such diagram. {hint}")
    return drawer(diagram)

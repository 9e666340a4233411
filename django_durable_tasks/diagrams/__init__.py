"""Diagrams of dependent tasks: layered drawings as text, Mermaid, SVG and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from django_durable_tasks.diagrams.model import Diagram, DiagramEdge, DiagramNode
from django_durable_tasks.diagrams.svg import as_svg
from django_durable_tasks.diagrams.texts import as_json, as_mermaid, as_text
from django_durable_tasks.did_you_mean import did_you_mean
from django_durable_tasks.exceptions import InvalidOption

__all__ = ["FORMATS", "Diagram", "DiagramEdge", "DiagramNode", "draw"]

FORMATS: Mapping[str, Callable[[Diagram], str]] = MappingProxyType(
    {"text": as_text, "mermaid": as_mermaid, "svg": as_svg, "json": as_json}
)


def draw(diagram: Diagram, format: str) -> str:
    """Return the diagram in this format; raises InvalidOption with the closest valid name.

    The result depends on the diagram only, not on the order of its nodes and edges or on the time.
    Foreign text is escaped for the format. Above 200 nodes, similar ones are grouped, except in
    JSON.
    """
    drawer = FORMATS.get(format)
    if drawer is None:
        hint = did_you_mean(str(format).lower(), FORMATS) or f"Give one of {', '.join(FORMATS)}."
        raise InvalidOption(f"format={format!r}: no such diagram. {hint}")
    return drawer(diagram)

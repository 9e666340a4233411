"""Pictures of a graph of tasks: layered drawings as text, Mermaid, Graphviz, SVG and JSON; the layout is our own."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from types import MappingProxyType

from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.rules.pictures.as_dot import as_dot
from django_durable_tasks.rules.pictures.as_json import as_json
from django_durable_tasks.rules.pictures.as_mermaid import as_mermaid
from django_durable_tasks.rules.pictures.as_svg import as_svg
from django_durable_tasks.rules.pictures.as_text import as_text
from django_durable_tasks.rules.pictures.graph import Edge, Node, Picture

__all__ = ["FORMATS", "Edge", "Node", "Picture", "draw"]

FORMATS: Mapping[str, Callable[[Picture], str]] = MappingProxyType(
    {"text": as_text, "mermaid": as_mermaid, "dot": as_dot, "svg": as_svg, "json": as_json}
)


def draw(picture: Picture, format: str) -> str:
    """Return the picture in this format; raises InvalidOption that names the nearest one.

    The answer depends on the picture alone: not on the order of its nodes and edges, and on no clock. Foreign text in
    it is escaped for the format. Above 200 nodes alike ones are put together, but in json, which holds everything.
    """
    drawer = FORMATS.get(format)
    if drawer is None:
        near = difflib.get_close_matches(str(format).lower(), FORMATS, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Give one of {', '.join(FORMATS)}."
        raise InvalidOption(f"format={format!r}: no such picture. {hint}")
    return drawer(picture)

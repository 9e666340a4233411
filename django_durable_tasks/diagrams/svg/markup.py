"""SVG elements as text. Only this module writes markup, so all escaping is here."""

from __future__ import annotations

from html import escape

from django_durable_tasks.diagrams.palette import STYLES
from django_durable_tasks.rules.states import Status


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

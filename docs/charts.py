"""Draws bar charts as SVG, without a library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_LABEL, _ROOM, _VALUE, _ROW, _BAR, _TOP = 300, 330, 90, 26, 16, 40
_CHARACTER = 6.3
"""The width of a character of a label that is not exceeded on average, in pixels."""
_OURS, _OTHER = "#1f6f8b", "#b8c4cc"


@dataclass(frozen=True)
class Bar:
    """One bar: ``ours`` marks this package by another colour."""

    label: str
    value: float
    ours: bool = False


def bar_chart(title: str, unit: str, bars: Sequence[Bar]) -> str:
    """Return an SVG image with one horizontal bar for each value, in the order given."""
    height, longest = _TOP + _ROW * len(bars) + 8, max(bar.value for bar in bars)
    label = max(_LABEL, round(_CHARACTER * max(len(bar.label) for bar in bars)) + 16)
    width = label + _ROOM + _VALUE
    rows = [
        _row(bar, label, _TOP + _ROW * number, _ROOM * bar.value / longest if longest else 0.0)
        for number, bar in enumerate(bars)
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        ' font-family="sans-serif" font-size="12">'
    )
    name = f"{escape(title)}, {escape(unit)}"
    lines = [
        head,
        f"<title>{name}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="22" font-size="14" font-weight="bold">{name}</text>',
        *rows,
        "</svg>\n",
    ]
    return "\n".join(lines)


def _row(bar: Bar, label: int, top: int, width: float) -> str:
    fill, baseline = _OURS if bar.ours else _OTHER, top + 12
    return (
        f'<text x="{label - 8}" y="{baseline}" text-anchor="end">{escape(bar.label)}</text>'
        f'<rect x="{label}" y="{top}" width="{max(1.0, width):.1f}" height="{_BAR}" fill="{fill}"/>'
        f'<text x="{label + max(1.0, width) + 6:.1f}" y="{baseline}">{shown(bar.value)}</text>'
    )


def shown(value: float) -> str:
    """Return a value with the digits that matter."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"

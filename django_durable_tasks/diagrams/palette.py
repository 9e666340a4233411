"""Colours and icons of the statuses. Text has a contrast of at least 4.5 to 1 on its fill, lines of
3 to 1 (WCAG 2.2, AA).

The diagram has its own light background, so it is legible on dark and light pages.
"""

from __future__ import annotations

from dataclasses import dataclass

from django_durable_tasks.rules.states import Status

PANEL = "#ffffff"
PANEL_EDGE = "#cbd5e1"
INK = "#0f172a"
QUIET = "#475569"
LINE = "#64748b"
CRITICAL = "#0f172a"
BROKEN = "#b91c1c"
FRAME = "#f8fafc"
FRAME_EDGE = "#64748b"
WARNING = "#9a3412"


@dataclass(frozen=True, slots=True)
class StatusStyle:
    """The appearance of a status: ``strong`` is the background of a white icon, ``soft`` that of
    text in ``ink``.

    ``icon`` is the data of an SVG path in a field of 12 by 12 around 0,0, drawn as strokes.
    """

    strong: str
    soft: str
    ink: str
    icon: str


_CIRCLE = "M0 -4.6A4.6 4.6 0 1 1 -.01 -4.6"
STYLES = {
    Status.BLOCKED: StatusStyle("#b45309", "#fffbeb", "#78350f", "M-2.2 -3.8V3.8M2.2 -3.8V3.8"),
    Status.PENDING: StatusStyle("#475569", "#f8fafc", "#1e293b", f"{_CIRCLE}M0 -2.4V.3L1.9 1.5"),
    Status.QUEUED: StatusStyle(
        "#0e7490", "#ecfeff", "#164e63", "M-4 -3.6L-.4 0L-4 3.6M.6 -3.6L4.2 0L.6 3.6"
    ),
    Status.RUNNING: StatusStyle("#1d4ed8", "#eff6ff", "#1e3a8a", "M-2.6 -4.2L4.2 0L-2.6 4.2Z"),
    Status.SUCCESS: StatusStyle("#15803d", "#f0fdf4", "#14532d", "M-4.4 .4L-1.4 3.4L4.4 -3.2"),
    Status.FAILED: StatusStyle(
        "#b91c1c", "#fef2f2", "#7f1d1d", "M-3.6 -3.6L3.6 3.6M3.6 -3.6L-3.6 3.6"
    ),
    Status.CANCELLED: StatusStyle("#7e22ce", "#faf5ff", "#581c87", f"{_CIRCLE}M-3.2 3.2L3.2 -3.2"),
    Status.SKIPPED: StatusStyle(
        "#52525b", "#f4f4f5", "#3f3f46", "M-4.6 2.6C-3.8 -3.6 2.6 -4.4 4.2 1.6M4.8 -2.2L4.3 2L.4 .8"
    ),
    Status.EXPIRED: StatusStyle("#9d174d", "#fdf2f8", "#831843", "M-3.2 -4.4H3.2L-3.2 4.4H3.2Z"),
}
DASHES = {"MUST_SUCCEED": "", "MUST_FINISH": "7 4", "MUST_FAIL": "1.5 4"}
BROKEN_DASHES = "9 4 1.5 4"


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21 (WCAG 2.2, relative luminance)."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    channels = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue

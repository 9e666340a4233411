"""The content of a diagram as plain values, and the texts and colours with which it is drawn."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from django_durable_tasks.choices import Status
from django_durable_tasks.exceptions import InvalidOption

# The content of a diagram: tasks as nodes, dependencies as edges, as plain values.


KINDS = ("MUST_SUCCEED", "MUST_FINISH", "MUST_FAIL")
_STATUSES = frozenset(str(status) for status in Status)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagramNode:
    """One task.

    ``name`` is the registered task name, ``group`` the path of its sub-workflow (``""`` the outer
    one, ``"a/b"`` nested), ``href`` a link, which is drawn only if it is relative, http or https.
    Raises InvalidOption for an unknown status.
    """

    id: str
    label: str
    status: str
    name: str = ""
    started_at: datetime | None = None
    completed_at: datetime | None = None
    reason: str = ""
    group: str = ""
    href: str = ""

    def __post_init__(self) -> None:
        """Refuse an unknown status."""
        if self.status not in _STATUSES:
            raise InvalidOption(
                f"status={self.status!r} of node {self.id!r}: give one of {', '.join(Status)}."
            )

    @property
    def microseconds(self) -> int | None:
        """Return the duration of the run; None if it is unknown, 0 if the clocks contradict each
        other.
        """
        start, end = self.started_at, self.completed_at
        if start is None or end is None or (start.utcoffset() is None) != (end.utcoffset() is None):
            return None
        return max(0, (end - start) // _MICROSECOND)

    @property
    def path(self) -> tuple[str, ...]:
        """Return the names of the sub-workflows around the node, the outermost first."""
        return tuple(part for part in self.group.split("/") if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagramEdge:
    """One dependency: the target waits for the source.

    ``resolved``: the target no longer waits for it; ``outcome``: why. Raises InvalidOption for an
    unknown kind.
    """

    source: str
    target: str
    kind: str
    resolved: bool = False
    outcome: str = ""

    def __post_init__(self) -> None:
        """Refuse an unknown kind."""
        if self.kind not in KINDS:
            ends = f"{self.source!r} -> {self.target!r}"
            raise InvalidOption(
                f"kind={self.kind!r} of edge {ends}: give one of {', '.join(KINDS)}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagram:
    """The content of a diagram; the order of nodes and edges does not matter.

    An edge may refer to a task that is not among the nodes: it is mentioned, not drawn. Raises
    InvalidOption if two nodes have the same id.
    """

    title: str
    status: str
    nodes: tuple[DiagramNode, ...]
    edges: tuple[DiagramEdge, ...]

    def __post_init__(self) -> None:
        """Refuse two nodes with the same id."""
        doubled = [
            known for known, times in Counter(node.id for node in self.nodes).items() if times > 1
        ]
        if doubled:
            raise InvalidOption(
                f"nodes: the id {min(doubled)!r} is given more than once; give each node its own."
            )


# Colours and icons of the statuses. Text has a contrast of at least 4.5 to 1 on its fill, lines of
# 3 to 1 (WCAG 2.2, AA).
#
# The diagram has its own light background, so it is legible on dark and light pages.


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


# Text in diagrams: foreign text is made safe and shortened, numbers and durations are formatted.


ELLIPSIS = "…"
SIGNS = {
    Status.BLOCKED: "◇",
    Status.PENDING: "○",
    Status.QUEUED: "»",
    Status.RUNNING: "►",
    Status.SUCCESS: "✓",
    Status.FAILED: "✗",
    Status.CANCELLED: "⊘",
    Status.SKIPPED: "↷",
    Status.EXPIRED: "⧖",
}
ATTENTION = (
    *(Status.FAILED, Status.EXPIRED, Status.RUNNING, Status.QUEUED, Status.PENDING),
    *(Status.BLOCKED, Status.CANCELLED, Status.SKIPPED, Status.SUCCESS),
)
# Control characters, lone surrogates, characters that XML does not allow, and direction marks.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_NUMBER = re.compile("([0-9]{1,15})")
_HARMLESS = re.compile(r"[^\s\\\x00-\x20\x7f-\x9f]+")
_SCHEME = re.compile(r"([^/?#:]*):")
_NARROW = frozenset("iljtfrI.,:;|!'`()[]{}/ ")
_BROAD = frozenset("mwMW@%…—")
_LONGEST = 4_000


def clean(text: str) -> str:
    """Return foreign text on one line, with disallowed characters replaced by U+FFFD."""
    return _UNSEEN.sub("\ufffd", " ".join(text[:_LONGEST].split()))


def safe_link(href: str) -> str:
    """Return the link if it is relative, http or https without unusual characters; otherwise an
    empty text.
    """
    link = href.strip()
    if not _HARMLESS.fullmatch(link) or _UNSEEN.search(link):
        return ""
    scheme = _SCHEME.match(link)
    return link if scheme is None or scheme[1].lower() in {"http", "https"} else ""


def natural(text: str) -> tuple[str | int, ...]:
    """Return a sort key under which ``page 9`` is before ``page 10``."""
    return tuple(int(part) if place % 2 else part for place, part in enumerate(_NUMBER.split(text)))


def columns(text: str) -> int:
    """Return how many columns of a terminal the text occupies."""
    return len(text) if text.isascii() else sum(map(_columns_of, text))


def _columns_of(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in {"Cf", "Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def ems(text: str) -> float:
    """Return the approximate width of the text in a sans-serif font, in ems; rather too wide than
    too narrow.
    """
    return sum(map(_ems_of, text))


def _ems_of(character: str) -> float:
    if character in _NARROW:
        return 0.36
    if character in _BROAD:
        return 1.0
    if character.isascii():
        return 0.71 if character.isupper() else 0.62
    return 1.05


def shortened(text: str, available: float) -> str:
    """Return the text shortened to ``ems``. The middle is removed, because often only the end
    differs between siblings.
    """
    return _shortened(text, available, ems)


def shortened_columns(text: str, available: int) -> str:
    """Return the text shortened to ``columns`` of a terminal, without its middle."""
    return _shortened(text, available, columns)


def _shortened(text: str, available: float, measure: Callable[[str], float]) -> str:
    if measure(text) <= available:
        return text
    text = text if len(text) <= 400 else text[:200] + text[-200:]
    fitting = bisect_right(
        range(1, len(text)), available, key=lambda keep: measure(_without_middle(text, keep))
    )
    return _without_middle(text, max(1, fitting))


def _without_middle(text: str, keep: int) -> str:
    head = (keep + 1) // 2
    return text[:head].rstrip() + ELLIPSIS + text[len(text) - (keep - head) :].lstrip()


def counted(number: int, thing: str) -> str:
    """Return ``1 task`` or ``1,234 tasks``."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def lasted(microseconds: int) -> str:
    """Return a duration in at most two units."""
    seconds = microseconds / 1_000_000
    if seconds < 0.9995:
        return f"{round(seconds * 1000)} ms"
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    sizes = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    for (size, unit), (smaller, other) in pairwise(sizes):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size:,} {unit}" + (f" {rest} {other}" if rest else "")
    return f"{whole} s"


def in_order(counts: Mapping[str, int]) -> Iterable[tuple[Status, int]]:
    """Yield the counts in the order of the statuses, without zeros."""
    return ((status, counts[status]) for status in Status if counts.get(status))


def summed_up(counts: Mapping[str, int]) -> str:
    """Return ``12 SUCCESS, 1 FAILED``."""
    return ", ".join(f"{number:,} {status}" for status, number in in_order(counts))


def listed(words: Iterable[str], most: int) -> str:
    """Return the words with commas; those after the first ``most`` are counted."""
    words = list(words)
    more = [f"{len(words) - most:,} more"] if len(words) > most else []
    shown = words[:most] + more
    return (
        shown[0]
        if len(shown) == 1
        else ", ".join(shown[:-1]) + " and " + shown[-1]
        if shown
        else ""
    )

"""Text in diagrams: foreign text is made safe and shortened, numbers and durations are
formatted.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

from django_durable_tasks.rules.states import Status

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

"""The text that a task keeps of an operator's action: what was done, by whom, and why."""

from __future__ import annotations

LONGEST = 200


def comment(action: str, by: str = "", reason: str = "") -> str:
    """Return ``"CANCELLED by ada: wrong input"``, cut to the 200 characters of the column
    ``Task.reason``.
    """
    done = " ".join(part for part in (action, f"by {by}" if by else "") if part)
    return ": ".join(part for part in (done, reason) if part)[:LONGEST]


def done_by(action: str, by: str, reason: str) -> str:
    """Return the same, or an empty text if neither who nor why is given: the action alone says
    nothing.
    """
    return comment(action, by, reason) if by or reason else ""

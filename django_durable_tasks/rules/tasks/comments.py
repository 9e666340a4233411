"""The comment that a task stores about an operator's action: the action, the user and the
reason.
"""

from __future__ import annotations

LONGEST = 200


def comment(action: str, by: str = "", reason: str = "") -> str:
    """Return ``"CANCELLED by ada: wrong input"``, truncated to the 200 characters of the column
    ``Task.reason``.
    """
    done = " ".join(part for part in (action, f"by {by}" if by else "") if part)
    return ": ".join(part for part in (done, reason) if part)[:LONGEST]


def done_by(action: str, by: str, reason: str) -> str:
    """Return the comment, or an empty text if neither the user nor a reason is given."""
    return comment(action, by, reason) if by or reason else ""

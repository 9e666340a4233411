"""Suggestions for misspelt names in error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known name that is most similar to ``name``, or an empty string.

    ``cutoff`` is the least similarity, from 0 to 1.
    """
    return next(iter(difflib.get_close_matches(str(name), list(known), n=1, cutoff=cutoff)), "")


def did_you_mean(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ``Did you mean 'NAME'?`` with the nearest known name, or an empty string."""
    found = nearest(name, known, cutoff)
    return f"Did you mean {found!r}?" if found else ""

"""Parts of messages: numbers with their nouns, and suggestions for misspelt names."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable


def counted(number: int, singular: str, plural: str = "") -> str:
    """Return ``1 task`` or ``1,200 tasks``, for log lines and the command line. The admin uses
    ``ngettext``.

    ``plural`` is ``singular`` with an ``s`` by default, and may contain the verb, as in
    ``counted(number, "task waits", "tasks wait")``.
    """
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"


_LAST_PART = 0.7
"""The least similarity of the last parts of two dotted names, from 0 to 1."""


def nearest(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known name that is most similar to ``name``, or an empty string.

    ``cutoff`` is the least similarity, from 0 to 1.
    """
    return next(iter(difflib.get_close_matches(str(name), list(known), n=1, cutoff=cutoff)), "")


def nearest_function(name: str, known: Iterable[str]) -> str:
    """Return the known dotted name that is most similar, or an empty string.

    The last parts must be similar too. Otherwise every function of a module would be suggested for
    every other one.
    """
    last = name.rpartition(".")[2]
    similar = [
        other for other in known if nearest(last, [other.rpartition(".")[2]], _LAST_PART) != ""
    ]
    return nearest(name, similar)


def did_you_mean(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ``Did you mean 'NAME'?`` with the nearest known name, or an empty string."""
    found = nearest(name, known, cutoff)
    return f"Did you mean {found!r}?" if found else ""


_LIBRARIES = ("celery", "contextlib", "django", "django_durable_tasks", "kombu")
"""The packages whose lines are no callers, for ``warn_caller``."""


def warn_caller(message: Warning | str, category: type[Warning]) -> None:
    """Issue a warning for the line of the project that has called this package, perhaps through
    Celery.
    """
    frame, level = sys._getframe(), 1
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)

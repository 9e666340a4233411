"""Masks secrets: values under sensitive names are replaced wherever they are displayed."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

MASK = "********"


@functools.cache
def _patterns(names: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    name = re.compile(names, re.IGNORECASE)
    # Possessive, with no open-ended prefix: a long word must not take quadratic time.
    key = rf"""(?P<key>(?:{names})[\w-]{{0,100}}+["']?\s{{0,20}}+[:=]\s{{0,20}}+)"""
    value = r"""(?P<value>"[^"]*"|'[^']*'|(?:(?:bearer|basic|token)\s+)?[^\s,;&)}\]]+)"""
    pair = re.compile(key + value, re.IGNORECASE)
    return name, pair


def masked_text(text: str, names: str) -> str:
    """Return the text with the value of every ``name=value`` and ``"name": value`` masked."""
    return _patterns(names)[1].sub(lambda found: found["key"] + MASK, text)


def masked(value: Any, names: str) -> Any:
    """Return the JSON value with everything under a sensitive name masked, at every depth."""
    if isinstance(value, dict):
        hides = _patterns(names)[0].search
        return {
            key: MASK if hides(str(key)) else masked(item, names) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(item, names) for item in value]
    return masked_text(value, names) if isinstance(value, str) else value


def masked_positional(
    values: Sequence[Any], parameters: Sequence[str] | None, names: str
) -> list[Any]:
    """Return positional arguments masked by the names of their parameters; ``None``: unknown, so
    all are masked.

    Values beyond the last parameter belong to it, as those of ``*values`` do.
    """
    if parameters is None:
        return [MASK for _ in values]
    called = [
        *parameters,
        *[parameters[-1] if parameters else ""] * (len(values) - len(parameters)),
    ]
    return [masked({name: value}, names)[name] for name, value in zip(called, values, strict=False)]


def shortened(text: str, max_bytes: int) -> str:
    """Return the text truncated to ``max_bytes`` bytes of UTF-8.

    NUL and lone surrogates, which some databases refuse, are escaped.
    """
    clean = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace")
    if len(clean) <= max_bytes:
        return clean.decode()
    kept = clean[: max(0, max_bytes - 16)].decode("utf-8", "ignore")
    return f"{kept}... [cut]"

"""Arrays in the text format of PostgreSQL, as parameters of ``unnest()``.

The driver formats each element with a dumper in Python, which takes several times as long.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime

_NULL = "NULL"


def uuid_array(values: Iterable[uuid.UUID | None]) -> str:
    """Return the text of a ``uuid[]``."""
    return _array([_NULL if value is None else f"{value.int:032x}" for value in values])


def time_array(values: Iterable[datetime | None]) -> str:
    """Return the text of a ``timestamptz[]``."""
    return _array([_NULL if value is None else value.isoformat() for value in values])


def number_array(values: Iterable[int | None]) -> str:
    """Return the text of an array of integers or booleans."""
    return _array([_NULL if value is None else str(value) for value in values])


def text_array(values: Iterable[str | None]) -> str:
    """Return the text of a ``text[]``."""
    return _array([_NULL if value is None else _quoted(value) for value in values])


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _array(elements: list[str]) -> str:
    return f"{{{','.join(elements)}}}"

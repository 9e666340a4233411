"""Reads the SQL statements in ``sql/<name>.<vendor>.sql``, for the forms of ``dialects.py``."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from importlib import resources
from typing import Any

from django_durable_tasks.store.dialects import vendor


@functools.cache
def text(name: str, of: str) -> str | None:
    """Return the statement of this name without comments; None if the vendor has none."""
    file = resources.files(__package__).joinpath("sql", f"{name}.{of}.sql")
    if not file.is_file():
        return None
    lines = file.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("--"))


def sql(name: str) -> str:
    """Return the statement of this name for the database of settings.DURABLE_TASKS. Raises
    LookupError if it has none.
    """
    found = text(name, vendor())
    if found is None:
        raise LookupError(f"There is no statement {name} for {vendor()}.")
    return found


def _text_of(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


_recordset = json.JSONEncoder(default=_text_of, check_circular=False, separators=(",", ":"))


def recordset(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as JSON for ``json_to_recordset``; missing keys are NULL.

    This takes half the time of one array per column, which the driver would serialize in Python.
    """
    return _recordset.encode(list(rows))

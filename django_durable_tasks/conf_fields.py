"""The kinds of settings. The ``help`` of each field is its documentation."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def duration(default: float | None, help: str) -> Any:
    """Return the field of a duration in seconds."""
    return field(default=default, metadata={"help": help, "kind": "duration"})


def count(default: int | None, help: str) -> Any:
    """Return the field of a whole number of 0 or more."""
    return field(default=default, metadata={"help": help, "kind": "count"})


def value(default: Any, help: str) -> Any:
    """Return the field of another value."""
    return field(default=default, metadata={"help": help, "kind": "value"})

"""Records how late task functions start. Each appends one line to a file that all processes share."""

from __future__ import annotations

import os
import time
from pathlib import Path

_descriptors: dict[str, int] = {}


def stamp(path: str, due: float) -> None:
    """Record how many seconds after its due time (Unix time) this function starts. One write per
    line, so that lines are not mixed.
    """
    late = time.time() - due
    if path not in _descriptors:
        _descriptors[path] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_descriptors[path], f"{late:.6f}\n".encode())


def number(path: Path) -> int:
    """Return how many functions have started."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def lags(path: Path) -> list[float]:
    """Return how many seconds late each function started, in ascending order."""
    return sorted(float(line) for line in path.read_text().splitlines())

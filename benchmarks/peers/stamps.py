"""How late bodies start: each appends one line to a file, which all processes share."""

from __future__ import annotations

import os
import time
from pathlib import Path

_descriptors: dict[str, int] = {}


def stamp(path: str, due: float) -> None:
    """Note how many seconds after its due instant (Unix time) this body starts; one write a line,
    so none is torn.
    """
    late = time.time() - due
    if path not in _descriptors:
        _descriptors[path] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_descriptors[path], f"{late:.6f}\n".encode())


def number(path: Path) -> int:
    """Return how many bodies have started."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def lags(path: Path) -> list[float]:
    """Return how late (seconds) each body started, the least first."""
    return sorted(float(line) for line in path.read_text().splitlines())

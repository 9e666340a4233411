"""Counts finished no-ops across processes without a server: each process keeps a small mapped file
in a folder.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

_LAYOUT = struct.Struct("=qdd")


class Tally:
    """The number of functions that this process has run, and when the first and the last ran
    (monotonic clock).
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.pid = 0

    def _open(self, first: float) -> None:
        self.pid, self.count, self.first = os.getpid(), 0, first
        path = self.folder / f"{self.pid}"
        path.write_bytes(bytes(_LAYOUT.size))
        with path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), _LAYOUT.size)

    def add(self, began: float | None = None) -> None:
        """Count one call. ``began``: when it began (monotonic clock), if that was not now."""
        if self.pid == 0 or (self.count & 63 == 0 and self.pid != os.getpid()):
            self._open(time.monotonic() if began is None else began)
        self.count += 1
        _LAYOUT.pack_into(self.map, 0, self.count, self.first, time.monotonic())


def count(folder: Path) -> int:
    """Return how many functions all processes have run."""
    return sum(number for number, _, _ in _read(folder))


def seconds(folder: Path) -> float:
    """Return the time from the first start to the last end."""
    found = _read(folder)
    return max(last for _, _, last in found) - min(first for _, first, _ in found)


def last(folder: Path) -> float:
    """Return when the last function ended (monotonic clock)."""
    return max(end for _, _, end in _read(folder))


def _read(folder: Path) -> list[tuple[int, float, float]]:
    contents = [path.read_bytes() for path in folder.iterdir()]
    return [
        _LAYOUT.unpack(content)
        for content in contents
        if len(content) == _LAYOUT.size and any(content)
    ]

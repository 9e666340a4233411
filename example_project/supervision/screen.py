"""The terminal output: lines that stay, and below them a bar and a table that are redrawn."""

import shutil
import time
from collections.abc import Sequence
from typing import TextIO

WIDTH = 30
LIVE_SECONDS, QUIET_SECONDS = 0.25, 2.0


class Screen:
    """On a terminal the dynamic part is redrawn in place; otherwise it is one line every two
    seconds.
    """

    def __init__(self, out: TextIO) -> None:
        self._out, self._live = out, out.isatty()
        self._began, self._drawn, self._next = time.monotonic(), 0, 0.0

    def write_line(self, text: str) -> None:
        """Write a permanent line, with the seconds since the beginning."""
        self._erase()
        self._write(f"{time.monotonic() - self._began:6.1f} s  {text}\n")

    def is_due(self) -> bool:
        """Return whether it is time to draw again: four times a second on a terminal."""
        return time.monotonic() >= self._next

    def show(self, share: float, lines: Sequence[str]) -> None:
        """Draw the dynamic part: the progress (0 to 1), and some lines."""
        self._next = time.monotonic() + (LIVE_SECONDS if self._live else QUIET_SECONDS)
        filled = round(WIDTH * min(share, 1.0))
        bar = f"[{'#' * filled}{'-' * (WIDTH - filled)}] {100 * min(share, 1.0):3.0f} %"
        if self._live:
            self._erase()
            width = shutil.get_terminal_size().columns - 1
            for line in ("", bar, *lines):
                self._write(line[:width] + "\n")
            self._drawn = len(lines) + 2
        else:
            self._write(
                f"{time.monotonic() - self._began:6.1f} s  {bar} {lines[0] if lines else ''}\n"
            )

    def close(self) -> None:
        """Remove the dynamic part."""
        self._erase()

    def _erase(self) -> None:
        if self._drawn:
            self._write(f"\x1b[{self._drawn}F\x1b[J")
            self._drawn = 0

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

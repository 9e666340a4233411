"""The processor time that each process of this machine used between two moments (Linux only)."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_SERVERS = {"postgres": "postgresql", "redis-server": "redis", "beam.smp": "rabbitmq"}


@dataclass(frozen=True)
class Process:
    """One process: its name, its parent, and the processor time that it has used (seconds)."""

    name: str
    parent: int
    seconds: float


def snapshot() -> dict[int, Process]:
    """Return the processes of this machine; empty if there is no /proc."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            _, _, rest = (folder / "stat").read_text().partition("(")
            name, _, numbers = rest.rpartition(")")
            fields = numbers.split()
            found[int(folder.name)] = Process(
                name, int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICK
            )
    return found


def spent(
    before: Mapping[int, Process], after: Mapping[int, Process], known: Mapping[int, str]
) -> dict[str, float]:
    """Return the seconds by role: the known processes, their children, the servers, and the rest of
    the machine.
    """
    by_role: defaultdict[str, float] = defaultdict(float)
    for pid, process in after.items():
        seconds = process.seconds - (before[pid].seconds if pid in before else 0.0)
        by_role[_role(pid, process, known)] += seconds
    return by_role


def _role(pid: int, process: Process, known: Mapping[int, str]) -> str:
    if pid in known:
        return known[pid]
    if process.parent in known:
        return f"{known[process.parent]}'s children"
    return _SERVERS.get(process.name, "other processes of this machine")


def table(by_role: Mapping[str, float], number: int, wall: float) -> str:
    """Return lines with the microseconds of processor time per task, by role."""
    lines = [
        f"  {1e6 * seconds / number:8,.0f} us  {role}"
        for role, seconds in sorted(by_role.items(), key=lambda item: -item[1])
        if seconds
    ]
    cores = len(os.sched_getaffinity(0))
    total, others = sum(by_role.values()), by_role.get("other processes of this machine", 0.0)
    lines.append(
        f"  {1e6 * wall / number:8,.0f} us  elapsed time; the {cores} cores were"
        f" {total / wall / cores:.0%} busy"
    )
    if total > others:
        bound = cores * number / (total - others)
        lines.append(f"  therefore {cores} otherwise idle cores allow at most {bound:,.0f}/s")
    return "\n".join(lines)


def _column(role: str) -> str:
    return role.replace("'s", "").replace(" ", "_") + "_mb"


def memory(known: Mapping[int, str]) -> dict[str, float]:
    """Return the megabytes of memory by role, of the known processes and of their children. A page
    that several processes share counts for each in parts (PSS).
    """
    by_role: defaultdict[str, float] = defaultdict(float)
    for pid, process in snapshot().items():
        role = _role(pid, process, known)
        if pid in known or process.parent in known:
            with suppress(OSError, StopIteration):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                pss = next(line for line in lines if line.startswith("Pss:"))
                by_role[_column(role)] += int(pss.split()[1]) / 1e3
    return {role: round(size, 1) for role, size in sorted(by_role.items())}


def resident_mb() -> float:
    """Return the megabytes of memory that this process has in RAM (RSS); 0 if there is no /proc."""
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
    return 0.0


class Accounts:
    """The processor time used by the last measurement, from its first ended task to its last, and
    the memory of its processes at the end.
    """

    def __init__(self) -> None:
        self.text = ""
        self.memory: dict[str, float] = {}
        self._by_role: dict[str, float] = {}

    def ms(self, role: str) -> float:
        """Return the milliseconds of processor time per task that a role used."""
        return round(1e3 * self._by_role.get(role, 0.0), 2)

    @contextmanager
    def of(self, known: Mapping[int, str]) -> Iterator[Callable[[int], int]]:
        """Yield a function that is called with the number of ended tasks and returns it unchanged."""
        counts: list[int] = []
        seen: list[tuple[int, float, dict[int, Process]]] = []

        def look(number: int) -> int:
            if number and not seen:
                seen.append((number, time.monotonic(), snapshot()))
            counts.append(number)
            return number

        yield look
        self.memory = memory(known)
        first, began, before = seen[0]
        if counts[-1] > first:
            wall = time.monotonic() - began
            by_role, number = spent(before, snapshot(), known), counts[-1] - first
            self.text = table(by_role, number, wall)
            self._by_role = {role: seconds / number for role, seconds in by_role.items()}

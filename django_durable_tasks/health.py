"""A liveness probe without Django: ``python -m django_durable_tasks.health [scheduler|worker]``.

Each scheduler and worker writes its state to a file with every heartbeat, also while the database
is unavailable. The probe reads the files of this host, of the same user and working directory. Only
the standard library is imported, so that a probe costs the start of Python and nothing more.

The files decide nothing but the answer of the probe. ``manage.py durable health`` remains the
exact check: it reads what the nodes have written to the database.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

OK, UNHEALTHY, UNKNOWN = 0, 1, 2
KINDS = ("scheduler", "worker")
FOLDER_VARIABLE = "DURABLE_TASKS_HEALTH_DIR"
# The states of a process.
RUNNING, DRAINING, NO_DATABASE = "running", "draining", "without database"
# Seconds without a heartbeat after which a process counts as dead: three node timeouts. A
# connection to the database that does not answer may delay a heartbeat by that much.
MAX_AGE = 60.0
# Seconds without a poll after which a scheduler has stalled, as in cluster/status.py.
STALLED_AFTER = 60.0


class UnsafeFolder(OSError):
    """The folder of the health files belongs to another user, or others may write to it."""


def folder() -> Path:
    """Return the folder of the files of this user and working directory, which may not exist."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    project = Path.cwd()
    return _folder_of_user() / f"{project.name}-{zlib.crc32(os.fsencode(project)):08x}"


def _folder_of_user() -> Path:
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"durable-tasks-{os.getuid()}"  # noqa: S108


def _checked_folder() -> Path:
    """Return the folder. Raises UnsafeFolder if another user could have written its files: anyone
    may create a folder in the folder of temporary files.
    """
    path, of_user = folder(), _folder_of_user()
    if path.parent == of_user and of_user.is_dir():
        status = of_user.lstat()
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise UnsafeFolder(f"{of_user} can be written by another user: remove it.")
    return path


class HealthFile:
    """The file of this process. Times are seconds of the monotonic clock, which all processes of
    the host share and which no step of the host's time changes.
    """

    def __init__(self, kind: str, name: str, interval: float) -> None:
        self._path: Path | None = None
        self._values = {
            "kind": kind,
            "name": name,
            "pid": os.getpid(),
            "started": _start_of(os.getpid()),
            "max_age": max(MAX_AGE, 6 * interval),
        }

    def write(self, state: str, polled: float | None = None) -> None:
        """Write the state, atomically. ``polled``: the last poll of a scheduler. Raises OSError."""
        if self._path is None:
            _folder_of_user().mkdir(mode=0o700, parents=True, exist_ok=True)
            place = _checked_folder()
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path = place / f"{self._values['kind']}-{self._values['pid']}.json"
        values = {**self._values, "state": state, "at": time.monotonic(), "polled": polled}
        new = self._path.with_suffix(".tmp")
        new.write_text(json.dumps(values), encoding="utf-8")
        new.replace(self._path)

    def remove(self) -> None:
        """Remove the file; the process ends."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()


def _start_of(pid: int) -> str | None:
    """Return when the process started, which distinguishes it from a later one with the same id;
    None if the system does not provide it.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[19]


def _read(kind: str | None) -> list[dict[str, Any]]:
    """Return the contents of the files of the processes that are alive. Raises OSError."""
    path = _checked_folder()
    processes = []
    for file in sorted(path.glob(f"{kind or '*'}-*.json")) if path.is_dir() else ():
        with suppress(FileNotFoundError, ProcessLookupError):  # its process has ended
            values = json.loads(file.read_text(encoding="utf-8"))
            try:
                os.kill(values["pid"], 0)
            except PermissionError:  # it is alive, and another user's
                processes.append(values)
            else:
                if values["started"] in (None, _start_of(values["pid"])):
                    processes.append(values)
    return processes


def fault_of(values: Mapping[str, Any], now: float, max_age: float | None = None) -> str | None:
    """Return why the process should be restarted, or None."""
    age, limit = now - values["at"], max_age or values["max_age"]
    if age > limit:
        return f"has written no heartbeat for {age:.0f} s (at most {limit:g} s are allowed)"
    polled = values["polled"]
    if values["state"] == RUNNING and polled is not None and now - polled > STALLED_AFTER:
        return f"has not polled for due tasks for {now - polled:.0f} s"
    return None


def check(kind: str | None = None, max_age: float | None = None) -> tuple[int, str]:
    """Return the exit code of the probe, and its sentence."""
    try:
        processes = _read(kind)
    except (OSError, ValueError) as error:
        return UNKNOWN, f"The health files cannot be read: {error}"
    if not processes:
        return UNHEALTHY, (
            f"No {kind or 'scheduler or worker'} has written a heartbeat to {folder()}."
        )
    now = time.monotonic()
    for values in processes:
        fault = fault_of(values, now, max_age)
        if fault is not None:
            return UNHEALTHY, f"The {values['kind']} {values['name']} {fault}."
    stated = ", ".join(
        f"{values['kind']} {values['name']}: {values['state']},"
        f" last heartbeat {now - values['at']:.1f} s ago"
        for values in processes
    )
    return OK, f"{stated}."


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise ValueError
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one sentence and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m django_durable_tasks.health",
        description="Say whether the schedulers and workers of this host send heartbeats.",
        epilog="exit codes: 0 healthy, 1 a process must be restarted or none runs, 2 wrong usage"
        " or unreadable files",
    )
    parser.add_argument("kind", nargs="?", choices=KINDS, help="only processes of this kind")
    parser.add_argument(
        "--max-age",
        type=_seconds,
        metavar="S",
        help="the longest time without a heartbeat, in seconds (default: 60, or 6 NODE_HEARTBEAT)",
    )
    options = parser.parse_args(arguments)
    code, sentence = check(options.kind, options.max_age)
    sys.stdout.write(f"{sentence}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())

"""Finds the servers of a run: from the environment, at their default address, or started from
installed programs.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.addresses import problem_at
from tests.backends import DEFAULTS, variable_of
from tests.starting import (
    CannotStart,
    find_pgbouncer,
    start_mariadb,
    start_postgresql,
    start_postgresql_wheel,
    start_rabbitmq,
    start_redis,
    start_valkey_wheel,
)

PROGRAMS = {"promtool": "apt-get install prometheus"}
"""Programs without which tests are skipped, and how to install them."""
STARTERS: dict[str, Callable[[Path, ExitStack], str]] = {
    "postgresql": start_postgresql,
    "mariadb": start_mariadb,
    "redis": start_redis,
    "rabbitmq": start_rabbitmq,
    "postgresql-wheel": start_postgresql_wheel,
    "valkey-wheel": start_valkey_wheel,
}


def missing_programs() -> list[str]:
    """Return the programs that are not installed, with their remedy."""
    return [f"{name} ({how})" for name, how in PROGRAMS.items() if shutil.which(name) is None]


@dataclass(frozen=True, slots=True)
class Server:
    """One server of a run. Without `url` it is missing, and `origin` is the reason."""

    name: str
    url: str | None
    origin: str


@contextmanager
def servers(names: Iterable[str]) -> Iterator[dict[str, Server]]:
    """Find or start each named server, and stop the started ones at the end."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="durable-servers-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        yield {name: find(name, folder, stack) for name in names}


def find(name: str, folder: Path, stack: ExitStack) -> Server:
    """Find one server, or start it. An address from the environment is used or refused, never
    replaced.
    """
    if name == "pgbouncer":
        # Its run starts it, so that it can stop it before its database is dropped.
        if (program := find_pgbouncer()) is None:
            return Server(name, None, "it is not installed")
        return Server(name, str(program), f"installed: {program}")
    configured = os.environ.get(variable_of(name))
    if configured:
        problem = problem_at(name, configured)
        return Server(
            name, None if problem else configured, problem or f"given by {variable_of(name)}"
        )
    problem = problem_at(name, DEFAULTS[name]) if name in DEFAULTS else "it comes from a wheel"
    if problem is None:
        return Server(name, DEFAULTS[name], "listening here")
    try:
        url = STARTERS[name](folder, stack)
    except CannotStart as reason:
        return Server(name, None, f"{problem}; {reason}")
    return Server(name, url, "started for this run")

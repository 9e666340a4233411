"""Finds the servers of a run: from the environment, at their default address, or started from
installed programs.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.addresses import DEFAULTS, problem_at
from tests.environments import OTHERS, Environment, interpreter
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

PGBOUNCER = "pgbouncer"
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

    @property
    def variable(self) -> str:
        """Return the environment variable with the address for the tests."""
        return variable_of(self.name)


def variable_of(name: str) -> str:
    """Return the environment variable that overrides the address of a server."""
    return f"TEST_{name.upper().replace('-', '_')}_URL"


@contextmanager
def servers(names: list[str]) -> Iterator[dict[str, Server]]:
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
    if name in OTHERS:
        return _interpreter(OTHERS[name])
    if name == PGBOUNCER:
        return _pgbouncer()
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


def _pgbouncer() -> Server:
    """Find PgBouncer. Its run starts one itself, so that it can stop it before its database is
    dropped.
    """
    found = find_pgbouncer()
    if found is None:
        return Server(PGBOUNCER, None, "it is not installed")
    return Server(PGBOUNCER, str(found), f"installed: {found}")


def _interpreter(environment: Environment) -> Server:
    """Find the interpreter of an environment, which a run may need like a server and which may be
    missing.
    """
    found = interpreter(environment)
    if found is None:
        return Server(environment.name, None, "no Python newer than this one is installed")
    return Server(environment.name, str(found[0]), f"Python {found[1]}")

"""Private servers, which a fault may kill, freeze, restart and starve."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql
import redis
from psycopg.rows import dict_row

from tests.addresses import problem_at
from tests.starting import _program, start_mariadb, start_postgresql, start_rabbitmq, start_redis
from tests.waiting import until

PATIENCE = 60


class Server:
    """A private server: its address, and its first process."""

    def __init__(
        self, name: str, url: str, pid: int, stack: ExitStack, argv: list[str] | None = None
    ) -> None:
        self.name, self.url, self.pid = name, url, pid
        place = Path(f"/proc/{pid}")
        self._argv = argv or [
            word.decode() for word in (place / "cmdline").read_bytes().split(b"\0") if word
        ]
        self._owner, self._folder = place.stat(), (place / "cwd").resolve()
        stack.callback(self.end)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its first process."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def stop(self, number: signal.Signals) -> None:
        """Send it this signal, and wait until it has ended."""
        self.send(number)
        until(lambda: not _lives(self.pid), within=PATIENCE, message=f"{self.name} is gone")

    def start(self) -> None:
        """Start it again with the same configuration, and wait until it answers."""
        with (self._folder / "again.log").open("ab") as log:
            process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                user=self._owner.st_uid,
                group=self._owner.st_gid,
                start_new_session=True,
            )
        self.pid = process.pid
        until(self.answers, within=PATIENCE, message=f"{self.name} answers again")

    def answers(self) -> bool:
        """Return whether it can be used."""
        return problem_at(self.name, self.url) is None

    def end(self) -> None:
        """Continue it if it is frozen, and end it."""
        self.send(signal.SIGCONT)
        self.stop(
            {"redis": signal.SIGKILL, "mariadb": signal.SIGTERM}.get(self.name, signal.SIGINT)
        )


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def translated(folder: Path, language: str) -> bool:
    """Make a locale for the messages of a server that is started from now on, and return whether
    that is possible here.
    """
    tool = shutil.which("localedef")
    if not tool:
        return False
    place = folder / "locale"
    place.mkdir(exist_ok=True)
    place.chmod(0o755)
    locale = place / f"{language}.UTF-8"
    subprocess.run(
        [tool, "-c", "-i", language, "-f", "UTF-8", str(locale)],
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    os.environ["LOCPATH"] = str(place)
    return locale.exists()


def mariadb(folder: Path, stack: ExitStack) -> Server:
    """Start MariaDB, durable as in production."""
    url = start_mariadb(folder, stack)
    return Server("mariadb", url, _pid_in(_home(folder, "mariadb") / "pid"), stack)


def postgresql(folder: Path, stack: ExitStack) -> Server:
    """Start PostgreSQL, durable as in production."""
    url = start_postgresql(folder, stack)
    pid = _pid_in(_home(folder, "postgresql") / "data" / "postmaster.pid")
    return Server("postgresql", url, pid, stack)


def _home(folder: Path, name: str) -> Path:
    """Return the folder of the only server of this name, which has a random ending."""
    (home,) = folder.glob(f"{name}-*")
    return home


def _pid_in(file: Path) -> int:
    """Return the number in the first line of this file, which MariaDB writes after its first
    connection.
    """
    lines = until(
        lambda: file.read_text().splitlines() if file.exists() else [],
        within=PATIENCE,
        message=str(file),
    )
    return int(lines[0])


def redis_server(folder: Path, stack: ExitStack) -> Server:
    """Start Redis. It overwrites its own command line, which is therefore reconstructed."""
    url = start_redis(folder, stack)
    with redis.Redis.from_url(url) as client:
        info: Any = client.info("server")
    kept = [
        "--save",
        "",
        "--appendonly",
        "no",
        "--bind",
        "127.0.0.1",
        "--dir",
        str(_home(folder, "redis")),
    ]
    argv = [info["executable"], "--port", str(info["tcp_port"]), *kept]
    return Server("redis", url, int(info["process_id"]), stack, argv)


def pooled_transactions(url: str) -> int:
    """Return how many transactions PgBouncer at this address has executed, from its statistics."""
    place = urlsplit(url)._replace(path="/pgbouncer").geturl()
    with psycopg.connect(place, autocommit=True, row_factory=dict_row) as session:
        return sum(int(row["total_xact_count"]) for row in session.execute("SHOW STATS"))


class RabbitMQ:
    """A private RabbitMQ and its command-line tool."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.url = start_rabbitmq(folder, stack)
        mark = f"RABBITMQ_MNESIA_BASE={_home(folder, 'rabbitmq') / 'data'}".encode()
        place = next(
            place for place in _processes() if mark in _read(place / "environ") and _is_beam(place)
        )
        words = (
            word.decode().partition("=") for word in _read(place / "environ").split(b"\0") if word
        )
        self._environment = {name: value for name, _, value in words}
        self._tool = str(_program("rabbitmq", "rabbitmqctl"))

    def run_tool(self, *words: str) -> str:
        """Run its command-line tool."""
        answer = subprocess.run(
            [self._tool, "--quiet", *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        return answer.stdout


def _processes() -> Iterator[Path]:
    return (place for place in Path("/proc").iterdir() if place.name.isdigit())


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _is_beam(place: Path) -> bool:
    return b"beam" in _read(place / "cmdline").split(b"\0")[0]


@contextmanager
def administrator(url: str) -> Iterator[Any]:
    """Return a session with all rights, independent of the settings of other sessions."""
    options = (
        "-c default_transaction_read_only=off -c default_transaction_isolation=read\\ committed"
    )
    with psycopg.connect(
        url,
        autocommit=True,
        connect_timeout=5,
        options=options,
        application_name="chaos-administrator",
    ) as session:
        yield session


def mariadb_session(url: str) -> Any:
    """Return a session of MariaDB's administrator, in autocommit."""
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=parts.username or "root",
        password=parts.password or "",
        autocommit=True,
        connect_timeout=5,
    )

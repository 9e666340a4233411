"""The settings of Django and Celery for each database and broker of the test matrix.

Each process of a test imports this module: it imports no client of a server that is not used.
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

DEFAULTS = {
    "postgresql": "postgresql://postgres@127.0.0.1:5432/postgres",
    "mariadb": "mysql://root@127.0.0.1:3306/",
    "redis": "redis://127.0.0.1:6379",
    "rabbitmq": "amqp://guest:guest@127.0.0.1:5672//",
}
REDIS_DATABASE = 11
POOLED_ADDRESS = "TEST_POOLED_ADDRESS"
"""The environment variable with the pooler's address for the processes of a run that uses one."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def variable_of(name: str) -> str:
    """Return the environment variable that overrides the address of a server."""
    return f"TEST_{name.upper().replace('-', '_')}_URL"


def address(name: str) -> str:
    """Return the address of a server, from its environment variable or the default."""
    return os.environ.get(variable_of(name)) or DEFAULTS[name]


def database_settings(vendor: str, name: str, folder: Path) -> dict[str, Any]:
    """Return an entry of DATABASES whose real and test names are equal, so that other processes
    share it.
    """
    if vendor == "sqlite":
        return _sqlite(folder / f"{name}.sqlite3")
    parts = urlsplit(address(vendor))
    entry: dict[str, Any] = {
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname,
        "PORT": parts.port,
        "TEST": {"NAME": name},
    }
    return entry | (
        _mariadb(here=parts.hostname in LOOPBACK) if vendor == "mariadb" else _postgresql()
    )


def broker_settings(broker: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the broker's address and its transport options."""
    if broker == "filesystem":
        return "durable-filesystem://", {"data_folder": str(folder / "messages")}
    if broker == "database":
        return "durable-database://default", {"lease": 6}
    if broker == "memory":
        return "memory://", {"polling_interval": 0.01}
    if broker == "redis" and not urlsplit(address("redis")).path.strip("/"):
        return f"{address('redis').rstrip('/')}/{REDIS_DATABASE}", {}
    return address(broker), {}


def _postgresql() -> dict[str, Any]:
    entry: dict[str, Any] = {"ENGINE": "django.db.backends.postgresql"}
    pooler = os.environ.get(POOLED_ADDRESS)
    return entry | behind_pooler(pooler) if pooler else entry


def behind_pooler(url: str) -> dict[str, Any]:
    """Return the values of an entry of DATABASES for the transaction pooler of this address."""
    parts = urlsplit(url)
    return {"HOST": parts.hostname, "PORT": parts.port, "DISABLE_SERVER_SIDE_CURSORS": True}


def _mariadb(*, here: bool) -> dict[str, Any]:
    """Use PyMySQL instead of mysqlclient, which is compiled on installation. Django checks its
    version.

    ``here``: the server is on this machine. PyMySQL reads all certificates for each connection
    before it checks whether TLS is used.
    """
    import pymysql

    pymysql.version_info = (2, 2, 7, "final", 0)
    pymysql.install_as_MySQLdb()
    return {
        "ENGINE": "django.db.backends.mysql",
        "OPTIONS": {
            "isolation_level": "read committed",
            "charset": "utf8mb4",
            "ssl_disabled": here,
        },
    }


def _sqlite(path: Path) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL",
        },
        "TEST": {"NAME": str(path)},
    }

"""Converts a database URL from an environment variable to an entry of Django's DATABASES."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_ENGINES = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}


def database(url: str, folder: Path) -> dict[str, Any]:
    """Parse `postgresql://user:password@host:port/name`, `mysql://…`, `sqlite:///path`; empty:
    SQLite in `folder`.
    """
    parts = urlsplit(url)
    if parts.scheme in ("", "sqlite"):
        return _sqlite(Path(parts.path) if parts.path else folder / "billing.sqlite3")
    entry = {
        "ENGINE": f"django.db.backends.{_ENGINES[parts.scheme]}",
        "NAME": parts.path.strip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": parts.port or "",
    }
    if entry["ENGINE"].endswith("mysql"):
        _allow_pymysql()
        entry["OPTIONS"] = {"isolation_level": "read committed", "charset": "utf8mb4"}
    return entry


def _sqlite(path: Path) -> dict[str, Any]:
    # SQLite has one writer at a time: take the lock at BEGIN and wait for it, and lose no commit on
    # a power failure.
    pragmas = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL"
    options = {"timeout": 20, "transaction_mode": "IMMEDIATE", "init_command": pragmas}
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "OPTIONS": options}


def _allow_pymysql() -> None:
    """Use PyMySQL if mysqlclient is not installed; Django checks the version of mysqlclient."""
    if find_spec("MySQLdb") is None:
        pymysql: Any = import_module("pymysql")
        pymysql.version_info = (2, 2, 7, "final", 0)
        pymysql.install_as_MySQLdb()

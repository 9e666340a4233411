"""Checks whether the servers at addresses can be used."""

from collections.abc import Callable
from urllib.parse import urlsplit

import pymysql
import redis
from django.db.utils import load_backend
from kombu import Connection

# Seconds that a server has to answer.
SECONDS = 3


def problem_at(name: str, url: str) -> str | None:
    """Return why the server at `url` cannot be used, or None if it can."""
    try:
        problem = ASKERS[name](url)
    except Exception as error:  # noqa: BLE001
        line = str(error).strip().splitlines()
        return f"no use of {hidden(url)}: {line[0] if line else type(error).__name__}"
    return problem and f"no use of {hidden(url)}: {problem}"


def hidden(url: str) -> str:
    """Return an address without its password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port}"


def _ask_postgresql(url: str) -> str | None:
    driver = load_backend("django.db.backends.postgresql").Database
    connection = driver.connect(url, connect_timeout=SECONDS)
    version = connection.info.server_version
    connection.close()
    return (
        None
        if version >= 140000
        else f"PostgreSQL 14 or newer is needed, this is {version // 10000}"
    )


def _ask_mariadb(url: str) -> str | None:
    parts = urlsplit(url)
    connection = pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=parts.username or "root",
        password=parts.password or "",
        connect_timeout=SECONDS,
        read_timeout=SECONDS,
    )
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT VERSION()")
            version = str((cursor.fetchone() or [""])[0])
    finally:
        connection.close()
    number = tuple(
        int(part) for part in version.removeprefix("5.5.5-").split("-")[0].split(".")[:2]
    )
    needed = (10, 6) if "mariadb" in version.lower() else (8, 0)
    return None if number >= needed else f"MariaDB 10.6 or MySQL 8 is needed, this is {version}"


def _ask_redis(url: str) -> str | None:
    client = redis.Redis.from_url(url, socket_connect_timeout=SECONDS, socket_timeout=SECONDS)
    try:
        client.ping()
    finally:
        client.close()
    return None


def _ask_rabbitmq(url: str) -> str | None:
    with Connection(url, connect_timeout=SECONDS) as connection:
        connection.connect()
    return None


ASKERS: dict[str, Callable[[str], str | None]] = {
    "postgresql": _ask_postgresql,
    "mariadb": _ask_mariadb,
    "redis": _ask_redis,
    "rabbitmq": _ask_rabbitmq,
}

"""`python -m tests.chaos.run_plan PLAN ANSWER`: runs one plan, and writes the result as JSON to the
file ANSWER.

A separate process, because Django and Celery have one database and one broker per process.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import warnings
from contextlib import ExitStack, closing
from pathlib import Path

import django
import psycopg

from tests.addresses import problem_at
from tests.backends import address, variable_of
from tests.chaos.configuration import VARIABLE
from tests.chaos.plan import WITHOUT_SERVER, Plan
from tests.chaos.servers import (
    RabbitMQ,
    Server,
    mariadb,
    mariadb_session,
    postgresql,
    redis_server,
    translated,
)
from tests.processes.proxy import Proxy, proxy_to
from tests.starting import start_pgbouncer

ROLES = ("scheduler", "worker", "web")
INDEX = "CHAOS_INDEX"
POOL = 20
"""The server connections of PgBouncer, fewer than the connections of the processes."""


def main(text: str, answer: str) -> int:
    """Start the servers, run the plan, and write the result."""
    warnings.simplefilter("ignore", ResourceWarning)
    plan = Plan.of(text)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="durable-chaos-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        database = _database(plan, folder, stack) if plan.private else None
        broker = _broker(plan, folder, stack) if plan.private else None
        if database is not None:
            os.environ[variable_of(plan.database)] = database.url
        _settle(plan, folder, stack)
        if broker is not None:
            os.environ[variable_of(plan.broker)] = broker.url
        if index := _index(plan, folder, stack):
            os.environ[INDEX] = index
        pooler = (
            start_pgbouncer(folder, stack, address("postgresql"), POOL) if plan.pooled else None
        )
        proxies = _proxies(plan, pooler, stack)
        django.setup()
        from tests.chaos.play import play
        from tests.chaos.stage import Stage

        found = play(Stage(plan, folder, database, broker, proxies, pooler))
    Path(answer).write_text(json.dumps(found))
    return 0


def _database(plan: Plan, folder: Path, stack: ExitStack) -> Server | None:
    if plan.database == "mariadb":
        return mariadb(folder, stack)
    if plan.database == "sqlite":
        return None
    language = plan.configuration.language if plan.configuration else ""
    if language and not translated(folder, language):
        sys.stderr.write(f"SKIPPED: the locale {language} cannot be made here.\n")
    return postgresql(folder, stack)


def _broker(plan: Plan, folder: Path, stack: ExitStack) -> Server | RabbitMQ | None:
    if plan.broker in WITHOUT_SERVER:
        return None
    return redis_server(folder, stack) if plan.broker == "redis" else RabbitMQ(folder, stack)


def _index(plan: Plan, folder: Path, stack: ExitStack) -> str | None:
    """Return the address of the Redis for the due index: the broker, else a private Redis, else the
    Redis of the tests. None if there is none.
    """
    if plan.configuration is not None and plan.broker != "redis":
        return None
    if plan.broker != "redis" and plan.private:
        os.environ[variable_of("redis")] = redis_server(folder, stack).url
    return address("redis") if problem_at("redis", address("redis")) is None else None


def _settle(plan: Plan, folder: Path, stack: ExitStack) -> None:
    """Configure the databases and queues of this run for this process and its children, and create
    the database.
    """
    run = f"chaos-{os.getpid()}"
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
        "TEST_DATABASE": plan.database,
        "TEST_BROKER": plan.broker,
        "TEST_RUN": run,
        "TEST_FOLDER": str(folder),
        "TEST_DURABLE_TASKS": json.dumps(plan.settings),
        "CHAOS_ROLE": "stage",
    }
    if plan.configuration is not None:
        os.environ[VARIABLE] = plan.configuration.as_text()
    if plan.database != "sqlite":
        _create(plan, f"test_durable_{run}", stack)


def _create(plan: Plan, name: str, stack: ExitStack) -> None:
    """Create the database of this run, with the drawn values of its sessions."""
    quote, more = ("`", "") if plan.database == "mariadb" else ('"', " WITH (FORCE)")
    _execute(plan, f"CREATE DATABASE {quote}{name}{quote}")
    stack.callback(_execute, plan, f"DROP DATABASE {quote}{name}{quote}{more}")
    if plan.database != "postgresql" or plan.configuration is None:
        return
    if seconds := plan.configuration.idle_timeout:
        _execute(plan, f"ALTER DATABASE \"{name}\" SET idle_session_timeout = '{seconds:g}s'")
    if (language := plan.configuration.language) and "LOCPATH" in os.environ:
        _execute(plan, f"ALTER DATABASE \"{name}\" SET lc_messages = '{language}.UTF-8'")


def _execute(plan: Plan, sql: str) -> None:
    url = address(plan.database)
    if plan.database == "postgresql":
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(sql)
        return
    with closing(mariadb_session(url)) as client, client.cursor() as cursor:
        cursor.execute(sql)


def _proxies(plan: Plan, pooler: str | None, stack: ExitStack) -> dict[str, Proxy]:
    """Start the proxies between the processes and the servers. Files need none."""
    servers = dict[str, str]()
    if plan.database != "sqlite":
        servers["database"] = pooler or address(plan.database)
    if plan.broker not in WITHOUT_SERVER:
        servers |= {"broker": address(plan.broker), "second broker": address(plan.broker)}
    return {
        f"{role} {kind}": stack.enter_context(proxy_to(address))
        for role in ROLES
        for kind, address in servers.items()
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

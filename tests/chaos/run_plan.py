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
from contextlib import ExitStack
from pathlib import Path

import django
import psycopg

from tests.addresses import problem_at
from tests.backends import address
from tests.chaos.plan import SETTINGS, Plan
from tests.chaos.servers import RabbitMQ, Server, postgresql, redis_server
from tests.processes.proxy import Proxy, proxy_to
from tests.servers import variable_of
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
        postgres = postgresql(folder, stack) if plan.private else None
        broker = _broker(plan, folder, stack) if plan.private else None
        _settle(plan, folder, postgres.url if postgres else address("postgresql"), stack)
        if broker is not None:
            os.environ[variable_of(plan.broker)] = broker.url
        if index := _index(plan, folder, stack):
            os.environ[INDEX] = index
        database = address("postgresql")
        pooler = start_pgbouncer(folder, stack, database, POOL) if plan.pooled else None
        proxies = _proxies(pooler or database, address(plan.broker), stack)
        django.setup()
        from tests.chaos.play import play
        from tests.chaos.stage import Stage

        found = play(Stage(plan, folder, postgres, broker, proxies, pooler))
    Path(answer).write_text(json.dumps(found))
    return 0


def _broker(plan: Plan, folder: Path, stack: ExitStack) -> Server | RabbitMQ:
    return redis_server(folder, stack) if plan.broker == "redis" else RabbitMQ(folder, stack)


def _index(plan: Plan, folder: Path, stack: ExitStack) -> str | None:
    """Return the address of the Redis for the due index: the broker, else a private Redis, else the
    Redis of the tests. None if there is none.
    """
    if plan.broker != "redis" and plan.private:
        os.environ[variable_of("redis")] = redis_server(folder, stack).url
    return address("redis") if problem_at("redis", address("redis")) is None else None


def _settle(plan: Plan, folder: Path, postgres: str, stack: ExitStack) -> None:
    """Configure the databases and queues of this run for this process and its children, and create
    the database.
    """
    run = f"chaos-{os.getpid()}"
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
        "TEST_DATABASE": "postgresql",
        "TEST_BROKER": plan.broker,
        "TEST_RUN": run,
        "TEST_FOLDER": str(folder),
        "TEST_DURABLE_TASKS": json.dumps(SETTINGS),
        "CHAOS_ROLE": "stage",
        variable_of("postgresql"): postgres,
    }
    with psycopg.connect(postgres, autocommit=True) as session:
        session.execute(f'CREATE DATABASE "test_durable_{run}"')
    stack.callback(_drop, postgres, f"test_durable_{run}")


def _drop(postgres: str, name: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as session:
        session.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _proxies(postgres: str, broker: str, stack: ExitStack) -> dict[str, Proxy]:
    servers = {"postgresql": postgres, "broker": broker, "second broker": broker}
    return {
        f"{role} {kind}": stack.enter_context(proxy_to(address))
        for role in ROLES
        for kind, address in servers.items()
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

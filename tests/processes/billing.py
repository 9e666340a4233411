"""Runs the example with its own database and queues, on any database and broker: its rolling restart,
and the platform with its customers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.db import connection
from kombu import Connection

from tests.backends import address, broker_settings
from tests.runs import ROOT

CUSTOMERS = ("acme", "globex", "initech")
OWN_VARIABLES = frozenset(
    {"DURABLE_TASKS", "BILLING_ENTERED", "BILLING_FOLDER", "BILLING_CADENCE", "CUSTOMERS_PORT"}
)
_ENDING = 100


@contextmanager
def own_database(vendor: str) -> Iterator[str]:
    """Return the address of an empty database that is dropped at the end, or none for SQLite, which
    uses a file in its folder.
    """
    if vendor == "sqlite":
        yield ""
        return
    name = f"{settings.DATABASES['default']['NAME']}_billing"
    quoted, force = (
        connection.ops.quote_name(name),
        " WITH (FORCE)" if vendor == "postgresql" else "",
    )
    _tell(f"DROP DATABASE IF EXISTS {quoted}", f"CREATE DATABASE {quoted}")
    try:
        yield urlsplit(address(vendor))._replace(path=f"/{name}").geturl()
    finally:
        _tell(f"DROP DATABASE IF EXISTS {quoted}{force}")


def _tell(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@contextmanager
def own_queues(broker: str) -> Iterator[dict[str, str]]:
    """Configure the example to use its own queues, which are deleted at the end."""
    if broker == "filesystem":
        yield {"BROKER_URL": ""}
        return
    url, prefix = broker_settings(broker, Path())[0], f"durable-billing-{os.environ['TEST_RUN']}-"
    try:
        yield {"BROKER_URL": url, "QUEUE_PREFIX": prefix}
    finally:
        with Connection(url) as away, away.channel() as channel:
            for queue in ("billing", "reports", *(f"customer.{slug}" for slug in CUSTOMERS)):
                channel.queue_delete(f"{prefix}{queue}")


def rolling_restart(
    folder: Path, vendor: str, broker: str, options: Sequence[str], within: float
) -> dict[str, Any]:
    """Run it and return its figures. Raises AssertionError with its output if it prints none within
    `within` seconds.
    """
    log = folder / "rolling.log"
    with own_database(vendor) as database, own_queues(broker) as queues, log.open("wb") as said:
        environment = {
            name: value for name, value in os.environ.items() if name not in OWN_VARIABLES
        }
        process = subprocess.Popen(
            [
                sys.executable,
                ROOT / "example_project" / "manage.py",
                "rolling_restart",
                *options,
                "--folder",
                folder / "billing",
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,
            env={
                **environment,
                "DJANGO_SETTINGS_MODULE": "config.settings",
                "DATABASE_URL": database,
                **queues,
            },
        )
        try:
            output, _ = process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=_ENDING)
    assert output.strip(), f"it gave no figures:\n{log.read_text(errors='replace')[-4000:]}"
    found: dict[str, Any] = json.loads(output)
    return found

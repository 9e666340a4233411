"""Notifications through PostgreSQL's LISTEN and NOTIFY, on a dedicated direct connection."""

from __future__ import annotations

import copy
import select
from collections.abc import Sequence
from typing import Any

from django.db import connections
from django.db.utils import load_backend

from django_durable_tasks import conf
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.notifier.message import CHANNEL, Notification
from django_durable_tasks.notifier.notify_on_commit import send_by_postgresql

_TIMEOUTS = {
    "connect_timeout": 3,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
}


class PostgreSQLTransport:
    """Listens on LISTEN_DATABASE if it is set, otherwise on the database of the tasks. Self-tests
    are sent like any other notification.
    """

    name = "PostgreSQL"
    failure_cause = "a notification to itself did not come, as behind a transaction pooler"

    def __init__(self) -> None:
        self._driver: Any = None

    def open(self) -> None:
        """Connect and execute LISTEN."""
        settings = conf.settings()
        alias = settings.LISTEN_DATABASE or settings.DATABASE
        parameters = copy.deepcopy(connections.settings[alias])
        parameters["OPTIONS"] = {**_TIMEOUTS, **(parameters.get("OPTIONS") or {})}
        parameters["OPTIONS"].pop("pool", None)
        wrapper: Any = load_backend(parameters["ENGINE"]).DatabaseWrapper(parameters, alias)
        self._driver = wrapper.Database.connect(**wrapper.get_connection_params())
        self._driver.autocommit = True
        self._driver.cursor().execute(f"LISTEN {CHANNEL}")

    def wait(self, seconds: float) -> Sequence[str]:
        """Return the notifications that arrived."""
        if callable(self._driver.notifies):
            received = self._driver.notifies(timeout=seconds, stop_after=1)
        else:  # of psycopg 2: a list, which poll() fills
            select.select([self._driver], [], [], seconds)
            self._driver.poll()
            received, self._driver.notifies[:] = self._driver.notifies[:], []
        return [notification.payload for notification in received]

    def send(self, notification: Notification) -> bool:
        """Notify through a dedicated connection to the database of the tasks."""
        with dedicated_connection():
            return send_by_postgresql(notification)

    def doubtful(self) -> bool:
        """Return False: ``wait`` raises if the connection is broken."""
        return False

    def close(self) -> None:
        """Close the connection."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

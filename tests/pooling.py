"""A run through PgBouncer in transaction mode: this process and its children reach PostgreSQL only
through it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from django.db import connections

from django_durable_tasks.store.connections import close_all
from tests.backends import POOLED_ADDRESS, behind_pooler
from tests.starting import start_pgbouncer

POOLED = "TEST_POOLED"
SLOTS = 4
"""Fewer than the connections of one worker with two children."""


def wanted() -> bool:
    """Return whether this run goes through PgBouncer."""
    return bool(os.environ.get(POOLED))


@contextmanager
def started(upstream: str, slots: int) -> Iterator[str]:
    """Run a PgBouncer in front of this PostgreSQL, with this number of connections per database,
    and return its address.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="durable-pgbouncer-")))
        yield start_pgbouncer(folder, stack, upstream, slots)


@contextmanager
def through_pgbouncer(upstream: str) -> Iterator[None]:
    """Open every connection inside the block through a PgBouncer that ends with the block."""
    entry = connections.settings["default"]
    before = dict(entry)
    with started(upstream, SLOTS) as url:
        os.environ[POOLED_ADDRESS] = url
        entry |= behind_pooler(url)
        _hang_up()
        try:
            yield
        finally:
            _hang_up()
            del os.environ[POOLED_ADDRESS]
            entry.update({name: before.get(name, False) for name in behind_pooler(url)})


def _hang_up() -> None:
    close_all()
    connections["default"].close()

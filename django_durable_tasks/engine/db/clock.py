"""The database's clock, or the host's clock on SQLite.

A scheduler reads it once per tick and passes the time on as ``now``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import ExpressionWrapper

from django_durable_tasks import conf
from django_durable_tasks.engine.db.statements import statement
from django_durable_tasks.host_clock import host_now
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.instants import InstantField, instant


def database_now() -> datetime:
    """Return the current time of the database, aware and in UTC."""
    sql = statement("now")
    if sql is None:
        return host_now()
    with connections[conf.settings().DATABASE].cursor() as cursor:
        cursor.execute(sql)
        return aware(instant(cursor.fetchone()[0], cursor.db))


def aware(time: datetime) -> datetime:
    """Return a time of the database in UTC. MariaDB returns naive times, which are in UTC."""
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


def after(seconds: float) -> Any:
    """Return the expression for the time of the database plus ``seconds``."""
    return ExpressionWrapper(DatabaseNow() + timedelta(seconds=seconds), InstantField())

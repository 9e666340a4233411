"""A column of instants: read and written in UTC, whatever USE_TZ is.

With ``USE_TZ = False`` Django reads and writes wall times of TIME_ZONE without a zone. Such a time
names two instants during the hour in which clocks are set back. The models of this package use
this field, so that a project can have either setting. Django gives a Value of a time, and a sum of
an instant and a duration, its own DateTimeField: write ``constant(value)``, and wrap the sum in an
ExpressionWrapper with this field.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import models

# The plugin of mypy derives the types of columns from Django's own field classes.
if TYPE_CHECKING:
    InstantField = models.DateTimeField
else:

    class InstantField(models.DateTimeField):
        """A DateTimeField whose values are aware and in UTC."""

        def get_prep_value(self, value: Any) -> Any:
            if settings.USE_TZ:
                return super().get_prep_value(value)
            found = self.to_python(value)
            return _of_project(found) if isinstance(found, datetime) else found

        def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
            value = value if prepared else self.get_prep_value(value)
            # The driver of PostgreSQL sends the zone. The other databases store UTC without it, and
            # Django refuses an aware time for them.
            if (
                not settings.USE_TZ
                and connection.vendor != "postgresql"
                and isinstance(value, datetime)
            ):
                value = _of_project(value).replace(tzinfo=None)
            return super().get_db_prep_value(value, connection, prepared=True)

        def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
            return value if value is None else instant(value, connection)


def constant(value: Any) -> Any:
    """Return an instant as an expression of a statement, for Case and functions; expressions are
    returned as they are.
    """
    return models.Value(value, InstantField()) if isinstance(value, datetime) else value


def instant(value: datetime, connection: Any) -> datetime:
    """Return a time that a statement of this connection returned, aware and in UTC."""
    if value.tzinfo is not None:
        return value
    if connection.vendor == "postgresql":
        # Without USE_TZ Django removes the zone of the session, and keeps ``fold``.
        return _of_project(value)
    return value.replace(tzinfo=UTC)


def _of_project(value: datetime) -> datetime:
    """Return a time in UTC; one without a zone is a wall time of TIME_ZONE."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=ZoneInfo(settings.TIME_ZONE))
    return value.astimezone(UTC)

"""The database router for projects whose DURABLE_TASKS['DATABASE'] is not ``default``."""

from __future__ import annotations

from typing import Any

from django_durable_tasks import conf

_APP = "django_durable_tasks"


class DurableTasksRouter:
    """Send this application's models to DURABLE_TASKS['DATABASE'], and create their tables nowhere
    else.

    It answers None for all other applications, so that other routers or Django's default decide
    about them.
    """

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        """Return the alias that our models are read from."""
        return conf.settings().DATABASE if model._meta.app_label == _APP else None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        """Return the alias that our models are written to."""
        return self.db_for_read(model)

    def allow_relation(self, obj1: Any, obj2: Any, **hints: Any) -> bool | None:
        """Allow relations between our models, also if one of the two objects was read from a
        replica.
        """
        return True if obj1._meta.app_label == obj2._meta.app_label == _APP else None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        """Let ``migrate`` create our tables in our database only."""
        return db == conf.settings().DATABASE if app_label == _APP else None

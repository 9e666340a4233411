"""The database router for projects whose DURABLE_TASKS['DATABASE'] is not ``default``."""

from __future__ import annotations

from typing import Any

from django_durable_tasks import conf

_APP = "django_durable_tasks"


class DurableTasksRouter:
    """Route this application's models, and their migrations, to DURABLE_TASKS['DATABASE'].

    All methods return None for other applications, so that other routers or Django's default are
    used for them.
    """

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        """Return the alias from which this application's models are read."""
        return conf.settings().DATABASE if model._meta.app_label == _APP else None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        """Return the alias to which this application's models are written."""
        return self.db_for_read(model)

    def allow_relation(self, obj1: Any, obj2: Any, **hints: Any) -> bool | None:
        """Allow relations between this application's models, also with an object of a replica."""
        return True if obj1._meta.app_label == obj2._meta.app_label == _APP else None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        """Allow this application's migrations on DURABLE_TASKS['DATABASE'] only."""
        return db == conf.settings().DATABASE if app_label == _APP else None

"""The database router for projects whose DURABLE_TASKS['DATABASE'] is not ``default``."""

from __future__ import annotations

from typing import Any

from django.apps import apps

from django_durable_tasks import conf


def _is_ours(app_label: str) -> bool:
    """Return whether this is the package, or one of its optional apps."""
    try:
        name = apps.get_app_config(app_label).name
    except LookupError:  # an app of old migrations, which is not installed any more
        return False
    return name == "django_durable_tasks" or name.startswith("django_durable_tasks.")


class DurableTasksRouter:
    """Route the models of this application and of its optional apps, and their migrations, to
    DURABLE_TASKS['DATABASE'].

    All methods return None for other applications, so that other routers or Django's default are
    used for them.
    """

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        """Return the alias from which this application's models are read."""
        return conf.settings().DATABASE if _is_ours(model._meta.app_label) else None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        """Return the alias to which this application's models are written."""
        return self.db_for_read(model)

    def allow_relation(self, obj1: Any, obj2: Any, **hints: Any) -> bool | None:
        """Allow relations between this application's models, also with an object of a replica."""
        ours = _is_ours(obj1._meta.app_label) and _is_ours(obj2._meta.app_label)
        return True if ours else None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        """Allow this application's migrations on DURABLE_TASKS['DATABASE'] only."""
        return db == conf.settings().DATABASE if _is_ours(app_label) else None

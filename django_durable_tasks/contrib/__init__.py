"""Optional apps, and what their configurations have in common."""

from __future__ import annotations

from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured

_CORE = "django_durable_tasks"


class OptionalAppConfig(AppConfig):
    """An app that needs the tables of ``django_durable_tasks``.

    The ``apps.py`` of an app imports this package and not this class: with two configurations in
    one module Django would use neither.
    """

    def import_models(self) -> None:
        """Import the models; raises ImproperlyConfigured without the app that they need."""
        if not apps.is_installed(_CORE):
            raise ImproperlyConfigured(
                f"{self.name} needs {_CORE}: add {_CORE!r} to INSTALLED_APPS."
            )
        super().import_models()

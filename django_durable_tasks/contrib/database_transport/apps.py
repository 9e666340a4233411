"""The configuration of the optional app."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from django_durable_tasks import optional_apps


class DatabaseTransportConfig(optional_apps.OptionalAppConfig):
    """Makes ``durable-database://`` known to Kombu, which imports the transport on first use."""

    name = "django_durable_tasks.contrib.database_transport"
    label = "durable_tasks_transport"
    verbose_name = _("Durable tasks: broker in the database")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the transport and its system checks."""
        from kombu.transport import TRANSPORT_ALIASES

        from django_durable_tasks.contrib.database_transport import checks, due_tasks  # noqa: F401 - registers

        TRANSPORT_ALIASES[due_tasks.SCHEME] = f"{self.name}.transport:Transport"
        due_tasks.connect()

"""The configuration of the optional app."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from django_durable_tasks import contrib


class DatabaseTransportConfig(contrib.OptionalAppConfig):
    """Makes ``durable-database://`` known to Kombu, which imports the transport on first use."""

    name = "django_durable_tasks.contrib.database_transport"
    label = "durable_tasks_transport"
    verbose_name = _("Durable tasks: broker in the database")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the transport, its system checks and its job."""
        from kombu.transport import TRANSPORT_ALIASES

        from django_durable_tasks.contrib.database_transport import checks, due_tasks  # noqa: F401 - registers
        from django_durable_tasks.scheduler.jobs import Job, register_job

        TRANSPORT_ALIASES[due_tasks.SCHEME] = f"{self.name}.transport:Transport"
        due_tasks.connect()
        register_job(
            "return_messages",
            lambda: Job("return_messages", due_tasks.return_messages, every=2.0, dispatches=False),
        )

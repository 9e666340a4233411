"""The configuration of the optional app."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from django_durable_tasks import contrib


class ApiConfig(contrib.OptionalAppConfig):
    """Serves the HTTP API, and has API keys, quotas of tenants and staff users of tenants."""

    name = "django_durable_tasks.contrib.api"
    label = "durable_tasks_api"
    verbose_name = _("Durable tasks: HTTP API")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register quotas, the limits of staff users, a job, the subcommands, the check and the
        task.
        """
        from django_durable_tasks import ports
        from django_durable_tasks.command.subcommand import register_command
        from django_durable_tasks.contrib.api import access, bulk_operations, commands, quotas
        from django_durable_tasks.scheduler.jobs import PAUSE_FACTOR, Job, register_job

        ports.bind_tenants(quotas, access.tenants_of)
        register_job(
            "prune_api",
            lambda: Job(
                "prune_api",
                bulk_operations.prune,
                every=10.0,
                pause_factor=PAUSE_FACTOR,
                dispatches=False,
            ),
        )
        register_command(commands.api_key, commands.quota, commands.staff)

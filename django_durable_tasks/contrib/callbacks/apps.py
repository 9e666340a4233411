"""The configuration of the optional app."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from django_durable_tasks import contrib


class CallbacksConfig(contrib.OptionalAppConfig):
    """Sends HTTP requests and messages for other programs, as durable tasks."""

    name = "django_durable_tasks.contrib.callbacks"
    label = "durable_tasks_callbacks"
    verbose_name = _("Durable tasks: callbacks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the tasks, the circuit breakers of endpoints and the subcommands."""
        from django_durable_tasks.command.listing import TASK_TABLES
        from django_durable_tasks.command.subcommand import register_command
        from django_durable_tasks.contrib.callbacks import commands, endpoints, tasks  # noqa: F401
        from django_durable_tasks.limits.config import ENDPOINT_SOURCES
        from django_durable_tasks.scheduler.jobs import Job, register_job
        from django_durable_tasks.tasks.retention import CLOCK_CORRECTIONS

        ENDPOINT_SOURCES[self.label] = endpoints.open_endpoints
        CLOCK_CORRECTIONS[self.label] = endpoints.end_pauses_after
        TASK_TABLES["requests"] = (commands.requests_of, commands.REQUEST_COLUMNS)
        register_job(
            "prune_endpoints",
            lambda: Job("prune_endpoints", endpoints.prune, every=60.0, dispatches=False),
        )
        register_command(commands.check_url, commands.signing_secret)

"""The application configuration of ``durable verify``."""

from __future__ import annotations

from django_durable_tasks import contrib


class VerifyConfig(contrib.OptionalAppConfig):
    """The checks of the tables. It has no models."""

    name = "django_durable_tasks.contrib.verify"
    label = "durable_tasks_verify"
    verbose_name = "Verification of durable tasks"

    def ready(self) -> None:
        """Register the subcommand and the task for schedules, with the models loaded."""
        from django_durable_tasks.command.subcommand import register_command
        from django_durable_tasks.contrib.verify.runner import verify

        register_command(verify)

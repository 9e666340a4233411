"""The configuration of the optional app."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from django_durable_tasks import contrib


class BeatConfig(contrib.OptionalAppConfig):
    """Imports schedules of django-celery-beat, and compares its fire times with those here."""

    name = "django_durable_tasks.contrib.beat"
    label = "durable_tasks_beat"
    verbose_name = _("Durable tasks: migration from Celery beat")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register subcommands with their operation, and the job that deletes recorded fires."""
        from django_durable_tasks.command.subcommand import register_command
        from django_durable_tasks.contrib.beat import commands, compare
        from django_durable_tasks.scheduler.jobs import PAUSE_FACTOR, Job, register_job

        register_command(commands.import_beat, commands.shadow)
        register_job(
            "prune_shadow_fires",
            lambda: Job(
                "prune_shadow_fires",
                compare.prune,
                every=10.0,
                pause_factor=PAUSE_FACTOR,
                dispatches=False,
            ),
        )

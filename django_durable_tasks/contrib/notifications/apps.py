"""The configuration of the optional app."""

from __future__ import annotations

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import contrib

_CALLBACKS = "django_durable_tasks.contrib.callbacks"


class NotificationsConfig(contrib.OptionalAppConfig):
    """Records events, delivers messages about them, and watches the installation."""

    name = "django_durable_tasks.contrib.notifications"
    label = "durable_tasks_notifications"
    verbose_name = _("Durable tasks: notifications")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register recorders, jobs, the subcommand and the tasks."""
        if not apps.is_installed(_CALLBACKS):
            raise ImproperlyConfigured(
                f"{self.name} sends its messages with {_CALLBACKS}: add it to INSTALLED_APPS."
            )
        from django_durable_tasks.cluster.status import ALERT_SOURCES
        from django_durable_tasks.command.subcommand import register_command
        from django_durable_tasks.contrib.notifications import capture, commands, deliveries, task
        from django_durable_tasks.limits.config import KEY_LIMIT_SOURCES
        from django_durable_tasks.states.guarded_update import RECORDERS

        RECORDERS[self.label] = capture.TransitionRecorder()
        ALERT_SOURCES[self.label] = deliveries.open_alerts
        KEY_LIMIT_SOURCES[self.label] = capture.limits_per_key
        task.register()
        register_command(commands.notify)

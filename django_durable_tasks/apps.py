"""The one place that plugs the rooms together."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class DurableTasksConfig(AppConfig):
    """Bind the ports, make the filesystem transport known, and connect Celery's signals."""

    name = "django_durable_tasks"
    verbose_name = "Durable tasks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Plug in; the imports stand here because models must be loaded first."""
        from django_durable_tasks import checks, ports
        from django_durable_tasks.celery import dispatcher, filesystem, handlers, publisher, worker
        from django_durable_tasks.lifecycle import doors, verifying
        from django_durable_tasks.lifecycle.cancellation import Verbs
        from django_durable_tasks.lifecycle.first_rows import write_first_rows
        from django_durable_tasks.management.durable.declaring import after_migrate
        from django_durable_tasks.nearby import verifying as verifying_nearby
        from django_durable_tasks.nearby.telling import Teller
        from django_durable_tasks.targets import audit, carry, end_of_workflow, maps  # noqa: F401 - all processes know them

        filesystem.register()
        ports.bind(
            ring_port=publisher.ring,
            verbs=Verbs(),
            schedule_verbs=doors.Doors(),
            queue_port=publisher.queue_of,
            broker_port=dispatcher.broker_open,
            due_port=Teller(),
        )
        verifying.join(*verifying_nearby.CHECKS)
        handlers.connect()
        worker.connect()
        checks.register()
        post_migrate.connect(write_first_rows, sender=self, dispatch_uid="django_durable_tasks.first_rows")
        # After the first rows: a schedule belongs to the default tenant.
        post_migrate.connect(after_migrate, sender=self, dispatch_uid="django_durable_tasks.schedules")

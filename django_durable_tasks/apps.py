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
        from django_durable_tasks.celery import call_guard, dispatcher, filesystem, handlers, publisher, routing
        from django_durable_tasks.celery import wiring, worker, zones  # isort: skip
        from django_durable_tasks.due_index import verify as verify_due_index
        from django_durable_tasks.lifecycle import calendars, doors, queues, task_requests, verifying
        from django_durable_tasks.lifecycle.first_rows import write_first_rows
        from django_durable_tasks.management.durable.declaring import after_migrate
        from django_durable_tasks.notifier.notify_on_commit import OnCommitNotifier
        from django_durable_tasks.targets import end_of_workflow, maps, plain_celery_task, verify  # noqa: F401 - all processes know them

        filesystem.register()
        call_guard.install()
        ports.bind(
            ring_port=dispatcher.ring_after_commit,
            task_port=doors.EngineTaskOperations(),
            letter_port=doors.EngineDeadLetterOperations(),
            pause_port=queues,
            calendar_port=calendars,
            schedule_verbs=doors.Doors(),
            queue_port=routing.queue_of,
            broker_port=dispatcher.broker_open,
            eager_port=publisher.eager,
            due_port=OnCommitNotifier(),
            load_port=wiring.load_tasks,
            zone_port=zones.schedule_zone,
            requests_port=task_requests.apply_of,
        )
        verifying.join(*verify_due_index.CHECKS)
        handlers.connect()
        worker.connect()
        checks.register()
        post_migrate.connect(write_first_rows, sender=self, dispatch_uid="django_durable_tasks.first_rows")
        # After the first rows: a schedule belongs to the default tenant.
        post_migrate.connect(after_migrate, sender=self, dispatch_uid="django_durable_tasks.schedules")

"""The application configuration. It connects the packages when Django starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate

from django_durable_tasks import ports


class DurableTasksConfig(AppConfig):
    """The application ``django_durable_tasks``."""

    name = "django_durable_tasks"
    verbose_name = "Durable tasks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Bind the ports, and register the transport, the system checks and the signal receivers.

        The imports are inside the function, because they need the loaded models.
        """
        from django_durable_tasks import (
            checks,
            internal_tasks,  # noqa: F401 - registers its tasks in every process, as the one below
        )
        from django_durable_tasks.celery import (
            calls,
            filesystem,
            late_tasks,
            project_app,
            signal_handlers,
            worker_node,
        )
        from django_durable_tasks.command.schedules import after_migrate
        from django_durable_tasks.process_state import end_with_parent
        from django_durable_tasks.store.connections import release_databases
        from django_durable_tasks.store.tables import write_first_rows
        from django_durable_tasks.tasks import key_rotation, retention  # noqa: F401 - operations

        end_with_parent()
        filesystem.register()
        project_app.make_if_missing()
        calls.install()
        _bind_ports()
        signal_handlers.connect()
        worker_node.connect()
        late_tasks.connect()
        checks.register()
        connection_created.connect(
            release_databases, dispatch_uid="django_durable_tasks.release_databases"
        )
        self._connect_migrate(write_first_rows, after_migrate)

    def _connect_migrate(self, *receivers: Callable[..., Any]) -> None:
        # In this order: a schedule belongs to the default tenant, which is one of the first rows.
        names = ("first_rows", "schedules")
        for name, receiver in zip(names, receivers, strict=True):
            post_migrate.connect(receiver, sender=self, dispatch_uid=f"django_durable_tasks.{name}")


def _bind_ports() -> None:
    from django_durable_tasks.celery import broker_outage, inspect, publisher, routing
    from django_durable_tasks.limits import backpressure
    from django_durable_tasks.scheduler.notifier import OnCommitNotifier
    from django_durable_tasks.tasks import requests

    ports.bind(
        publish_port=publisher.publish_claimed_after_commit,
        batches_port=publisher.publish_batches_after_commit,
        queue_port=routing.queue_of,
        routes_port=routing.routes_by_arguments,
        broker_port=broker_outage.is_open_for,
        fast_path_port=backpressure.FastPath(),
        eager_port=publisher.eager,
        due_port=OnCommitNotifier(),
        load_port=inspect.load_tasks,
        zone_port=inspect.schedule_zone,
        requests_port=requests.apply_of,
    )

"""The application configuration. It connects the packages when Django starts."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.signals import connection_created
from django.db.models.signals import class_prepared, post_migrate

from django_durable_tasks import ports

_CONTRIB = "django_durable_tasks.contrib."


def _refuse_models_of_missing_apps(sender: Any, **_: Any) -> None:
    """Raise ImproperlyConfigured for a model of an optional app that is not in INSTALLED_APPS.

    Django would take it for a model of this app, because the optional apps are packages inside it.
    """
    module, label = sender.__module__, sender._meta.app_label
    if module.startswith(_CONTRIB) and label == DurableTasksConfig.name:
        app = _CONTRIB + module.removeprefix(_CONTRIB).partition(".")[0]
        raise ImproperlyConfigured(
            f"{module} needs the app {app!r}: add it to INSTALLED_APPS, and run"
            " `manage.py migrate`."
        )


# At the import: the models of an app that stands before this one may import an optional app.
class_prepared.connect(
    _refuse_models_of_missing_apps, dispatch_uid="django_durable_tasks.models_of_missing_apps"
)


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
            inspect,
            late_tasks,
            prepared_messages,
            project_app,
            publisher,
            signal_handlers,
            worker_node,
        )
        from django_durable_tasks.command.schedules import after_migrate
        from django_durable_tasks.limits import backpressure
        from django_durable_tasks.process_state import end_with_parent
        from django_durable_tasks.scheduler.notifier import OnCommitNotifier
        from django_durable_tasks.store.connections import release_databases
        from django_durable_tasks.store.tables import write_first_rows
        from django_durable_tasks.tasks import (
            key_rotation,  # noqa: F401 - registers its operation, as retention
            requests,
            retention,  # noqa: F401
        )

        end_with_parent()
        filesystem.register()
        project_app.make_if_missing()
        calls.install()
        ports.publish = publisher.publish_claimed_after_commit
        ports.publish_batches = publisher.publish_batches_after_commit
        ports.queue_of = prepared_messages.queue_of
        ports.routes_by_arguments = prepared_messages.routes_by_arguments
        ports.broker_open = publisher.is_open_for
        ports.fast_path = backpressure.FastPath()
        ports.eager = publisher.eager
        ports.due = OnCommitNotifier()
        ports.load_tasks = inspect.load_tasks
        ports.schedule_zone = inspect.schedule_zone
        ports.apply_requests = requests.apply_of
        signal_handlers.connect()
        worker_node.connect()
        late_tasks.connect()
        checks.register()
        connection_created.connect(
            release_databases, dispatch_uid="django_durable_tasks.release_databases"
        )
        # In this order: a schedule belongs to the default tenant, which is one of the first rows.
        post_migrate.connect(
            write_first_rows, sender=self, dispatch_uid="django_durable_tasks.first_rows"
        )
        post_migrate.connect(
            after_migrate, sender=self, dispatch_uid="django_durable_tasks.schedules"
        )

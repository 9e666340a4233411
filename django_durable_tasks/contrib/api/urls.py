"""The addresses of the API, for ``include("django_durable_tasks.contrib.api.urls")``.

It has the resources of the optional apps that are installed.
"""

from importlib import import_module
from itertools import chain
from typing import Any

from django.apps import apps
from django.urls import re_path
from rest_framework.routers import SimpleRouter

from django_durable_tasks.contrib.api import installation, schedules, tasks, workflows
from django_durable_tasks.contrib.api.views import OperationsMixin, add_operations

app_name = "durable-api"
_RESOURCES: tuple[tuple[str, str, Any], ...] = (
    ("tasks", "task", tasks.TaskViewSet),
    ("recurring-tasks", "recurring-task", schedules.RecurringTaskViewSet),
    ("workflows", "workflow", workflows.WorkflowViewSet),
    ("dead-letters", "dead-letter", tasks.DeadLetterViewSet),
    ("audit", "audit", installation.AuditViewSet),
    ("calendars", "calendar", schedules.CalendarViewSet),
    ("queues", "queue", installation.QueueViewSet),
    ("operations", "operation", tasks.OperationViewSet),
    ("tenants", "tenant", installation.TenantViewSet),
    ("key", "key", installation.KeyViewSet),
    ("quota", "quota", installation.QuotaViewSet),
    ("health", "health", installation.HealthViewSet),
    ("metrics", "metrics", installation.MetricsViewSet),
    ("scheduler", "scheduler", installation.SchedulerViewSet),
    ("scheduler/tasks", "scheduler-task", installation.HistoryViewSet),
    ("schema", "schema", installation.SchemaViewSet),
    ("docs", "docs", installation.DocsViewSet),
    ("problems", "problem", installation.ProblemViewSet),
)
_RESOURCES_OF = {
    "django_durable_tasks.contrib.callbacks": "django_durable_tasks.contrib.api.callbacks",
    "django_durable_tasks.contrib.notifications": (
        "django_durable_tasks.contrib.api.notification_settings"
    ),
}
"""The modules with the resources of optional apps, which need the models of these apps."""
_OPTIONAL = [
    import_module(module).RESOURCES
    for app, module in _RESOURCES_OF.items()
    if apps.is_installed(app)
]
_router = SimpleRouter(trailing_slash=False, use_regex_path=False)
for _prefix, _name, _viewset in (*_RESOURCES, *chain(*_OPTIONAL)):
    if issubclass(_viewset, OperationsMixin):
        add_operations(_viewset)
    _router.register(_prefix, _viewset, _name)

_NONE = {"get": "http_method_not_allowed"}
urlpatterns = [
    *_router.urls,
    # `.` does not match the newline of an address with %0A.
    re_path(r"^[\s\S]*\Z", installation.UnknownViewSet.as_view(_NONE), name="unknown"),
]

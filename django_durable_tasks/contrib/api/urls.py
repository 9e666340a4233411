"""The addresses of the API, for ``include("django_durable_tasks.contrib.api.urls")``."""

from typing import Any

from django.urls import re_path
from rest_framework.routers import SimpleRouter

from django_durable_tasks.contrib.api import scheduler, schedules, tasks, tenants, workflows
from django_durable_tasks.contrib.api.operations import OperationsMixin, add_operations

app_name = "durable-api"
_RESOURCES: tuple[tuple[str, str, Any], ...] = (
    ("tasks", "task", workflows.GraphTaskViewSet),
    ("recurring-tasks", "recurring-task", schedules.RecurringTaskViewSet),
    ("workflows", "workflow", workflows.WorkflowViewSet),
    ("dead-letters", "dead-letter", tasks.DeadLetterViewSet),
    ("audit", "audit", tenants.AuditViewSet),
    ("calendars", "calendar", schedules.CalendarViewSet),
    ("notification-settings", "notification-setting", tenants.NotificationSettingViewSet),
    ("queues", "queue", scheduler.QueueViewSet),
    ("operations", "operation", tasks.OperationViewSet),
    ("tenants", "tenant", tenants.TenantViewSet),
    ("key", "key", tenants.KeyViewSet),
    ("signing-secret", "signing-secret", tenants.SigningSecretViewSet),
    ("quota", "quota", tenants.QuotaViewSet),
    ("health", "health", scheduler.HealthViewSet),
    ("metrics", "metrics", scheduler.MetricsViewSet),
    ("scheduler", "scheduler", scheduler.SchedulerViewSet),
    ("scheduler/tasks", "scheduler-task", scheduler.HistoryViewSet),
    ("schema", "schema", scheduler.SchemaViewSet),
    ("docs", "docs", scheduler.DocsViewSet),
    ("problems", "problem", scheduler.ProblemViewSet),
)
_router = SimpleRouter(trailing_slash=False, use_regex_path=False)
for _prefix, _name, _viewset in _RESOURCES:
    if issubclass(_viewset, OperationsMixin):
        add_operations(_viewset)
    _router.register(_prefix, _viewset, _name)

_NONE = {"get": "http_method_not_allowed"}
urlpatterns = [
    *_router.urls,
    # `.` does not match the newline of an address with %0A.
    re_path(r"^[\s\S]*\Z", scheduler.UnknownViewSet.as_view(_NONE), name="unknown"),
]

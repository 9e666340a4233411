"""The addresses of the API: ``path("api/v1/", include("django_durable_tasks.api.urls"))``."""

from collections.abc import Iterator, Sequence

from django.urls import URLPattern, path, re_path

from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.views import (
    dead_letters,
    notification_settings,
    pages,
    recurring_tasks,
    scheduler,
    tasks,
    tenants,
    workflows,
)
from django_durable_tasks.api.views.object_operations import ObjectAction, Resource, endpoint_of

app_name = "durable-api"
_TASK = "tasks/<uuid:task_id>"
_SCHEDULE = "recurring-tasks/<uuid:recurring_task_id>"
_WORKFLOW = "workflows/<uuid:workflow_id>"
_NOTIFICATION = "notification-settings/<int:notification_setting_id>"
_LETTER = "dead-letters/<int:letter_id>"


def _at(address: str, endpoint: type[ApiEndpoint], name: str) -> URLPattern:
    found: URLPattern = path(address, endpoint.as_view(), name=name)
    return found


def _operations(
    address: str, resource: Resource, actions: Sequence[ObjectAction]
) -> Iterator[URLPattern]:
    for action in actions:
        endpoint = endpoint_of(resource, action)
        yield _at(f"{address}/{action.path}", endpoint, f"{resource.name}-{action.path}")


urlpatterns = [
    _at("tasks", tasks.TasksEndpoint, "tasks"),
    _at("tasks/bulk", tasks.BulkCreateEndpoint, "tasks-bulk"),
    _at("tasks/bulk-cancel", tasks.BulkCancelEndpoint, "tasks-bulk-cancel"),
    _at("tasks/bulk-replay", tasks.BulkReplayEndpoint, "tasks-bulk-replay"),
    _at(_TASK, tasks.TaskEndpoint, "task"),
    _at(f"{_TASK}/executions", tasks.ExecutionsEndpoint, "task-executions"),
    _at(f"{_TASK}/deliveries", tasks.DeliveriesEndpoint, "task-deliveries"),
    _at(f"{_TASK}/dependencies", workflows.DependenciesEndpoint, "task-dependencies"),
    _at(f"{_TASK}/dependencies.svg", workflows.DependenciesImageEndpoint, "task-dependencies-svg"),
    *_operations(_TASK, tasks.RESOURCE, tasks.ACTIONS),
    *_operations(_TASK, tasks.SINGLE, tasks.ON_ONE_TASK),
    _at("recurring-tasks", recurring_tasks.RecurringTasksEndpoint, "recurring-tasks"),
    _at(_SCHEDULE, recurring_tasks.RecurringTaskEndpoint, "recurring-task"),
    _at(f"{_SCHEDULE}/preview", recurring_tasks.PreviewEndpoint, "recurring-task-preview"),
    _at(
        f"{_SCHEDULE}/occurrences",
        recurring_tasks.OccurrencesEndpoint,
        "recurring-task-occurrences",
    ),
    _at(f"{_SCHEDULE}/explain", recurring_tasks.ExplainEndpoint, "recurring-task-explain"),
    *_operations(_SCHEDULE, recurring_tasks.RESOURCE, recurring_tasks.ACTIONS),
    _at("workflows", workflows.WorkflowsEndpoint, "workflows"),
    _at(_WORKFLOW, workflows.WorkflowEndpoint, "workflow"),
    _at(f"{_WORKFLOW}/graph", workflows.WorkflowGraphEndpoint, "workflow-graph"),
    _at(f"{_WORKFLOW}/graph.svg", workflows.WorkflowImageEndpoint, "workflow-graph-svg"),
    *_operations(_WORKFLOW, workflows.RESOURCE, workflows.ACTIONS),
    _at("dead-letters", dead_letters.DeadLettersEndpoint, "dead-letters"),
    _at(_LETTER, dead_letters.DeadLetterEndpoint, "dead-letter"),
    *_operations(_LETTER, dead_letters.RESOURCE, dead_letters.ACTIONS),
    _at("audit", tenants.AuditEndpoint, "audit"),
    _at("calendars", recurring_tasks.CalendarsEndpoint, "calendars"),
    _at("calendars/<int:calendar_id>", recurring_tasks.CalendarEndpoint, "calendar"),
    _at(
        "notification-settings",
        notification_settings.NotificationSettingsEndpoint,
        "notification-settings",
    ),
    _at(_NOTIFICATION, notification_settings.NotificationSettingEndpoint, "notification-setting"),
    _at(
        f"{_NOTIFICATION}/signing-secret",
        tenants.SettingSecretEndpoint,
        "notification-setting-signing-secret",
    ),
    *_operations(_NOTIFICATION, notification_settings.RESOURCE, notification_settings.ACTIONS),
    _at("queues", scheduler.QueuesEndpoint, "queues"),
    *_operations("queues/<str:queue>", scheduler.RESOURCE, scheduler.ACTIONS),
    _at("operations", tasks.OperationsEndpoint, "operations"),
    _at("operations/<uuid:operation_id>", tasks.OperationProgressEndpoint, "operation"),
    _at("tenants", tenants.TenantsEndpoint, "tenants"),
    _at("signing-secret", tenants.SigningSecretEndpoint, "signing-secret"),
    _at("quota", tenants.QuotaEndpoint, "quota"),
    _at("health", scheduler.HealthEndpoint, "health"),
    _at("metrics", scheduler.MetricsEndpoint, "metrics"),
    _at("scheduler/status", scheduler.SchedulerStatusEndpoint, "scheduler-status"),
    _at(
        "scheduler/tasks/<uuid:task_id>/history",
        scheduler.HistoryEndpoint,
        "scheduler-task-history",
    ),
    _at("schema", pages.SchemaEndpoint, "schema"),
    _at("docs", pages.DocsEndpoint, "docs"),
    _at("problems/<slug:code>", pages.ProblemEndpoint, "problem"),
    # `.` does not match the newline of an address with %0A.
    re_path(r"^[\s\S]*\Z", pages.UnknownEndpoint.as_view(), name="unknown"),
]

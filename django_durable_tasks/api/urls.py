"""The addresses of the API: ``path("api/v1/", include("django_durable_tasks.api.urls"))``."""

from collections.abc import Iterator, Sequence

from django.urls import URLPattern, path, re_path

from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.views import (
    audit,
    bulk,
    calendars,
    dead_letters,
    deliveries,
    fire_times,
    graphs,
    metrics,
    notification_settings,
    operations,
    problem_pages,
    queues,
    quota,
    recurring_tasks,
    scheduler,
    schema_pages,
    signing_secrets,
    task_operations,
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
    _at("tasks/bulk", bulk.BulkCreateEndpoint, "tasks-bulk"),
    _at("tasks/bulk-cancel", bulk.BulkCancelEndpoint, "tasks-bulk-cancel"),
    _at("tasks/bulk-replay", bulk.BulkReplayEndpoint, "tasks-bulk-replay"),
    _at(_TASK, tasks.TaskEndpoint, "task"),
    _at(f"{_TASK}/executions", tasks.ExecutionsEndpoint, "task-executions"),
    _at(f"{_TASK}/deliveries", deliveries.DeliveriesEndpoint, "task-deliveries"),
    _at(f"{_TASK}/dependencies", graphs.DependenciesEndpoint, "task-dependencies"),
    _at(f"{_TASK}/dependencies.svg", graphs.DependenciesImageEndpoint, "task-dependencies-svg"),
    *_operations(_TASK, tasks.RESOURCE, task_operations.ACTIONS),
    *_operations(_TASK, tasks.SINGLE, task_operations.ON_ONE_TASK),
    _at("recurring-tasks", recurring_tasks.RecurringTasksEndpoint, "recurring-tasks"),
    _at(_SCHEDULE, recurring_tasks.RecurringTaskEndpoint, "recurring-task"),
    _at(f"{_SCHEDULE}/preview", fire_times.PreviewEndpoint, "recurring-task-preview"),
    _at(f"{_SCHEDULE}/occurrences", fire_times.OccurrencesEndpoint, "recurring-task-occurrences"),
    _at(f"{_SCHEDULE}/explain", fire_times.ExplainEndpoint, "recurring-task-explain"),
    *_operations(_SCHEDULE, recurring_tasks.RESOURCE, recurring_tasks.ACTIONS),
    _at("workflows", workflows.WorkflowsEndpoint, "workflows"),
    _at(_WORKFLOW, workflows.WorkflowEndpoint, "workflow"),
    _at(f"{_WORKFLOW}/graph", graphs.WorkflowGraphEndpoint, "workflow-graph"),
    _at(f"{_WORKFLOW}/graph.svg", graphs.WorkflowImageEndpoint, "workflow-graph-svg"),
    *_operations(_WORKFLOW, workflows.RESOURCE, workflows.ACTIONS),
    _at("dead-letters", dead_letters.DeadLettersEndpoint, "dead-letters"),
    _at(_LETTER, dead_letters.DeadLetterEndpoint, "dead-letter"),
    *_operations(_LETTER, dead_letters.RESOURCE, dead_letters.ACTIONS),
    _at("audit", audit.AuditEndpoint, "audit"),
    _at("calendars", calendars.CalendarsEndpoint, "calendars"),
    _at("calendars/<int:calendar_id>", calendars.CalendarEndpoint, "calendar"),
    _at(
        "notification-settings",
        notification_settings.NotificationSettingsEndpoint,
        "notification-settings",
    ),
    _at(_NOTIFICATION, notification_settings.NotificationSettingEndpoint, "notification-setting"),
    _at(
        f"{_NOTIFICATION}/signing-secret",
        signing_secrets.SettingSecretEndpoint,
        "notification-setting-signing-secret",
    ),
    *_operations(_NOTIFICATION, notification_settings.RESOURCE, notification_settings.ACTIONS),
    _at("queues", queues.QueuesEndpoint, "queues"),
    *_operations("queues/<str:queue>", queues.RESOURCE, queues.ACTIONS),
    _at("operations", operations.OperationsEndpoint, "operations"),
    _at("operations/<uuid:operation_id>", operations.OperationProgressEndpoint, "operation"),
    _at("tenants", tenants.TenantsEndpoint, "tenants"),
    _at("signing-secret", signing_secrets.SigningSecretEndpoint, "signing-secret"),
    _at("quota", quota.QuotaEndpoint, "quota"),
    _at("health", scheduler.HealthEndpoint, "health"),
    _at("metrics", metrics.MetricsEndpoint, "metrics"),
    _at("scheduler/status", scheduler.SchedulerStatusEndpoint, "scheduler-status"),
    _at(
        "scheduler/tasks/<uuid:task_id>/history",
        scheduler.HistoryEndpoint,
        "scheduler-task-history",
    ),
    _at("schema", schema_pages.SchemaEndpoint, "schema"),
    _at("docs", schema_pages.DocsEndpoint, "docs"),
    _at("problems/<slug:code>", problem_pages.ProblemEndpoint, "problem"),
    # `.` does not match the newline of an address with %0A.
    re_path(r"^[\s\S]*\Z", problem_pages.UnknownEndpoint.as_view(), name="unknown"),
]

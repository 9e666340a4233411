"""The admin site of the package. A project may derive its own pages from these."""

from django_durable_tasks.admin.calendars import CalendarAdmin
from django_durable_tasks.admin.graphs import TaskDependencyAdmin
from django_durable_tasks.admin.installation import (
    AuditEntryAdmin,
    LimitAdmin,
    NodeAdmin,
    QueueControlAdmin,
    SchedulerLeaseAdmin,
    TenantAdmin,
)
from django_durable_tasks.admin.recurring_tasks import OccurrenceRecordAdmin, RecurringTaskAdmin
from django_durable_tasks.admin.tasks import DeadLetterAdmin, TaskAdmin, TaskExecutionLogAdmin
from django_durable_tasks.admin.workflow_runs import WorkflowRunAdmin

__all__ = [
    "AuditEntryAdmin",
    "CalendarAdmin",
    "DeadLetterAdmin",
    "LimitAdmin",
    "NodeAdmin",
    "OccurrenceRecordAdmin",
    "QueueControlAdmin",
    "RecurringTaskAdmin",
    "SchedulerLeaseAdmin",
    "TaskAdmin",
    "TaskDependencyAdmin",
    "TaskExecutionLogAdmin",
    "TenantAdmin",
    "WorkflowRunAdmin",
]

"""The admin site of the package: one module per page, one call of ``operations`` per action."""

from django_durable_tasks.admin.audit_entries import AuditEntryAdmin
from django_durable_tasks.admin.calendars import CalendarAdmin
from django_durable_tasks.admin.cluster import (
    LimitAdmin,
    NodeAdmin,
    QueueControlAdmin,
    SchedulerLeaseAdmin,
)
from django_durable_tasks.admin.dead_letters import DeadLetterAdmin
from django_durable_tasks.admin.dependencies import TaskDependencyAdmin
from django_durable_tasks.admin.execution_log import TaskExecutionLogAdmin
from django_durable_tasks.admin.ledger import OccurrenceRecordAdmin
from django_durable_tasks.admin.recurring_tasks import RecurringTaskAdmin
from django_durable_tasks.admin.tasks import TaskAdmin
from django_durable_tasks.admin.tenants import TenantAdmin
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

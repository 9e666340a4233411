"""The models, by subject. The methods of their querysets only read. Writes go through the functions
of the capabilities.
"""

from django_durable_tasks.choices import DEFAULT_TENANT_ID, DayKind, SpecialDay
from django_durable_tasks.models.cluster import (
    BatchMessage,
    Limit,
    LimitBucket,
    Node,
    NodeKind,
    QueueControl,
    SchedulerLease,
)
from django_durable_tasks.models.schedules import Calendar, OccurrenceRecord, RecurringTask
from django_durable_tasks.models.tasks import (
    DeadLetter,
    RequestKind,
    Task,
    TaskExecutionLog,
    TaskRequest,
)
from django_durable_tasks.models.tenants import AuditEntry, Tenant
from django_durable_tasks.models.workflows import EndingEvent, TaskDependency, WorkflowRun

__all__ = [
    "DEFAULT_TENANT_ID",
    "AuditEntry",
    "BatchMessage",
    "Calendar",
    "DayKind",
    "DeadLetter",
    "EndingEvent",
    "Limit",
    "LimitBucket",
    "Node",
    "NodeKind",
    "OccurrenceRecord",
    "QueueControl",
    "RecurringTask",
    "RequestKind",
    "SchedulerLease",
    "SpecialDay",
    "Task",
    "TaskDependency",
    "TaskExecutionLog",
    "TaskRequest",
    "Tenant",
    "WorkflowRun",
]

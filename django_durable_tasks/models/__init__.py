"""The models, one table per module. The methods of their querysets only read; writes go through the
engine.
"""

from django_durable_tasks.models.alert import Alert
from django_durable_tasks.models.api_key import ApiKey
from django_durable_tasks.models.audit_entry import AuditEntry
from django_durable_tasks.models.batch_message import BatchMessage
from django_durable_tasks.models.bulk_operation import BulkKind, BulkOperation
from django_durable_tasks.models.calendar import Calendar
from django_durable_tasks.models.calendar_day import CalendarDay
from django_durable_tasks.models.dead_letter import DeadLetter
from django_durable_tasks.models.delivery_attempt import DeliveryAttempt
from django_durable_tasks.models.ending_event import EndingEvent
from django_durable_tasks.models.endpoint import Endpoint
from django_durable_tasks.models.execution_log import TaskExecutionLog
from django_durable_tasks.models.idempotent_request import IdempotentRequest
from django_durable_tasks.models.lease import SchedulerLease
from django_durable_tasks.models.limit import Limit
from django_durable_tasks.models.limit_bucket import LimitBucket
from django_durable_tasks.models.metric_minute import MetricMinute
from django_durable_tasks.models.metric_position import MetricPosition
from django_durable_tasks.models.metric_series import MetricSeries
from django_durable_tasks.models.node import Node, NodeKind
from django_durable_tasks.models.notification_event import NotificationEvent
from django_durable_tasks.models.notification_setting import NotificationSetting
from django_durable_tasks.models.occurrence import OccurrenceRecord
from django_durable_tasks.models.occurrence_override import OccurrenceOverride
from django_durable_tasks.models.queue_control import QueueControl
from django_durable_tasks.models.recurring_task import RecurringTask
from django_durable_tasks.models.shadow_fire import ShadowFire
from django_durable_tasks.models.staff_tenant import StaffTenant
from django_durable_tasks.models.task import Task
from django_durable_tasks.models.task_dependency import TaskDependency
from django_durable_tasks.models.task_request import RequestKind, TaskRequest
from django_durable_tasks.models.tenant import DEFAULT_TENANT_ID, Tenant
from django_durable_tasks.models.tenant_quota import TenantQuota
from django_durable_tasks.models.tenant_requests import TenantRequests
from django_durable_tasks.models.uncounted_ending import UncountedEnding
from django_durable_tasks.models.workflow_run import WorkflowRun
from django_durable_tasks.rules.recurring.calendars import DayKind, SpecialDay

__all__ = [
    "DEFAULT_TENANT_ID",
    "Alert",
    "ApiKey",
    "AuditEntry",
    "BatchMessage",
    "BulkKind",
    "BulkOperation",
    "Calendar",
    "CalendarDay",
    "DayKind",
    "DeadLetter",
    "DeliveryAttempt",
    "EndingEvent",
    "Endpoint",
    "IdempotentRequest",
    "Limit",
    "LimitBucket",
    "MetricMinute",
    "MetricPosition",
    "MetricSeries",
    "Node",
    "NodeKind",
    "NotificationEvent",
    "NotificationSetting",
    "OccurrenceOverride",
    "OccurrenceRecord",
    "QueueControl",
    "RecurringTask",
    "RequestKind",
    "SchedulerLease",
    "ShadowFire",
    "SpecialDay",
    "StaffTenant",
    "Task",
    "TaskDependency",
    "TaskExecutionLog",
    "TaskRequest",
    "Tenant",
    "TenantQuota",
    "TenantRequests",
    "UncountedEnding",
    "WorkflowRun",
]

"""A tenant with a row of each kind, for the tests that open every page of the admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils import timezone

from django_durable_tasks import Workflow
from django_durable_tasks.admin.readonly import ScreenAdmin
from django_durable_tasks.contrib.api import access
from django_durable_tasks.contrib.api.values import ApiScope
from django_durable_tasks.contrib.callbacks.models import Endpoint
from django_durable_tasks.contrib.metrics.models import MetricMinute
from django_durable_tasks.models import (
    AuditEntry,
    Calendar,
    DeadLetter,
    Limit,
    OccurrenceRecord,
    RecurringTask,
    SchedulerLease,
    TaskDependency,
    TaskExecutionLog,
    Tenant,
)
from tests.database.notifications.sending import a_setting
from tests.factories import a_log_row, a_node, a_paused_queue, many_tasks
from tests.project.tasks import noop

SHARED = {"limit", "queuecontrol", "node", "schedulerlease"}
SCREENS = [
    one
    for model, one in admin.site._registry.items()
    # The page of MetricMinute is the charts, which show no rows. Their tests limit users too.
    if isinstance(one, ScreenAdmin) and model is not MetricMinute
]

MODELS = [str(screen.opts.model_name) for screen in SCREENS]


def a_full_tenant(slug: str) -> dict[str, Any]:
    """Create a tenant with a row of each kind, whose texts contain its slug; return the rows."""
    tenant = Tenant.objects.create(slug=slug, name=slug)
    failed = many_tasks(1, "FAILED", tenant=tenant, queue=f"{slug}-queue", name=f"{slug}.task")[0]
    waiting = many_tasks(1, due=60, tenant=tenant, queue=f"{slug}-queue", name=f"{slug}.task")[0]
    a_log_row(failed, error_message=f"{slug} failed")
    schedule = RecurringTask.objects.upsert(
        name=f"{slug}-nightly", task=noop, cron="0 2 * * *", tenant=tenant
    )
    schedule.trigger_now()
    workflow = Workflow(f"{slug}-flow")
    workflow.add(noop, after=[workflow.add(noop)])
    run = workflow.start(tenant=tenant)
    calendar = Calendar.objects.upsert(f"{slug}-office", tenant=tenant)
    key = access.create_key(tenant, f"{slug}-key", tuple(ApiScope), now=timezone.now()).row
    setting = a_setting(tenant=tenant, name=f"{slug}-setting")
    Endpoint.objects.unguarded().create(tenant_id=tenant.pk, key=f"{slug}.example.com")
    return {
        "tenant": tenant,
        "task": failed,
        "waiting": waiting,
        "recurringtask": schedule,
        "workflowrun": run,
        "calendar": calendar,
        "apikey": key,
        "notificationsetting": setting,
        "deadletter": DeadLetter.objects.get(tenant=tenant),
        "taskexecutionlog": TaskExecutionLog.objects.get(tenant=tenant),
        "taskdependency": TaskDependency.objects.get(task__tenant=tenant),
        "occurrencerecord": OccurrenceRecord.objects.filter(tenant=tenant).latest("pk"),
        "auditentry": AuditEntry.objects.filter(tenant=tenant).latest("pk"),
        "endpoint": Endpoint.objects.get(tenant=tenant),
    }


def shared_rows() -> dict[str, Any]:
    """Create and return a row of each kind that all tenants share."""
    return {
        "node": a_node(),
        "queuecontrol": a_paused_queue("held"),
        "limit": Limit.objects.create(scope="queue:held", max_concurrency=1),
        "schedulerlease": SchedulerLease.objects.get(),
    }

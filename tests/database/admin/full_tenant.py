"""A tenant with a row of each kind, for the tests that open every page of the admin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db import models
from django.utils import timezone

from django_durable_tasks import Workflow
from django_durable_tasks.admin.readonly import DurableModelAdmin
from django_durable_tasks.contrib.api import access
from django_durable_tasks.contrib.api.access import ApiScope
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
from django_durable_tasks.workflows import operations as graph_operations
from tests.database.admin.site import list_of
from tests.database.notifications.sending import a_setting
from tests.factories import a_log_row, a_node, a_paused_queue, many_tasks
from tests.project.tasks import noop

EVIL = (
    "<script>window.stolen=1</script></pre></script><img src=x onerror=window.stolen=1><i>x</i>\"'"
)
MARK = "&lt;script&gt;window.stolen=1&lt;/script&gt;"
SHARED = {"limit", "queuecontrol", "node", "schedulerlease"}
MODEL_ADMINS = [
    one
    for model, one in admin.site._registry.items()
    # The page of MetricMinute is the charts, which show no rows. Their tests limit users too.
    if isinstance(one, DurableModelAdmin) and model is not MetricMinute
]

MODELS = [str(model_admin.opts.model_name) for model_admin in MODEL_ADMINS]


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


def pages_of(model_admin: DurableModelAdmin, row: Any) -> Iterator[str]:
    """Yield the address of every page of this ModelAdmin about the row."""
    operations = [operation.name for operation in model_admin.page_operations] or [""]
    key, ids = quote(str(row.pk)), re.compile(r"<\w+:(object_id|edge_id)>")
    for pattern in model_admin.urls:
        route = str(pattern.pattern)
        for name in operations if ":name>" in route else operations[:1]:
            if ids.search(route):
                address = ids.sub(key, route)
                address = address.replace("<str:name>", name).replace("<str:ending>", "svg")
                yield f"{list_of(str(model_admin.opts.model_name))}{address}"


KEPT = {
    *("time_zone", "tzdata_version", "dst_gap", "dst_overlap", "roll", "encryption_key"),
    *("waiting_for_limit", "limit_key", "digest", "outcome", "rate"),
}
"""Texts that no user writes, and JSON without which a page shows an error and nothing else."""


def _spoil() -> None:
    """Write EVIL, as long as they allow, into all texts and JSON objects that users can write."""
    for model in apps.get_models():
        if "durable_tasks" not in model._meta.app_label:
            continue
        for row in model._base_manager.all():
            values: dict[str, Any] = {}
            for field in model._meta.concrete_fields:
                value = getattr(row, field.attname)
                if field.name in KEPT or field.choices or field.primary_key:
                    continue
                if isinstance(field, models.JSONField):
                    if field.name == "args" or isinstance(value, dict):
                        values[field.name] = [EVIL, {EVIL: EVIL}] if value == [] else {EVIL: [EVIL]}
                elif isinstance(field, models.CharField | models.TextField) and value is not None:
                    # Unique texts differ in their first characters.
                    values[field.name] = f"{str(row.pk)[-4:]}{EVIL * 4}"[: field.max_length]
            if values:
                model._base_manager.filter(pk=row.pk).update(**values)


def hostile_rows() -> dict[str, Any]:
    """Create a row of each kind, with EVIL in each text, and a gate that waits for a person."""
    rows = {**a_full_tenant("acme"), **shared_rows()}
    graph_operations.hold(rows["waiting"])
    rows["recurringtask"].override(timezone.now() + timedelta(days=9), "ADD")
    _spoil()
    return rows

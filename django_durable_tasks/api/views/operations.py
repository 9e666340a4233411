"""``/operations``: the progress of operations on many tasks."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks import conf
from django_durable_tasks.api import problems
from django_durable_tasks.api.addresses import address_of
from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.fields import (
    AnyJson,
    Body,
    Id,
    Instant,
    Integer,
    JsonObject,
    OneOf,
)
from django_durable_tasks.api.lists import PAGE_PARAMETERS, cursor_of, limit_of, listed, page_of
from django_durable_tasks.api.objects import shown_by
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.api.problems import Problem
from django_durable_tasks.models import BulkKind, BulkOperation
from django_durable_tasks.models.bulk_operation import BulkOperationQuerySet
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tenants.api_keys import ApiScope

_STATES = {
    Status.RUNNING: "RUNNING",
    Status.SUCCESS: "DONE",
    Status.FAILED: "FAILED",
    Status.CANCELLED: "CANCELLED",
}


class OperationAnswer(Body):
    """An operation on many tasks. Its task can be cancelled, and replayed to continue it."""

    operation_id = Id(source="pk")
    kind = OneOf(choices=[kind.value for kind in BulkKind])
    state = OneOf(choices=["PENDING", *_STATES.values()], source="pk")
    filters = JsonObject()
    task_id = Id()
    matched = Integer(help_text="Matching tasks so far.")
    changed = Integer()
    failed = Integer()
    errors = serializers.ListField(child=AnyJson())  # type: ignore[assignment]
    created_at = Instant()
    completed_at = Instant(allow_null=True)


def operations_of(tenant_id: int) -> BulkOperationQuerySet:
    """Return the bulk operations of one tenant, with their tasks."""
    found: BulkOperationQuerySet = BulkOperation.objects.using(conf.settings().DATABASE)
    return found.for_tenant(tenant_id).select_related("task")


def operation_address(key: uuid.UUID) -> str:
    """Return the path of an operation."""
    return address_of("operation", operation_id=key)


def operation_json(row: BulkOperation) -> dict[str, Any]:
    """Return an operation as JSON values; its state is that of its task."""
    return shown_by(OperationAnswer, row) | {"state": _state(row)}


def _state(row: BulkOperation) -> str:
    if row.completed_at is not None:
        return "DONE"
    return _STATES.get(Status(row.task.status), "PENDING")


class OperationsEndpoint(ApiEndpoint):
    """The operations of the tenant of the last 30 days."""

    reads = ("bulkoperation",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": list_of(OperationAnswer)}
    parameters: ClassVar = {"GET": PAGE_PARAMETERS}

    def get(self, request: Request) -> Response:
        """Return the operations, the newest first."""
        tenant_id = self.caller.tenant.pk
        after = cursor_of(request, tenant_id, BulkOperation)
        page = page_of(operations_of(tenant_id), after, limit_of(request))
        return listed(request, tenant_id, page, operation_json)


class OperationProgressEndpoint(ApiEndpoint):
    """One operation."""

    reads = ("bulkoperation",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": OperationAnswer}

    def get(self, request: Request, operation_id: uuid.UUID) -> Response:
        """Return the operation and its progress."""
        row = operations_of(self.caller.tenant.pk).filter(pk=operation_id).first()
        if row is None:
            raise Problem(problems.NOT_FOUND, "There is no operation with this id.")
        return Response(operation_json(row))

"""``/recurring-tasks/{id}/preview``, ``occurrences`` and ``explain``: fire times."""

from __future__ import annotations

import uuid
from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks import conf
from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.lists import PAGE_PARAMETERS, cursor_of, limit_of, listed, page_of
from django_durable_tasks.api.objects import shown_by
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.api.problems import invalid_parameter
from django_durable_tasks.api.schedule_fields import (
    FireTimeAnswer,
    OccurrenceAnswer,
    occurrence_json,
)
from django_durable_tasks.api.task_lists import instant_of
from django_durable_tasks.api.views.recurring_tasks import schedule_of
from django_durable_tasks.models import OccurrenceRecord
from django_durable_tasks.models.occurrence import OccurrenceQuerySet
from django_durable_tasks.rules.tenants.api_keys import ApiScope


class PreviewEndpoint(ApiEndpoint):
    """The next fire times."""

    reads = ("recurringtask",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": list_of(FireTimeAnswer)}
    has_refusals = True
    parameters: ClassVar = {"GET": frozenset({"limit"})}

    def get(self, request: Request, recurring_task_id: uuid.UUID) -> Response:
        """Return the next ``limit`` fire times; none for one that has ended or is paused."""
        row = schedule_of(self.caller, recurring_task_id)
        fires = row.next_fire_times(limit_of(request))
        return Response({"data": [shown_by(FireTimeAnswer, one) for one in fires]})


class OccurrencesEndpoint(ApiEndpoint):
    """The ledger: what happened at each fire time, the latest first."""

    reads = ("recurringtask", "occurrencerecord")
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": list_of(OccurrenceAnswer)}
    parameters: ClassVar = {"GET": PAGE_PARAMETERS}

    def get(self, request: Request, recurring_task_id: uuid.UUID) -> Response:
        """Return the entries of single fire times."""
        tenant_id = self.caller.tenant.pk
        row = schedule_of(self.caller, recurring_task_id)
        ledger: OccurrenceQuerySet = OccurrenceRecord.objects.using(conf.settings().DATABASE)
        rows = ledger.single().filter(recurring_task_id=row.pk)
        order = "unique_fire_time"
        after = cursor_of(request, tenant_id, OccurrenceRecord, order)
        page = page_of(rows, after, limit_of(request), by=order, descending=True)
        return listed(request, tenant_id, page, occurrence_json)


class ExplainEndpoint(ApiEndpoint):
    """Why a fire time has run or not, or what will happen at it."""

    reads = ("recurringtask",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    has_refusals = True
    parameters: ClassVar = {"GET": frozenset({"at"})}

    def get(self, request: Request, recurring_task_id: uuid.UUID) -> Response:
        """Return sentences about the fire time ``at``."""
        row = schedule_of(self.caller, recurring_task_id)
        if "at" not in request.query_params:
            raise invalid_parameter("at", "is required: a time such as 2026-03-07T00:00:00Z")
        at = instant_of(request, "at")
        text = row.explain(at)
        return Response({"at": request.query_params["at"], "explanation": text})

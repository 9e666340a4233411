"""``/tasks/{id}/deliveries``: the requests that a callback has sent, and their answers."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.fields import AnyJson, Body, Flag, Instant, Integer, Seconds, Text
from django_durable_tasks.api.lists import PAGE_PARAMETERS, cursor_of, limit_of, listed, page_of
from django_durable_tasks.api.objects import shown_by
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.api.views.tasks import task_of
from django_durable_tasks.engine.db import tables
from django_durable_tasks.models import DeliveryAttempt
from django_durable_tasks.rules.tenants.api_keys import ApiScope
from django_durable_tasks.rules.tenants.texts import text_for_tenants


class DeliveryAnswer(Body):
    """A request and its answer. Secrets are masked, also for keys with the scope ``secrets``."""

    attempt_number = Integer()
    outcome = Text(help_text="DONE, RETRY, FAILED or STOP.")
    started_at = Instant()
    method = Text()
    url = Text()
    request_headers = AnyJson(help_text="A list of names and values.")
    request_bytes = Integer()
    status = Integer(allow_null=True, help_text="Null if there was no answer.")
    failure = Text(allow_blank=True, help_text="Why there was no answer.")
    reason = Text(allow_blank=True)
    retry_delay = Seconds(allow_null=True, help_text="Seconds until the next attempt.")
    response_headers = AnyJson(help_text="A list of names and values.")
    response_body = Text(allow_blank=True, help_text="The first bytes of the answer.")
    response_truncated = Flag()
    total_seconds = Seconds()


class DeliveriesEndpoint(ApiEndpoint):
    """The requests that a task has sent, the newest first."""

    reads = ("task", "deliveryattempt")
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": list_of(DeliveryAnswer)}
    parameters: ClassVar = {"GET": PAGE_PARAMETERS}

    def get(self, request: Request, task_id: uuid.UUID) -> Response:
        """Return the requests of an HTTP callback or of a notification, with their answers."""
        tenant_id = self.caller.tenant.pk
        task_of(tenant_id, task_id)
        after = cursor_of(request, tenant_id, DeliveryAttempt)
        rows = DeliveryAttempt.objects.using(tables.database())
        page = page_of(rows.filter(task_id=task_id, tenant_id=tenant_id), after, limit_of(request))
        return listed(request, tenant_id, page, _shown)


def _shown(row: DeliveryAttempt) -> dict[str, Any]:
    return {**shown_by(DeliveryAnswer, row), "reason": text_for_tenants(row.reason)}

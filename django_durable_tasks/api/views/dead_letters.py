"""``/dead-letters``: tasks that have failed for good."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks import conf
from django_durable_tasks.api import problems
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.fields import Body, Id, Instant, Integer, Text
from django_durable_tasks.api.lists import (
    PAGE_PARAMETERS,
    cursor_of,
    limit_of,
    listed,
    page_of,
    shown_by,
    tagged,
)
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.api.problems import Problem, invalid_parameter
from django_durable_tasks.api.tasks import error_text
from django_durable_tasks.api.views.object_operations import ObjectAction, Resource
from django_durable_tasks.models import DeadLetter
from django_durable_tasks.models.tasks import DeadLetterQuerySet
from django_durable_tasks.tasks import operator_actions
from django_durable_tasks.tenants.values import ApiScope

_STATES = ("open", "all")


class DeadLetterAnswer(Body):
    """Why a task failed finally, and how the dead letter was closed."""

    dead_letter_id = Integer(source="pk")
    task_id = Id()
    reason = Text()
    fingerprint = Text()
    error_message = Text(allow_blank=True)
    attempts = Integer()
    created_at = Instant()
    resolved_at = Instant(allow_null=True)
    resolution = Text(allow_blank=True)
    resolved_by = Text(allow_blank=True)
    comment = Text(allow_blank=True)


def letters_of(tenant_id: int) -> DeadLetterQuerySet:
    """Return the dead letters of one tenant."""
    found: DeadLetterQuerySet = DeadLetter.objects.using(conf.settings().DATABASE)
    return found.for_tenant(tenant_id)


def letter_json(row: DeadLetter, caller: Caller) -> dict[str, Any]:
    """Return a dead letter as JSON values; its error is masked unless the caller reads secrets."""
    error = error_text(row.error_message, caller.reads_secrets)
    return {**shown_by(DeadLetterAnswer, row), "error_message": error}


def _find(caller: Caller, key: int) -> DeadLetter:
    row = letters_of(caller.tenant.pk).filter(pk=key).first()
    if row is None:
        raise Problem(problems.NOT_FOUND, "There is no dead letter with this id.")
    return row


class DeadLettersEndpoint(ApiEndpoint):
    """The dead letters of the tenant."""

    reads = ("deadletter",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": list_of(DeadLetterAnswer)}
    parameters: ClassVar = {"GET": PAGE_PARAMETERS | {"state"}}

    def get(self, request: Request) -> Response:
        """Return the open dead letters, or all with ``state=all``, the newest first."""
        state = request.query_params.get("state", _STATES[0])
        if state not in _STATES:
            raise invalid_parameter("state", f"is not one of {', '.join(_STATES)}", "choice")
        tenant_id = self.caller.tenant.pk
        rows = letters_of(tenant_id)
        rows = rows.open() if state == "open" else rows
        page = page_of(rows, cursor_of(request, tenant_id, DeadLetter), limit_of(request))
        return listed(request, tenant_id, page, lambda row: letter_json(row, self.caller))


class DeadLetterEndpoint(ApiEndpoint):
    """One dead letter."""

    reads = ("deadletter",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": DeadLetterAnswer}

    def get(self, request: Request, letter_id: int) -> Response:
        """Return the dead letter."""
        row = _find(self.caller, letter_id)
        return tagged(request, row.pk, letter_json(row, self.caller))


RESOURCE = Resource(
    name="dead-letter",
    reads="deadletter",
    find=_find,
    show=letter_json,
    answer=DeadLetterAnswer,
    version=lambda row: int(row.pk),
    subject=lambda row: letters_of(row.tenant_id).filter(pk=row.pk),
)
ACTIONS = (
    ObjectAction(
        path="replay",
        scope=ApiScope.OPERATE,
        operations=(operator_actions.replay_letters,),
    ),
    ObjectAction(
        path="discard", scope=ApiScope.OPERATE, operations=(operator_actions.discard_letters,)
    ),
)

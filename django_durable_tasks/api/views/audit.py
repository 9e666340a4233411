"""``/audit``: who changed what in the tenant."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from django.db.models import Q
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks import conf
from django_durable_tasks.api.authentication import KEY_ACTOR
from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.fields import Body, Instant, Integer, OneOf, Text
from django_durable_tasks.api.lists import PAGE_PARAMETERS, cursor_of, limit_of, listed, page_of
from django_durable_tasks.api.objects import shown_by
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.api.problems import invalid_parameter
from django_durable_tasks.models import AuditEntry
from django_durable_tasks.models.audit_entry import AuditEntryQuerySet
from django_durable_tasks.rules.audit import OBJECT_TYPES, AuditSource
from django_durable_tasks.rules.tenants.api_keys import ApiScope

_LONGEST = 250
_FILTERS = ("operation", "actor", "object_id")
OPERATOR = "operator"
"""Stands for the name of an operator, whatever it is."""
_NAMES = frozenset({"status_by", "updated_by", "set_by", "created_by"})
_REASONS = frozenset({"reason", "status_reason"})
_OF_STAFF = ("tenant.assign_staff", "tenant.unassign_staff")


class AuditAnswer(Body):
    """A write: who changed what. ``object_id`` is empty if it changed several objects."""

    audit_id = Integer(source="pk")
    at = Instant()
    source = OneOf(choices=[one.value for one in AuditSource])  # type: ignore[assignment]
    actor = Text(allow_blank=True)
    operation = Text()
    object_type = OneOf(choices=list(OBJECT_TYPES))
    object_id = Text(allow_blank=True)
    count = Integer()
    object_ids = serializers.ListField(child=Text())
    before = serializers.DictField()
    after = serializers.DictField()
    reason = Text(allow_blank=True)
    address = Text(allow_null=True)


def entries_of(tenant_id: int) -> AuditEntryQuerySet:
    """Return the entries of one tenant."""
    found: AuditEntryQuerySet = AuditEntry.objects.using(conf.settings().DATABASE)
    return found.for_tenant(tenant_id)


def entry_json(row: AuditEntry) -> dict[str, Any]:
    """Return an entry as JSON values for a key of the tenant. The names, reasons and addresses of
    operators are left out, because operators write them for each other.
    """
    found = shown_by(AuditAnswer, row)
    if _is_own(row):
        return found
    hidden = {
        side: {
            name: OPERATOR if name in _NAMES and value else value
            for name, value in found[side].items()
            if name not in _REASONS
        }
        for side in ("before", "after")
    }
    return {**found, **hidden, "actor": OPERATOR, "reason": "", "address": None}


def _is_own(row: AuditEntry) -> bool:
    return row.source == AuditSource.API and row.actor.startswith(KEY_ACTOR)


class AuditEndpoint(ApiEndpoint):
    """The audit entries of the tenant."""

    reads = ("auditentry",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": list_of(AuditAnswer)}
    parameters: ClassVar = {"GET": PAGE_PARAMETERS | {*_FILTERS, "object_type"}}

    def get(self, request: Request) -> Response:
        """Return the entries that match the filters, the newest first."""
        tenant_id = self.caller.tenant.pk
        rows, filters = entries_of(tenant_id), _filters_of(request)
        if self.caller.user is not None:
            found = rows.filter(**filters)
            show: Callable[[AuditEntry], dict[str, Any]] = partial(shown_by, AuditAnswer)
        else:
            found = _for_keys(rows.exclude(operation__in=_OF_STAFF), filters)
            show = entry_json
        page = page_of(found, cursor_of(request, tenant_id, AuditEntry), limit_of(request))
        return listed(request, tenant_id, page, show)


def _for_keys(rows: AuditEntryQuerySet, filters: dict[str, Any]) -> AuditEntryQuerySet:
    """Apply the filters, of which ``actor`` must not reveal the names of operators."""
    own = Q(source=AuditSource.API, actor__startswith=KEY_ACTOR)
    actor = filters.pop("actor", None)
    if actor == OPERATOR:
        rows = rows.exclude(own)
    elif actor is not None:
        rows = rows.filter(own, actor=actor)
    return rows.filter(**filters)


def _filters_of(request: Request) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _FILTERS:
        if name in request.query_params:
            value = request.query_params[name]
            if not 0 < len(value) <= _LONGEST or "\x00" in value:
                raise invalid_parameter(name, f"give 1 to {_LONGEST} characters", "range")
            found[name] = value
    if "object_type" in request.query_params:
        kind = request.query_params["object_type"]
        if kind not in OBJECT_TYPES:
            raise invalid_parameter(
                "object_type", f"is not one of {', '.join(OBJECT_TYPES)}", "choice"
            )
        found["object_type"] = kind
    elif "object_id" in found:
        found["object_type__in"] = OBJECT_TYPES
    return found

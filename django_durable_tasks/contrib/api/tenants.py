"""``/tenants``, ``/key``, ``/quota`` and ``/audit``."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks import conf
from django_durable_tasks.audit import OBJECT_TYPES, about
from django_durable_tasks.choices import AuditSource
from django_durable_tasks.contrib.api import fields
from django_durable_tasks.contrib.api.authentication import KEY_ACTOR, Caller
from django_durable_tasks.contrib.api.models import ApiKey
from django_durable_tasks.contrib.api.quotas import QuotaUsage, usage
from django_durable_tasks.contrib.api.serializers import Answer, list_of
from django_durable_tasks.contrib.api.views import ApiViewSet, endpoint
from django_durable_tasks.models import AuditEntry, Tenant


class TenantAnswer(Answer):
    """A tenant. ``slug`` is the value of the header ``Durable-Tenant``."""

    class Meta:
        model = Tenant
        hidden = ()


class TenantViewSet(ApiViewSet):
    """The tenant of the key, or the tenants that a staff user may choose."""

    answer = TenantAnswer
    order = "slug"

    @endpoint(is_list=True)
    def list(self, request: Request) -> Response:
        """Return the tenants, by slug."""
        caller, rows = self.caller, Tenant.objects.using(conf.settings().DATABASE)
        if caller.user is None:
            rows = rows.filter(pk=caller.tenant.pk)
        elif caller.tenants is not None:
            rows = rows.filter(pk__in=caller.tenants)
        return self.page(rows)


class KeyAnswer(Answer):
    """The key that sends the request; of a staff user, only the name and the scopes are known."""

    scopes = serializers.ListField(child=fields.Text())
    prefix = fields.Text(allow_blank=True)
    created_at = fields.Instant(allow_null=True)

    class Meta:
        model = ApiKey
        hidden = ("identifier", "mode", "created_by", "revoked_by", "reason")


class KeyViewSet(ApiViewSet):
    """Who sends the request, and what it may do."""

    singular, plural = "Key", ""
    answer = KeyAnswer
    reads = ("tenant",)

    @endpoint()
    def list(self, request: Request) -> Response:
        """Return the scopes, the expiry and the last use of the own key."""
        caller = self.caller
        if caller.user is None:
            keys = ApiKey.objects.using(conf.settings().DATABASE)
            return Response(KeyAnswer.shown(keys.get(pk=request.auth.pk)))
        user = ApiKey(name=caller.name, scopes=sorted(caller.scopes))
        shown = KeyAnswer.shown(user, without=("prefix", "created_at"))
        return Response({**shown, "prefix": "", "created_at": None})


class QuotaAnswer(Answer):
    """A quota. ``limit`` is null without a limit, and ``used`` if it is not counted."""

    name = fields.Text()
    limit = fields.AnyJson()
    used = fields.Integer(allow_null=True)


class QuotaViewSet(ApiViewSet):
    """The quotas of the tenant. Ended tasks do not count."""

    singular = "Quota"
    reads = ("durable_tasks_api.tenantquota",)

    @endpoint(answer=list_of(QuotaAnswer))
    def list(self, request: Request) -> Response:
        """Return each quota with its limit and what is used of it."""
        rows = usage(self.caller.tenant)
        if self.rate is not None:
            spent = self.rate.rate.number - self.rate.left
            rows.append(QuotaUsage("requests", str(self.rate.rate), spent))
        return self.whole([QuotaAnswer.shown(row) for row in rows])


# Who changed what in the tenant.


# Characters of the column with the ids of objects.
_LONGEST = 250
OPERATOR = "operator"
"""Stands for the name of an operator, whatever it is."""
_NAMES = frozenset({"status_by", "updated_by", "set_by", "created_by"})
_REASONS = frozenset({"reason", "status_reason"})
_OF_STAFF = ("tenant.assign_staff", "tenant.unassign_staff")
_OWN = Q(source=AuditSource.API, actor__startswith=KEY_ACTOR)


class AuditAnswer(Answer):
    """A write: who changed what. ``object_id`` is empty if it changed several objects."""

    audit_id = fields.Integer(source="pk")
    object_type = fields.OneOf(choices=list(OBJECT_TYPES))
    object_ids = serializers.ListField(child=fields.Text())
    before = fields.SecretObject()
    after = fields.SecretObject()

    class Meta:
        model = AuditEntry
        hidden = ()


def _entry(about: str) -> fields.Text:
    return fields.Text(required=False, max_length=_LONGEST, help_text=f"Only entries {about}.")


class AuditViewSet(ApiViewSet):
    """The audit entries of the tenant."""

    plural = "AuditEntries"
    answer = AuditAnswer

    @endpoint(
        is_list=True,
        filters={
            "operation": _entry("of this operation, such as tasks.cancel"),
            "actor": _entry("of this key or user"),
            "object_id": _entry("about the object with this id or name"),
            "object_type": fields.OneOf(
                choices=list(OBJECT_TYPES),
                required=False,
                help_text="Only entries about objects of this type.",
            ),
        },
    )
    def list(self, request: Request) -> Response:
        """Return the entries that match the filters, the newest first."""
        filters, rows = self.query(), self.rows()
        if "object_id" in filters:
            rows = rows.filter(about(filters.pop("object_id"), self.tenant_id))
        if self.caller.user is None:
            # `actor` must not reveal the names of operators.
            rows = rows.exclude(operation__in=_OF_STAFF)
            actor = filters.pop("actor", None)
            if actor == OPERATOR:
                rows = rows.exclude(_OWN)
            elif actor is not None:
                rows = rows.filter(_OWN, actor=actor)
        return self.page(rows.filter(**filters))

    def show(self, row: AuditEntry, caller: Caller) -> dict[str, Any]:
        """Return an entry. For a key, the names, reasons and addresses of operators are left out,
        because operators write them for each other.
        """
        values = super().show(row, caller)
        is_own = row.source == AuditSource.API and row.actor.startswith(KEY_ACTOR)
        if caller.user is not None or is_own:
            return values
        hidden = {
            side: {
                name: OPERATOR if name in _NAMES and value else value
                for name, value in values[side].items()
                if name not in _REASONS
            }
            for side in ("before", "after")
        }
        return {**values, **hidden, "actor": OPERATOR, "reason": "", "address": None}

"""``/tenants``, ``/quota``, ``/audit`` and ``/signing-secret``."""

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
from django_durable_tasks.api.fields import AnyJson, Body, Instant, Integer, OneOf, Text
from django_durable_tasks.api.lists import (
    PAGE_PARAMETERS,
    cursor_of,
    limit_of,
    listed,
    page_of,
    shown_by,
)
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.api.problems import invalid_parameter
from django_durable_tasks.api.views.notification_settings import find_setting
from django_durable_tasks.api.writes import Answer, WritingEndpoint
from django_durable_tasks.audit import OBJECT_TYPES
from django_durable_tasks.choices import AuditSource
from django_durable_tasks.exceptions import InvalidOption, InvalidTarget
from django_durable_tasks.models import AuditEntry, Tenant
from django_durable_tasks.models.audit import AuditEntryQuerySet
from django_durable_tasks.notifications import signing_secrets
from django_durable_tasks.tenants.quotas import QuotaUsage, usage
from django_durable_tasks.tenants.values import ApiScope

# ``/tenants``: the tenants for which the caller may act.


class TenantAnswer(Body):
    """A tenant. ``slug`` is the value of the header ``Durable-Tenant``."""

    slug = Text()
    name = Text(allow_blank=True)


class TenantsEndpoint(ApiEndpoint):
    """The tenant of the key, or the tenants that a staff user may choose."""

    scopes: ClassVar = {"GET": ApiScope.READ}
    reads = ("tenant",)
    answers: ClassVar = {"GET": list_of(TenantAnswer)}
    parameters: ClassVar = {"GET": PAGE_PARAMETERS}

    def get(self, request: Request) -> Response:
        """Return the tenants, by slug."""
        caller, rows = self.caller, Tenant.objects.using(conf.settings().DATABASE)
        if caller.user is None:
            rows = rows.filter(pk=caller.tenant.pk)
        elif caller.tenants is not None:
            rows = rows.filter(pk__in=caller.tenants)
        after = cursor_of(request, caller.tenant.pk, Tenant, "slug")
        page = page_of(rows, after, limit_of(request), by="slug")
        return listed(request, caller.tenant.pk, page, lambda row: shown_by(TenantAnswer, row))


# ``/quota``: the quotas of the tenant and their usage.


class QuotaAnswer(Body):
    """A quota. ``limit`` is null without a limit, and ``used`` if it is not counted."""

    name = Text()
    limit = AnyJson()
    used = Integer(allow_null=True)


class QuotaEndpoint(ApiEndpoint):
    """The quotas of the tenant. Ended tasks do not count."""

    reads = ("tenantquota",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": list_of(QuotaAnswer)}

    def get(self, request: Request) -> Response:
        """Return each quota with its limit and what is used of it."""
        rows = usage(self.caller.tenant)
        if self.rate is not None:
            spent = self.rate.rate.number - self.rate.left
            rows.append(QuotaUsage("requests", str(self.rate.rate), spent))
        data = [shown_by(QuotaAnswer, row) for row in rows]
        return Response({"data": data, "next_cursor": None, "prev_cursor": None, "has_more": False})


# ``/audit``: who changed what in the tenant.


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


# ``/signing-secret`` and ``/notification-settings/{id}/signing-secret``: what the tenant's server
# needs to check the signatures of our requests.


class SigningSecretAnswer(Body):
    """The secrets of an endpoint."""

    origin = Text(allow_null=True, help_text="Null if the messages are e-mails.")
    endpoint = Text(help_text="The name of the endpoint; by default its origin.")
    secrets = serializers.ListField(
        child=Text(),
        help_text=(
            "`whsec_` and base64, as Standard Webhooks defines it, the current one first. During a"
            " rotation there are several, and one matching signature is enough. Empty if requests"
            " are not signed: ask the operator for a signing key."
        ),
    )


class SigningSecretEndpoint(WritingEndpoint):
    """The secrets with which callbacks of the tenant are signed. Each read has an audit entry."""

    reads = ("task_arguments",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    parameters: ClassVar = {"GET": frozenset({"url", "endpoint"})}
    answers: ClassVar = {"GET": SigningSecretAnswer}

    def get(self, request: Request) -> Response:
        """Return the secrets with which a server checks `webhook-signature` of the callbacks to
        this URL. The key needs the scope `secrets` too.
        """
        self.require_scope(ApiScope.SECRETS)
        url = request.query_params.get("url")
        if url is None:
            raise invalid_parameter("url", "is required: the URL of the callbacks", "required")
        caller = self.caller

        def act() -> Answer:
            found = signing_secrets.secrets_of_callbacks(
                caller.tenant.pk, url, request.query_params.get("endpoint"), by=caller.name
            )
            return _answer(found)

        try:
            return self.write(request, act)
        except InvalidTarget as refused:
            raise invalid_parameter("url", str(refused)) from None
        except InvalidOption as refused:
            raise invalid_parameter("endpoint", str(refused)) from None


class SettingSecretEndpoint(WritingEndpoint):
    """The secrets with which messages of a notification setting are signed. Each read has an audit
    entry.
    """

    reads = ("notificationsetting", "task_arguments")
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": SigningSecretAnswer}

    def get(self, request: Request, notification_setting_id: int) -> Response:
        """Return the secrets with which a server checks `webhook-signature` of the messages of this
        setting. The key needs the scope `secrets` too.
        """
        self.require_scope(ApiScope.SECRETS)
        caller = self.caller

        def act() -> Answer:
            row = find_setting(caller, notification_setting_id)
            return _answer(signing_secrets.secrets_of_setting(row, by=caller.name))

        return self.write(request, act)


def _answer(found: signing_secrets.SigningSecrets) -> Answer:
    return Answer(200, shown_by(SigningSecretAnswer, found))

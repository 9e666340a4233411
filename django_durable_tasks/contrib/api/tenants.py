"""``/tenants``, ``/key``, ``/quota``, ``/audit``, ``/signing-secret`` and
``/notification-settings``.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks import conf
from django_durable_tasks.audit import OBJECT_TYPES
from django_durable_tasks.callbacks import signing_secrets
from django_durable_tasks.choices import AuditSource
from django_durable_tasks.contrib.api import fields
from django_durable_tasks.contrib.api.authentication import KEY_ACTOR, Caller
from django_durable_tasks.contrib.api.problems import invalid_parameter
from django_durable_tasks.contrib.api.serializers import Answer, list_of
from django_durable_tasks.contrib.api.views import ApiViewSet, endpoint
from django_durable_tasks.exceptions import InvalidOption, InvalidTarget
from django_durable_tasks.models import ApiKey, AuditEntry, Tenant
from django_durable_tasks.tenants.idempotent_requests import StoredAnswer
from django_durable_tasks.tenants.quotas import QuotaUsage, usage
from django_durable_tasks.tenants.values import ApiScope


class TenantAnswer(Answer):
    """A tenant. ``slug`` is the value of the header ``Durable-Tenant``."""

    class Meta:
        model = Tenant
        hidden = ("created_at",)


class TenantViewSet(ApiViewSet):
    """The tenant of the key, or the tenants that a staff user may choose."""

    plural = "Tenants"
    answer = TenantAnswer
    reads = ("tenant",)
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
        hidden = ("identifier", "mode", "digest", "created_by", "revoked_by", "reason")


class KeyViewSet(ApiViewSet):
    """Who sends the request, and what it may do."""

    singular = "Key"
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
    reads = ("tenantquota",)

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
    before = serializers.DictField()
    after = serializers.DictField()

    class Meta:
        model = AuditEntry
        hidden = ()


def _entry(about: str) -> fields.Text:
    return fields.Text(required=False, max_length=_LONGEST, help_text=f"Only entries {about}.")


class AuditViewSet(ApiViewSet):
    """The audit entries of the tenant."""

    plural = "AuditEntries"
    answer = AuditAnswer
    reads = ("auditentry",)

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
        if "object_id" in filters and "object_type" not in filters:
            filters["object_type__in"] = OBJECT_TYPES
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
        found = super().show(row, caller)
        is_own = row.source == AuditSource.API and row.actor.startswith(KEY_ACTOR)
        if caller.user is not None or is_own:
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


# What the tenant's server needs to check the signatures of our requests.


class SigningSecretAnswer(Answer):
    """The secrets of an endpoint."""

    origin = fields.Text(allow_null=True, help_text="Null if the messages are e-mails.")
    endpoint = fields.Text(help_text="The name of the endpoint; by default its origin.")
    secrets = serializers.ListField(
        child=fields.Text(),
        help_text=(
            "`whsec_` and base64, as Standard Webhooks defines it, the current one first. During a"
            " rotation there are several, and one matching signature is enough. Empty if requests"
            " are not signed: ask the operator for a signing key."
        ),
    )


_OF_CALLBACKS = {
    "url": fields.Text(
        required=True,
        allow_blank=True,
        help_text="the URL of the callbacks, of which only the origin has an effect",
    ),
    "endpoint": fields.Text(
        required=False,
        allow_blank=True,
        help_text="The `endpoint` of the callbacks, if they have one.",
    ),
}


class SigningSecretViewSet(ApiViewSet):
    """The secrets with which callbacks of the tenant are signed. Each read has an audit entry."""

    singular = "SigningSecret"
    reads = ("task_arguments",)

    @endpoint(answer=SigningSecretAnswer, filters=_OF_CALLBACKS)
    def list(self, request: Request) -> Response:
        """Return the secrets with which a server checks `webhook-signature` of the callbacks to
        this URL. The key needs the scope `secrets` too.
        """
        self.require_scope(ApiScope.SECRETS)
        given, caller = self.query(), self.caller

        def act() -> StoredAnswer:
            found = signing_secrets.secrets_of_callbacks(
                caller.tenant.pk, given["url"], given.get("endpoint"), by=caller.name
            )
            return StoredAnswer(200, SigningSecretAnswer.shown(found))

        try:
            return self.write(act)
        except InvalidTarget as refused:
            raise invalid_parameter("url", str(refused)) from None
        except InvalidOption as refused:
            raise invalid_parameter("endpoint", str(refused)) from None

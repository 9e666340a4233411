"""Tenants, the owners of tasks, and the audit entries that each of them sees."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from django.core.validators import validate_slug
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.choices import DEFAULT_TENANT_ID, AuditSource
from django_durable_tasks.models.fields import (
    UNCONSTRAINED,
    ExactCharField,
    InstantField,
    StatementTime,
    choice_field,
)
from django_durable_tasks.models.guarded import GuardedModel, TenantQuerySet

# Tenant: the owner of tasks. A migration creates the default tenant; every task, attempt and dead
# letter has one.


class Tenant(models.Model):
    """One customer of a multi-tenant project; the row with id 1 is the default."""

    id = models.BigAutoField(primary_key=True)
    slug = ExactCharField(_("slug"), max_length=100, unique=True, validators=[validate_slug])
    name = ExactCharField(_("name"), max_length=200, blank=True)
    created_at = InstantField(_("created at"), auto_now_add=True)

    class Meta:
        db_table = "durable_tasks_tenant"
        verbose_name = _("tenant")
        verbose_name_plural = _("tenants")
        ordering: ClassVar = ["slug"]

    def __str__(self) -> str:
        return self.name or self.slug


def tenant_key() -> models.ForeignKey[Tenant, Tenant]:
    """Return the field with the tenant of a row."""
    return models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        db_default=DEFAULT_TENANT_ID,  # type: ignore[arg-type]
        related_name="+",
        **UNCONSTRAINED,
    )


# AuditEntry: one row per write of a person, a program or a command.


class AuditEntryQuerySet(TenantQuerySet["AuditEntry"]):
    """The queryset of audit entries."""

    def of_object(self, object_type: str, object_id: Any) -> Self:
        """Entries about this object alone."""
        return self.filter(object_type=object_type, object_id=str(object_id))


class AuditEntry(GuardedModel):
    """Who changed what, when, why and from where. Secrets are masked.

    An entry is about one object, whose id is ``object_id``, or about a set: then ``object_id`` is
    empty, ``count`` is the size of the set and ``object_ids`` contains its first ids. ``before``
    and ``after`` contain the changed fields only; those of a set the number of tasks per status.
    """

    instead: ClassVar[str] = (
        "Each operation writes its entry, and a scheduler deletes old ones (RETENTION)."
    )

    id = models.BigAutoField(primary_key=True)
    at = InstantField(_("at"), db_default=StatementTime())
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        null=True,
        related_name="+",
        help_text=_("Empty for objects of the whole installation, such as limits."),
        **UNCONSTRAINED,
    )
    source = choice_field(_("source"), AuditSource, 8)
    actor = ExactCharField(_("actor"), max_length=200, blank=True, default="")
    operation = ExactCharField(_("operation"), max_length=60)
    object_type = ExactCharField(_("object type"), max_length=20)
    object_id = ExactCharField(_("object id"), max_length=250, blank=True, default="")
    count = models.IntegerField(_("number of objects"), default=1)
    object_ids = models.JSONField(_("object ids"), default=list)
    before = models.JSONField(_("before"), default=dict)
    after = models.JSONField(_("after"), default=dict)
    reason = ExactCharField(_("reason"), max_length=500, blank=True, default="")
    address = models.GenericIPAddressField(_("IP address"), null=True)

    objects = AuditEntryQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_audit_entry"
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            models.Index(fields=["tenant", "id"], name="durable_audit_tenant"),
            models.Index(fields=["tenant", "operation", "id"], name="durable_audit_tenant_op"),
            models.Index(fields=["tenant", "actor", "id"], name="durable_audit_tenant_actor"),
            models.Index(fields=["operation", "id"], name="durable_audit_operation"),
            models.Index(fields=["actor", "id"], name="durable_audit_actor"),
            models.Index(fields=["object_type", "object_id", "id"], name="durable_audit_object"),
        ]

    def __str__(self) -> str:
        return f"{self.operation} by {self.actor or self.source}"

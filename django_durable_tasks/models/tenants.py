"""Tenants, the owners of tasks."""

from __future__ import annotations

from typing import ClassVar

from django.core.validators import validate_slug
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.choices import DEFAULT_TENANT_ID
from django_durable_tasks.models.fields import ExactCharField, InstantField

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
    """Return the field with the tenant of a row.

    It has no constraint, so that no INSERT locks the row of the tenant, and no index of its own.
    """
    return models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        db_default=DEFAULT_TENANT_ID,  # type: ignore[arg-type]
        db_index=False,
        db_constraint=False,
        related_name="+",
    )

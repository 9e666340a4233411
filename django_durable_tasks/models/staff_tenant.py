"""StaffTenant: a tenant to which a staff user is limited."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet


class StaffTenantQuerySet(GuardedQuerySet["StaffTenant"]):
    """The queryset of assignments."""


class StaffTenant(GuardedModel):
    """A user with at least one row sees and changes only the tenants of its rows.

    A row without a tenant keeps a user limited whose assignment was removed, or whose tenant was
    deleted. Only deleting all rows of a user, on request, lets the user see all tenants.

    ``user_key`` is the primary key of the user as text and no foreign key, because the users may be
    in another database than the tasks.
    """

    instead: ClassVar[str] = (
        "Use `manage.py durable staff` or the page of the tenant in the admin, which call"
        " staff.assign(...) and staff.unassign(...)."
    )

    id = models.BigAutoField(primary_key=True)
    user_key = ExactCharField(max_length=100)
    username = ExactCharField(_("user name"), max_length=200)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant", models.SET_NULL, null=True, blank=True, related_name="staff"
    )
    assigned_by = ExactCharField(_("assigned by"), max_length=200, blank=True, db_default="")
    reason = ExactCharField(_("reason"), max_length=500, blank=True, db_default="")

    objects = StaffTenantQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_staff_tenant"
        verbose_name = _("staff user of a tenant")
        verbose_name_plural = _("staff users of tenants")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user_key", "tenant"], name="durable_staff_tenant")
        ]

    def __str__(self) -> str:
        return self.username

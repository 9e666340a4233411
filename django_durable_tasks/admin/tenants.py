"""The admin of tenants. They are added and renamed here and never deleted, because tasks refer to
them.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import display, filters
from django_durable_tasks.admin.fields import OPENED, EditModelForm
from django_durable_tasks.admin.readonly import DurableModelAdmin
from django_durable_tasks.audit import recorded
from django_durable_tasks.models import Tenant


class TenantForm(EditModelForm):
    """A tenant; it has no revision, so its values serve as its version."""

    def version_of(self, row: Any) -> str:
        """Return the values that can be changed."""
        return f"{row.slug} {row.name}"


@admin.register(Tenant)
class TenantAdmin(DurableModelAdmin):
    """Tenants. ``contrib.api`` registers one with quotas and staff users in its place."""

    list_display = (
        *("slug", "name", "created_at"),
        display.column(
            _("work"), lambda row: display.link(display.list_of("task", tenant=row.pk), _("tasks"))
        ),
    )
    sortable_by = ("slug", "name")
    search_fields = ("slug", "name")
    form = TenantForm
    tenant_path = "pk"

    def sections(self, request: HttpRequest, obj: Any) -> Any:
        fields = ("slug", "name", *((OPENED,) if obj is not None else ()))
        return [(None, {"fields": fields})]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request) and not filters.is_limited(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Tenant, form: Any, change: bool) -> None:
        """Save the tenant with its audit entry."""
        with recorded("tenant.save") as entry:
            rows = Tenant.objects.using(conf.settings().DATABASE).filter(pk=obj.pk)
            before: dict[str, Any] = dict(rows.values("slug", "name").first() or {})
            super().save_model(request, obj, form, change)
            after = {"slug": obj.slug, "name": obj.name}
            entry.changed("tenant", obj.pk, before, after, obj.pk)

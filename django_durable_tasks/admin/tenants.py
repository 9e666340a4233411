"""The admin of tenants. They are added and renamed here and never deleted, because tasks refer to
them.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin import display
from django_durable_tasks.admin.edit_conflicts import OPENED, EditModelForm
from django_durable_tasks.admin.readonly import ScreenAdmin
from django_durable_tasks.models import Tenant


class TenantForm(EditModelForm):
    """A tenant; it has no revision, so its values serve as its version."""

    def version_of(self, row: Any) -> str:
        """Return the values that can be changed."""
        return f"{row.slug} {row.name}"


@admin.register(Tenant)
class TenantAdmin(ScreenAdmin):
    """Tenants."""

    list_display = ("slug", "name", "created_at", "work")
    sortable_by = ("slug", "name")
    search_fields = ("slug", "name")
    form = TenantForm

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("slug", "name", *((OPENED,) if obj is not None else ()))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @admin.display(description=_("work"))
    def work(self, tenant: Tenant) -> SafeString:
        """Link the tenant's tasks."""
        return display.link(display.list_of("task", tenant=tenant.pk), _("tasks"))

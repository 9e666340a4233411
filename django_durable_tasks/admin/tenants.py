"""The admin of tenants. They are added and renamed here and never deleted, because tasks refer to
them.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import display
from django_durable_tasks.admin.actions import who
from django_durable_tasks.admin.edit_conflicts import OPENED, EditModelForm
from django_durable_tasks.admin.readonly import ScreenAdmin
from django_durable_tasks.engine.audit.recorder import recorded
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import DEFAULT_TENANT_ID, Tenant
from django_durable_tasks.operations.operation import Operation
from django_durable_tasks.operations.tenants import SET_QUOTAS
from django_durable_tasks.rules.tenants.quotas import NUMBERS, REQUESTS, quotas_of

QUOTAS = (*NUMBERS, REQUESTS)


def _number(operation: Operation, name: str) -> forms.IntegerField:
    """Return the form field of a quota, with the texts of the registry."""
    argument = next(one for one in operation.fields if one.name == name)
    return forms.IntegerField(
        required=False, min_value=0, label=argument.label, help_text=argument.help
    )


class TenantForm(EditModelForm):
    """A tenant with its quotas; it has no revision, so its values serve as its version."""

    open_tasks = _number(SET_QUOTAS, "open_tasks")
    recurring_tasks = _number(SET_QUOTAS, "recurring_tasks")
    payload_bytes = _number(SET_QUOTAS, "payload_bytes")
    requests = forms.CharField(
        required=False, max_length=20, label=_("Requests"), help_text=_("600/m, 10/s.")
    )
    reason = forms.CharField(required=False, max_length=500, label=_("Reason"))

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        row = getattr(self.instance, "quota", None)
        for name in QUOTAS if row is not None else ():
            if name in self.fields:
                self.fields[name].initial = getattr(row, name)

    def version_of(self, row: Any) -> str:
        """Return the values that can be changed."""
        quota = getattr(row, "quota", None)
        values = [getattr(quota, name) for name in QUOTAS] if quota is not None else []
        return f"{row.slug} {row.name} {values}"

    def clean(self) -> dict[str, Any]:
        """Check the quotas."""
        found: dict[str, Any] = super().clean() or {}
        try:
            quotas_of({name: found.get(name) or None for name in QUOTAS if name in self.fields})
        except InvalidOption as refused:
            raise ValidationError(str(refused)) from None
        return found


@admin.register(Tenant)
class TenantAdmin(ScreenAdmin):
    """Tenants."""

    list_display = ("slug", "name", "created_at", "work")
    sortable_by = ("slug", "name")
    search_fields = ("slug", "name")
    list_select_related = ("quota",)
    form = TenantForm
    operations = (SET_QUOTAS,)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        own = ("slug", "name", *((OPENED,) if obj is not None else ()))
        shown: list[Any] = [(None, {"fields": own})]
        if SET_QUOTAS.is_permitted(request.user):
            names = (REQUESTS,) if obj is not None and obj.pk == DEFAULT_TENANT_ID else QUOTAS
            text = _("Empty: the value of DURABLE_TASKS['QUOTAS']. %s") % SET_QUOTAS.help
            fields = {"fields": (*names, "reason"), "description": text}
            shown.append((_("Quotas of the HTTP API"), fields))
        return shown

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Set the quotas after the tenant is saved, if they were changed."""
        super().save_related(request, form, formsets, change)
        changed = set(form.changed_data) & set(QUOTAS)
        if changed and SET_QUOTAS.is_permitted(request.user):
            data = form.cleaned_data
            values = {name: data.get(name) or None for name in QUOTAS}
            if data.get("reason") is None:
                data["reason"] = ""
            SET_QUOTAS.perform(
                form.instance, by=who(request), reason=data["reason"], reset=True, **values
            )

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Tenant, form: Any, change: bool) -> None:
        """Save the tenant with its audit entry."""
        with recorded("tenant.save", by=who(request)) as entry:
            rows = Tenant.objects.using(conf.settings().DATABASE).filter(pk=obj.pk)
            before: dict[str, Any] = dict(rows.values("slug", "name").first() or {})
            super().save_model(request, obj, form, change)
            after = {"slug": obj.slug, "name": obj.name}
            entry.changed("tenant", obj.pk, before, after, obj.pk)

    @admin.display(description=_("work"))
    def work(self, tenant: Tenant) -> SafeString:
        """Link the tenant's tasks."""
        return display.link(display.list_of("task", tenant=tenant.pk), _("tasks"))

"""The admin of what the HTTP API knows of tenants: quotas, staff users and API keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.utils.html import escape
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin import display, filters, installation
from django_durable_tasks.admin.actions import action_of, form_fields, who
from django_durable_tasks.admin.readonly import DurableModelAdmin
from django_durable_tasks.contrib.api import access, quotas
from django_durable_tasks.contrib.api.access import SCOPE_HELP, ApiScope
from django_durable_tasks.contrib.api.models import ApiKey, StaffTenant
from django_durable_tasks.contrib.api.quotas import NUMBERS, REQUESTS, quotas_of
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import DEFAULT_TENANT_ID, Tenant
from django_durable_tasks.store.clock import estimated_now

# The admin of tenants with their quotas and staff users.


QUOTAS = (*NUMBERS, REQUESTS)
_SHOWN = 20
"""The number of users who see all tenants that a page names."""


_QuotaFields: Any = type(
    "QuotaFields",
    (forms.Form,),
    form_fields([one for one in quotas.set_quotas.fields if one.name in QUOTAS]),
)


class TenantForm(_QuotaFields, installation.TenantForm):
    """A tenant with its quotas and staff users."""

    staff = forms.CharField(
        required=False,
        label=_("Staff users"),
        widget=forms.Textarea(attrs={"rows": 3, "cols": 40, "spellcheck": "false"}),
        help_text=_("One user name per line. %s") % access.assign_staff.help,
    )
    all_tenants = forms.BooleanField(
        required=False,
        label=access.unassign_staff.fields[1].label,
        help_text=_(
            "Otherwise they stay limited to their other tenants; without any, they see none."
        ),
    )
    reason = forms.CharField(required=False, max_length=500, label=_("Reason"))

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        row = getattr(self.instance, "quota", None)
        for name in QUOTAS if row is not None else ():
            if name in self.fields:
                self.fields[name].initial = getattr(row, name)
        if "staff" in self.fields and self.instance.pk:
            self.fields["staff"].initial = "\n".join(_staff_of(self.instance))

    def version_of(self, row: Any) -> str:
        """Return the values that can be changed."""
        quota = getattr(row, "quota", None)
        values = [getattr(quota, name) for name in QUOTAS] if quota is not None else []
        return f"{super().version_of(row)} {values} {_staff_of(row)}"

    def clean(self) -> dict[str, Any]:
        """Check the quotas."""
        cleaned_data: dict[str, Any] = super().clean() or {}
        try:
            quotas_of(
                {name: cleaned_data.get(name) or None for name in QUOTAS if name in self.fields}
            )
        except InvalidOption as refused:
            raise ValidationError(str(refused)) from None
        return cleaned_data


def _staff_of(tenant: Tenant) -> list[str]:
    users = StaffTenant.objects.filter(tenant=tenant).order_by("username")
    return list(users.values_list("username", flat=True))


class TenantAdmin(installation.TenantAdmin):
    """Tenants with their quotas and staff users."""

    list_select_related = ("quota",)
    form = TenantForm
    operations = (quotas.set_quotas, access.assign_staff, access.unassign_staff)

    def sections(self, request: HttpRequest, obj: Any) -> Any:
        shown: list[Any] = super().sections(request, obj)
        if self._may_assign(request):
            unlimited = access.unlimited_users(_SHOWN + 1)
            users = [f"{user.username} ({user.reason})" for user in unlimited[:_SHOWN]]
            text = str(_("Staff users who see all tenants: %s.") % ", ".join(users or ["-"]))
            if len(unlimited) > _SHOWN:
                text += f" {_('`manage.py durable staff list` shows all of them.')}"
            section = {"fields": ("staff", "all_tenants"), "description": escape(text)}
            shown.append((_("Access"), section))
        if quotas.set_quotas.is_permitted(request.user):
            names = (REQUESTS,) if obj is not None and obj.pk == DEFAULT_TENANT_ID else QUOTAS
            text = _("Empty: the value of DURABLE_TASKS['QUOTAS']. %s") % quotas.set_quotas.help
            shown.append((_("Quotas of the HTTP API"), {"fields": names, "description": text}))
        return [*shown, (None, {"fields": ("reason",)})] if len(shown) > 1 else shown

    def _may_assign(self, request: HttpRequest) -> bool:
        """Return whether the user may limit others; one who is limited may not."""
        permitted = access.assign_staff.is_permitted(
            request.user
        ) and access.unassign_staff.is_permitted(request.user)
        return permitted and not filters.is_limited(request)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Set the quotas after the tenant is saved, if they were changed."""
        super().save_related(request, form, formsets, change)
        if "staff" in form.changed_data and self._may_assign(request):
            self._assign(request, form)
        changed = set(form.changed_data) & set(QUOTAS)
        if changed and quotas.set_quotas.is_permitted(request.user):
            data = form.cleaned_data
            values = {name: data.get(name) or None for name in QUOTAS}
            if data.get("reason") is None:
                data["reason"] = ""
            quotas.set_quotas.perform(
                form.instance, by=who(request), reason=data["reason"], reset=True, **values
            )

    def _assign(self, request: HttpRequest, form: Any) -> None:
        before, after = set(_staff_of(form.instance)), set(form.cleaned_data["staff"].split())
        options = {"by": who(request), "reason": form.cleaned_data.get("reason") or ""}
        try:
            for name in sorted(after - before):
                access.assign_staff.perform(form.instance, username=name, **options)
            for name in sorted(before - after):
                every = bool(form.cleaned_data.get("all_tenants"))
                access.unassign_staff.perform(
                    form.instance, username=name, all_tenants=every, **options
                )
        except InvalidOption as refused:
            self.message_user(request, str(refused), messages.ERROR)


# Unless the project has removed or replaced the admin of the core.
if type(admin.site._registry.get(Tenant)) is installation.TenantAdmin:
    admin.site.unregister(Tenant)
    admin.site.register(Tenant, TenantAdmin)


installation.PAGES["API key"] = ApiKey

# The admin of API keys: create one, which is shown once, and revoke others.


if TYPE_CHECKING:
    _ModelForm = forms.ModelForm[ApiKey]
else:
    _ModelForm = forms.ModelForm

_FIELDS = ("tenant", "name", "scopes", "mode", "expires_at", "reason")


class ApiKeyForm(_ModelForm):
    """A new key."""

    scopes = forms.MultipleChoiceField(
        label=_("Scopes"),
        choices=[(scope.value, f"{scope}: {SCOPE_HELP[scope]}") for scope in ApiScope],
        widget=forms.CheckboxSelectMultiple,
    )

    class Meta:
        model = ApiKey
        fields = _FIELDS


_PREFIX = display.column(_("key"), lambda row: row.prefix)
_STATE = display.column(
    _("state"),
    lambda row: _("live") if row.is_live(estimated_now()) else _("revoked or expired"),
    "state",
)


@admin.register(ApiKey)
class ApiKeyAdmin(DurableModelAdmin):
    """API keys."""

    named_by = ("name", "mode", "identifier")
    # Few rows, which are counted exactly.
    paginator: ClassVar = Paginator
    list_display = (
        *(_PREFIX, "name", "tenant"),
        display.column(_("scopes"), lambda row: ", ".join(row.scopes)),
        *(_STATE, "expires_at", "last_used_at"),
    )
    list_filter = (filters.TenantFilter,)
    list_select_related = ("tenant",)
    sortable_by = ()
    search_fields = ("name", "identifier")
    actions = (action_of(access.revoke_key),)
    operations = (access.create_key,)
    form = ApiKeyForm

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[Any, ...]:
        known = (_PREFIX, *_FIELDS, _STATE, "created_by", "revoked_by")
        return _FIELDS if obj is None else known

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        """Create the key and show it, once."""
        outcome = access.create_key.perform(
            obj.tenant,
            by=who(request),
            reason=obj.reason,
            name=obj.name,
            scopes=",".join(form.cleaned_data["scopes"]),
            expires_at=obj.expires_at,
            mode=obj.mode,
        )
        obj.pk, obj.identifier = outcome.value.row.pk, outcome.value.row.identifier
        text = f"Copy the key now, it is not shown again: {outcome.value.text}"
        self.message_user(request, text, messages.WARNING)

"""The admin of API keys: create one, which is shown once, and revoke others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponseRedirect
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin import display, filters
from django_durable_tasks.admin.actions import action_of, who
from django_durable_tasks.admin.readonly import ScreenAdmin
from django_durable_tasks.engine.db.clock_estimate import estimated_now
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import ApiKey
from django_durable_tasks.operations.api_keys import CREATE, REVOKE
from django_durable_tasks.rules.tenants.api_keys import SCOPE_HELP, ApiScope

if TYPE_CHECKING:
    _ModelForm = forms.ModelForm[ApiKey]
else:
    _ModelForm = forms.ModelForm

_FIELDS = ("tenant", "name", "scopes", "mode", "expires_at", "reason")
_EXPIRES = display.instant_of("expires_at", _("expires at"))
_USED = display.instant_of("last_used_at", _("last used at"))


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


@admin.register(ApiKey)
class ApiKeyAdmin(ScreenAdmin):
    """API keys."""

    named_by = ("name", "mode", "identifier")
    list_display = ("prefix", "name", "tenant", "allowed", "state", _EXPIRES, _USED)
    list_filter = (filters.TenantFilter,)
    list_select_related = ("tenant",)
    sortable_by = ()
    search_fields = ("name", "identifier")
    actions = (action_of(REVOKE),)
    operations = (CREATE,)
    form = ApiKeyForm
    fields = _FIELDS

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return () if obj is None else ("prefix", *_FIELDS, "state")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return _FIELDS if obj is None else ("prefix", *_FIELDS, "state", "created_by", "revoked_by")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, *rest: Any, **more: Any
    ) -> Any:
        """Show a refusal as a message."""
        try:
            return super().changeform_view(request, object_id, *rest, **more)
        except DurableTasksError as refused:
            self.message_user(request, _t("Nothing was changed. %s") % refused, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        """Create the key and show it, once."""
        outcome = CREATE.perform(
            obj.tenant,
            by=who(request),
            reason=obj.reason,
            name=obj.name,
            scopes=",".join(form.cleaned_data["scopes"]),
            expires_at=obj.expires_at,
            mode=obj.mode,
        )
        obj.pk, obj.identifier = outcome.value.row.pk, outcome.value.row.identifier
        text = _t("Copy the key now, it is not shown again: %s") % outcome.value.text
        self.message_user(request, text, messages.WARNING)

    @admin.display(description=_("key"))
    def prefix(self, row: ApiKey) -> str:
        """Show the part of the key that is not secret."""
        return row.prefix

    @admin.display(description=_("scopes"))
    def allowed(self, row: ApiKey) -> str:
        """Show the scopes."""
        return ", ".join(row.scopes)

    @admin.display(description=_("state"))
    def state(self, row: ApiKey) -> str:
        """Show whether the key is valid."""
        return _t("live") if row.is_live(estimated_now()) else _t("revoked or expired")

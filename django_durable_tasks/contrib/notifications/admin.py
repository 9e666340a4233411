"""The admin of notification settings: create, change, delete and test them."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin import display, filters, installation
from django_durable_tasks.admin.actions import action_of, who
from django_durable_tasks.admin.fields import OPENED, EditModelForm
from django_durable_tasks.admin.readonly import DurableModelAdmin
from django_durable_tasks.choices import FLAGS, DeliveryType
from django_durable_tasks.contrib.notifications import deliveries, messages
from django_durable_tasks.contrib.notifications.models import NotificationSetting
from django_durable_tasks.exceptions import EncryptionError
from django_durable_tasks.masking import MASK

installation.PAGES["notification setting"] = NotificationSetting
_VALUES = (*messages.CHECKS, "delivery_type")


class NotificationSettingForm(EditModelForm):
    """A setting. The URL is shown masked; unless it is changed, it is kept."""

    destination = forms.CharField(
        label=_("Destination"),
        max_length=10_000,
        widget=forms.Textarea(attrs={"rows": 3, "cols": 80, "spellcheck": "false"}),
        help_text=_("A URL, or for e-mail one address per line. A masked URL is kept."),
    )

    class Meta:
        model = NotificationSetting
        fields = ("tenant", *_VALUES, "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        row = kwargs.get("instance")
        self.shown = ""
        if row is not None:
            try:
                self.shown = _shown_destination(row, "\n")
            except EncryptionError:
                self.shown = MASK  # which is refused
        super().__init__(*args, **kwargs)

    def get_initial_for_field(self, field: forms.Field, field_name: str) -> Any:
        """Return the masked destination: the page must not contain a secret URL."""
        if field_name == "destination":
            return self.shown
        return super().get_initial_for_field(field, field_name)

    def version_of(self, row: Any) -> object:
        """Return the revision."""
        return row.revision

    def values(self) -> dict[str, Any]:
        """Return the keywords of the operations."""
        cleaned_data = self.cleaned_data
        text: str = cleaned_data["destination"].strip()
        if cleaned_data["delivery_type"] == DeliveryType.EMAIL:
            config: dict[str, Any] = {"to": text.split()}
        else:
            config = {"url": text}
        return {**{name: cleaned_data[name] for name in _VALUES}, "delivery_config": config}


def _shown_destination(row: NotificationSetting, separator: str) -> str:
    """Return the addresses, or the URL without its secrets. Raises EncryptionError."""
    shown = row.shown_config
    return str(shown.get("url") or separator.join(shown.get("to", ())))


@admin.register(NotificationSetting)
class NotificationSettingAdmin(DurableModelAdmin):
    """Notification settings."""

    named_by = ("name",)
    # Few rows, which are counted exactly.
    paginator: ClassVar = Paginator
    list_display = (
        "name",
        "tenant",
        "state",
        "selected",
        "delivery_type",
        "to",
        "last",
        "last_delivery_at",
    )
    list_filter = (filters.TenantFilter,)
    list_select_related = ("tenant",)
    sortable_by = ()
    search_fields = ("name", "user_id")
    actions = (action_of(deliveries.create_test), action_of(deliveries.delete_setting))
    operations = (deliveries.create_setting, deliveries.change_setting)
    form = NotificationSettingForm
    readonly_fields = ("last", "last_delivery_at", "last_delivery_error", "updated_by")
    fieldsets: ClassVar = (
        (None, {"fields": ("name", "user_id", "enabled", "delivery_type", "destination")}),
        (_("Events"), {"fields": (tuple(FLAGS), ("task_name", "queue", "schedule"))}),
        (_("When"), {"fields": ("digest", ("quiet_from", "quiet_until", "time_zone"))}),
        (None, {"fields": ("reason",)}),
    )

    def sections(self, request: HttpRequest, obj: Any) -> Any:
        """Add the tenant of a new setting, and what is known about an existing one."""
        if obj is None:
            return ((None, {"fields": ("tenant",)}), *self.fieldsets)
        known = (("last", "last_delivery_at"), "last_delivery_error", "updated_by", OPENED)
        return (*self.fieldsets, (_("Last delivery"), {"fields": known}))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return deliveries.create_setting.is_permitted(request.user)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return deliveries.change_setting.is_permitted(request.user)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse Django's deletion: the action of the registry records user and reason."""
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("tenant")

    def save_model(
        self, request: HttpRequest, obj: NotificationSetting, form: Any, change: bool
    ) -> None:
        options = {"by": who(request), "reason": obj.reason, **form.values()}
        if change:
            deliveries.change_setting.perform(obj, revision=obj.revision, **options)
        else:
            obj.pk = deliveries.create_setting.perform(obj.tenant, **options).value.pk

    @admin.display(description=_("state"))
    def state(self, row: NotificationSetting) -> SafeString:
        """Show whether the setting is enabled."""
        if row.enabled:
            return display.badge("CLOSED", _("enabled"))
        return display.badge("OPEN", _("disabled"))

    @admin.display(description=_("events"))
    def selected(self, row: NotificationSetting) -> str:
        """Show the selected events."""
        names = (name.removeprefix("on_").replace("_", " ") for name in row.events)
        return ", ".join(names) or display.NOTHING

    @admin.display(description=_("destination"))
    def to(self, row: NotificationSetting) -> str:
        """Show the addresses, or the URL without its secrets, or why it cannot be decrypted."""
        try:
            return display.clean(_shown_destination(row, ", "))
        except EncryptionError as error:
            return str(error)

    @admin.display(description=_("last delivery"))
    def last(self, row: NotificationSetting) -> str:
        """Show the result of the last delivery."""
        return row.last_delivery_status or display.NOTHING

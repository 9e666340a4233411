"""The admin of endpoints: which receivers of HTTP callbacks failed, and until when theirs wait."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin import display, filters
from django_durable_tasks.admin.readonly import ReadOnlyAdmin
from django_durable_tasks.models import Endpoint
from django_durable_tasks.models.clock import DatabaseNow

_OPEN_UNTIL = display.instant_of("open_until", _("open until"))
_GONE = display.instant_of("gone_at", _("ended deliveries at"))
_CHANGED = display.instant_of("updated_at", _("changed at"))


@admin.register(Endpoint)
class EndpointAdmin(ReadOnlyAdmin):
    """Endpoints; a success or the end of the pause changes them."""

    list_display = ("key", "state", "failures", _OPEN_UNTIL, "reason", _CHANGED)
    list_filter = (filters.TenantFilter,)
    sortable_by = ()
    search_fields = ("key",)
    readonly_fields = ("state", "reason", _OPEN_UNTIL, _GONE, _CHANGED)
    fieldsets: ClassVar = (
        (
            None,
            {
                "fields": (
                    ("key", "tenant"),
                    ("state", _OPEN_UNTIL),
                    ("failures", "openings"),
                    ("reason", _GONE),
                    _CHANGED,
                )
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).annotate(seen_at=DatabaseNow())
        return rows.select_related("tenant")

    @admin.display(description=_("breaker"))
    def state(self, row: Any) -> SafeString:
        """Show whether the tasks of the endpoint wait."""
        if row.open_until is None:
            return display.badge("CLOSED", _("closed"))
        if row.open_until > row.seen_at:
            return display.badge("OPEN", _("open"))
        return display.badge("PROBING", _("probing"))

    @admin.display(description=_("last failure"))
    def reason(self, row: Endpoint) -> str:
        """Show why the last request failed."""
        return display.clean(row.last_failure) or display.NOTHING

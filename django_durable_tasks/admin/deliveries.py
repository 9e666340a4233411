"""The requests of a task that calls an outside server, as an inline of the task's page."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import display
from django_durable_tasks.admin.readonly import ReadOnlyInline
from django_durable_tasks.exceptions import EncryptionError
from django_durable_tasks.models import DeliveryAttempt

ON_A_PAGE = 50
_STARTED = display.instant_of("started_at", _("started at"))


class DeliveriesInline(ReadOnlyInline):
    """The last requests of a task, the newest first. Their secrets are masked in the table."""

    model = DeliveryAttempt
    verbose_name_plural = _("requests")
    fields = readonly_fields = (
        "attempt_number",
        "state",
        _STARTED,
        "answered",
        "sent",
        "steps",
        "headers",
        "answer",
    )
    ordering = ("-id",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request).using(conf.settings().DATABASE)
        newest = DeliveryAttempt.objects.filter(task=OuterRef("task")).order_by("-id").values("id")
        return rows.filter(id__gte=Coalesce(Subquery(newest[ON_A_PAGE - 1 : ON_A_PAGE]), 0))

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("django_durable_tasks.view_deliveryattempt"))

    @admin.display(description=_("outcome"))
    def state(self, row: DeliveryAttempt) -> SafeString:
        """Show what the answer means."""
        return display.badge(row.outcome, row.outcome)

    @admin.display(description=_("status"))
    def answered(self, row: DeliveryAttempt) -> str:
        """Show the status of the answer, or why there is none."""
        return str(row.status or row.failure)

    @admin.display(description=_("request"))
    def sent(self, row: DeliveryAttempt) -> SafeString | str:
        """Show method and URL."""
        return display.beneath(row.method, display.clean(row.url))

    @admin.display(description=_("timings"))
    def steps(self, row: DeliveryAttempt) -> str:
        """Show the durations of the steps in milliseconds."""
        steps = {
            "DNS": row.dns_seconds,
            "connection": row.connect_seconds,
            "TLS": row.tls_seconds,
            "first byte": row.first_byte_seconds,
            "total": row.total_seconds,
        }
        return ", ".join(
            f"{name} {1_000 * seconds:.0f} ms" for name, seconds in steps.items() if seconds
        )

    @admin.display(description=_("request headers"))
    def headers(self, row: DeliveryAttempt) -> SafeString | str:
        """Show the sent headers."""
        return display.folded(_("headers"), _headers(row, "request_headers"))

    @admin.display(description=_("answer"))
    def answer(self, row: DeliveryAttempt) -> SafeString | str:
        """Show headers and first bytes of the answer."""
        cut = "\n..." if row.response_truncated else ""
        headers = _headers(row, "response_headers")
        text = f"{headers}\n\n{row.response_body}{cut}".strip()
        return display.folded(_("answer"), display.clean(text))


def _headers(row: DeliveryAttempt, column: str) -> str:
    """Return one header per line, or why they cannot be decrypted."""
    try:
        headers: list[list[str]] = getattr(row, column)
    except EncryptionError as error:
        return str(error)
    return "\n".join(f"{name}: {value}" for name, value in headers)

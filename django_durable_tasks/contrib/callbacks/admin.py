"""The admin of endpoints, and the requests on the page of a task."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import display, filters
from django_durable_tasks.admin.readonly import ReadOnlyAdmin, ReadOnlyInline, section
from django_durable_tasks.admin.tasks import TaskAdmin
from django_durable_tasks.choices import TargetType
from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt, Endpoint
from django_durable_tasks.exceptions import EncryptionError

# The requests of a task that calls an outside server, as an inline of the task's page.


REQUESTS_ON_A_PAGE = 50
_REQUEST_STARTED = display.column_of(DeliveryAttempt._meta.get_field("started_at"))


class DeliveriesInline(ReadOnlyInline):
    """The last requests of a task, the newest first. Their secrets are masked in the table."""

    model = DeliveryAttempt
    verbose_name_plural = format_lazy(_("the last {number} requests"), number=REQUESTS_ON_A_PAGE)
    fields = readonly_fields = (
        "attempt_number",
        "state",
        _REQUEST_STARTED,
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
        return rows.filter(
            id__gte=Coalesce(Subquery(newest[REQUESTS_ON_A_PAGE - 1 : REQUESTS_ON_A_PAGE]), 0)
        )

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Show the inline for tasks that send requests. Django reads its rows without ``obj``."""
        sends = obj is None or obj.target_type == TargetType.HTTP_CALLBACK
        may = request.user.has_perm("durable_tasks_callbacks.view_deliveryattempt")
        return bool(sends and may)

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


TaskAdmin.inlines.append(DeliveriesInline)

# The admin of endpoints: which receivers of HTTP callbacks failed, and until when theirs wait.


@admin.register(Endpoint)
class EndpointAdmin(ReadOnlyAdmin):
    """Endpoints; a success or the end of the pause changes them."""

    labels: ClassVar = {
        "gone_at": _("ended deliveries at"),
        "updated_at": _("changed at"),
        "last_failure": _("last failure"),
    }
    # Few rows, which are counted exactly.
    paginator: ClassVar = Paginator
    list_display = ("key", "state", "failures", "open_until", "last_failure", "updated_at")
    list_filter = (filters.TenantFilter,)
    sortable_by = ()
    search_fields = ("key",)
    reads_with_page = ("tenant",)
    fieldsets = (
        section(
            None,
            ("key", "tenant"),
            ("state", "open_until"),
            ("failures", "openings"),
            ("last_failure", "gone_at"),
            "updated_at",
        ),
    )

    @admin.display(description=_("breaker"))
    def state(self, row: Any) -> SafeString:
        """Show whether the tasks of the endpoint wait."""
        if row.open_until is None:
            return display.badge("CLOSED", _("closed"))
        if row.open_until > row.seen_at:
            return display.badge("OPEN", _("open"))
        return display.badge("PROBING", _("probing"))

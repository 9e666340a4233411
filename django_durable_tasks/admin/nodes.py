"""The admin of nodes and of the scheduler lease: which processes are live, which missed their
heartbeats, and which is the leader.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar, cast

from django.contrib import admin
from django.db.models import Exists, OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import display
from django_durable_tasks.admin.filters import ScreenFilter
from django_durable_tasks.admin.readonly import ReadOnlyAdmin
from django_durable_tasks.engine.cluster import nodes, status
from django_durable_tasks.models import Node, SchedulerLease
from django_durable_tasks.models.fields import DatabaseNow

_STARTED = display.instant_of("started_at", _("started at"))
_SEEN = display.instant_of("last_seen_at", _("last seen at"))
_SCANNED = display.instant_of("last_scan_at", _("last poll for due tasks at"))
_LAST_START = display.instant_of("last_start_at", _("last started a task at"))
_STOPPED = display.instant_of("stopped_at", _("stopped at"))
_ACQUIRED = display.instant_of("acquired_at", _("acquired at"))
_EXPIRES = display.instant_of("expires_at", _("expires at"))


class AliveFilter(ScreenFilter):
    """Filter by whether the process is live."""

    title = _("process")
    parameter_name = "process"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("alive", _("alive")), ("left", _("left on purpose")), ("dead", _("declared dead"))]

    def narrow(self, rows: Any, value: str) -> QuerySet[Any]:
        """Return the nodes in this state."""
        found: QuerySet[Any] = {
            "alive": rows.alive,
            "left": lambda: rows.filter(stopped_at__isnull=False, declared_dead=False),
            "dead": lambda: rows.filter(declared_dead=True),
        }.get(value, rows.none)()
        return found


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    """Schedulers and workers."""

    tenant_path = None
    list_display = (
        "name",
        "kind",
        "state",
        "last_beat",
        "running",
        "listens",
        "concurrency",
        "clock",
        "process",
        _STARTED,
    )
    list_filter = (AliveFilter, "kind", "region")
    lookups_allowed = frozenset({"kind__exact", "region", "region__exact"})
    sortable_by = ("name", "kind")
    search_fields = ("name", "host")
    change_list_template = "admin/django_durable_tasks/node/change_list.html"
    fieldsets: ClassVar = (
        (
            None,
            {
                "fields": (
                    "id",
                    ("name", "kind"),
                    "region",
                    "state",
                    ("last_beat", "beats"),
                    "running",
                    "runs",
                )
            },
        ),
        (
            _("Process"),
            {
                "fields": (
                    ("host", "pid"),
                    "releases",
                    "clock",
                    ("pool", "concurrency"),
                    "listens",
                    "serves",
                )
            },
        ),
        (
            _("How it is notified of due tasks"),
            {"fields": ("index_state", "wakeups_state", "failing")},
        ),
        (_("Times"), {"fields": (_STARTED, _SEEN, _SCANNED, _LAST_START, _STOPPED)}),
    )
    readonly_fields = (
        "state",
        "last_beat",
        "running",
        "runs",
        "releases",
        "clock",
        "listens",
        "serves",
        _STARTED,
        _SEEN,
        _SCANNED,
        _LAST_START,
        _STOPPED,
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        leads = SchedulerLease.objects.filter(holder=OuterRef("pk"), expires_at__gte=DatabaseNow())
        node_columns = {
            "seen_at": DatabaseNow(),
            "leads": Exists(leads),
            "term": Subquery(leads.values("term")[:1]),
        }
        nodes = super().get_queryset(request).defer("names").annotate(**node_columns)
        return cast("QuerySet[Any]", nodes)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        everybody = list(self.get_queryset(request).filter(stopped_at__isnull=True))
        still = status.stalled(everybody, everybody[0].seen_at) if everybody else {}
        context = {
            "leading": next((node for node in everybody if node.leads), None),
            "stalled": [(node, still[node.pk]) for node in everybody if node.pk in still],
        }
        return super().changelist_view(request, {**(extra_context or {}), **context})

    @admin.display(description=_("state"))
    def state(self, node: Any) -> SafeString | str:
        """Show whether it is live, and whether it is the leader."""
        silent = node.seen_at - node.last_seen_at > timedelta(seconds=nodes.timeout())
        if node.stopped_at is not None:
            marks = [("failed", "declared dead")] if node.declared_dead else [("cancelled", "left")]
        else:
            marks = [("overdue", "silent")] if silent else [("success", "alive")]
            marks += [("cancelled", "draining")] if node.draining else []
        return display.badges(marks + ([("leader", "leader")] if node.leads else []))

    @admin.display(description=_("last heartbeat"))
    def last_beat(self, node: Any) -> str:
        """Show its last heartbeat."""
        return display.since(node.last_seen_at, node.seen_at)

    @admin.display(description=_("queues"))
    def listens(self, node: Node) -> str:
        """Show the queues that it consumes."""
        return ", ".join(map(str, node.queues)) or display.NOTHING

    @admin.display(description=_("running"))
    def running(self, node: Node) -> str:
        """Show how many of its processes or threads are busy."""
        return display.NOTHING if node.active is None else str(node.active.get("number", 0))

    @admin.display(description=_("clock"))
    def clock(self, node: Node) -> SafeString | str:
        """Show the difference between its host's clock and the database's, with a mark if it is too
        large.
        """
        if node.skew is None:
            return display.NOTHING
        text = f"{node.skew:+.3f} s"
        return display.badge("failed", text) if abs(node.skew) > conf.settings().SKEW_MAX else text

    @admin.display(description=_("releases"))
    def releases(self, node: Node) -> str:
        """Show its releases of the package and of the time zone database."""
        return ", ".join(
            f"{part} {release}"
            for part, release in (node.versions or {"package": node.version}).items()
        )

    @admin.display(description=_("shards"))
    def serves(self, node: Node) -> str:
        """Show which shards it serves."""
        return display.NOTHING if node.shards is None else ", ".join(map(str, node.shards))

    @admin.display(description=_("process"))
    def process(self, node: Node) -> SafeString | str:
        """Show its host, process id and version."""
        return display.beneath(f"{node.host} {node.pid}", node.version)

    @admin.display(description=_("runs"))
    def runs(self, node: Node) -> SafeString:
        """Link its running tasks."""
        return display.link(
            display.list_of("task", status__exact="RUNNING", node__exact=node.pk),
            _("running tasks"),
        )


@admin.register(SchedulerLease)
class SchedulerLeaseAdmin(ReadOnlyAdmin):
    """The scheduler lease."""

    tenant_path = None
    list_display = ("name", "held", "term", _ACQUIRED, _EXPIRES)
    sortable_by = ()
    fields = ("name", "held", "holder_link", "term", _ACQUIRED, _EXPIRES)
    readonly_fields = ("held", "holder_link", _ACQUIRED, _EXPIRES)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        names = Node.objects.filter(pk=OuterRef("holder")).values("name")[:1]
        holder_columns = {"seen_at": DatabaseNow(), "holder_name": Subquery(names)}
        return cast("QuerySet[Any]", super().get_queryset(request).annotate(**holder_columns))

    @admin.display(description=_("owner"))
    def held(self, lease: Any) -> SafeString | str:
        """Show the present owner."""
        if lease.holder is None or lease.expires_at < lease.seen_at:
            return display.badge("failed", _("none"))
        return str(lease.holder_name or lease.holder)

    @admin.display(description=_("last holder"))
    def holder_link(self, lease: SchedulerLease) -> SafeString | str:
        """Link the last owner."""
        return (
            display.link(display.page_of("node", lease.holder), lease.holder)
            if lease.holder
            else display.NOTHING
        )

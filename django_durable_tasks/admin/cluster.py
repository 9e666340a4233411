"""The admin pages of nodes and of queues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from typing import Any, ClassVar, cast

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Exists, OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.admin import actions, display, overview
from django_durable_tasks.admin.actions import form_class, who
from django_durable_tasks.admin.fields import OPENED, EditModelForm
from django_durable_tasks.admin.filters import ScreenFilter
from django_durable_tasks.admin.readonly import ReadOnlyAdmin, ScreenAdmin
from django_durable_tasks.celery import inspect
from django_durable_tasks.cluster import nodes, queues, status
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.limits import operator_limits
from django_durable_tasks.models import Limit, Node, QueueControl, SchedulerLease, Tenant
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.operations.operation import Operation
from django_durable_tasks.store.clock import database_now

# The admin of nodes and of the scheduler lease: which processes are live, which missed their
# heartbeats, and which is the leader.


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
        return display.badge("failed", text) if abs(node.skew) > conf.SKEW_MAX else text

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


# The admin of queues: all queues that are in use, the number of their tasks, and a button to pause
# or resume each.


def declared() -> set[str]:
    """Return the queues of the durable tasks that are registered in this process."""
    inspect.load_tasks()
    found = set()
    for name in registry.names():
        try:
            found.add(ports.queue_of(name, registry.get(name).options.queue))
        except DurableTasksError:
            continue
    return found


@admin.register(QueueControl)
class QueueControlAdmin(ReadOnlyAdmin):
    """Queues."""

    tenant_path = None
    actions = None
    operations = (queues.pause, queues.resume)

    def get_urls(self) -> list[URLPattern]:
        site = self.admin_site.admin_view
        return [
            path("pause/", site(self.pause_view), name="django_durable_tasks_queuecontrol_pause"),
            path(
                "resume/",
                site(require_POST(self.resume_view)),
                name="django_durable_tasks_queuecontrol_resume",
            ),
            *super().get_urls(),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        now = database_now()
        rows = overview.rows_of(queues.depths(now, declared()), now)
        return self._page(
            request,
            "queues",
            queues=rows,
            title=gettext("Queues"),
            asked_at=now,
            may_pause=self.permits(request, queues.pause),
            **(extra_context or {}),
        )

    def pause_view(self, request: HttpRequest) -> HttpResponse:
        """Show a form for the reason, then pause the queue."""
        if not self.permits(request, queues.pause):
            raise PermissionDenied
        name = str((request.POST if request.method == "POST" else request.GET).get("queue", ""))
        now = database_now()
        depth = {found.queue: found for found in queues.depths(now, declared())}.get(name)
        if depth is None:
            self.message_user(
                request,
                gettext("No queue named %r is in use. Nothing was paused.") % name,
                messages.ERROR,
            )
            return self._back()
        form = form_class(queues.pause)(request.POST if request.method == "POST" else None)
        if request.method == "POST" and form.is_valid():
            return self._perform(request, queues.pause, name, form.reason)
        return self._page(
            request,
            "pause",
            form=form,
            depth=depth,
            operation=queues.pause,
            title=f"{queues.pause.title}: {name}",
            waiting=depth.due + depth.queued,
        )

    def resume_view(self, request: HttpRequest) -> HttpResponse:
        """Resume the queue."""
        if not self.permits(request, queues.resume):
            raise PermissionDenied
        return self._perform(request, queues.resume, str(request.POST.get("queue", "")), "")

    def _perform(
        self, request: HttpRequest, operation: Operation, name: str, reason: str
    ) -> HttpResponse:
        try:
            outcome = operation.perform(name, by=actions.who(request), reason=reason)
        except DurableTasksError as refused:
            self.message_user(request, gettext("Nothing was changed. %s") % refused, messages.ERROR)
            return self._back()
        if outcome.changed:
            actions.remember(self, request, [name], f"{operation.title}. {reason}".strip())
        level = messages.SUCCESS if outcome.changed else messages.WARNING
        self.message_user(request, outcome.message, level)
        return self._back()

    named_by = ("name",)

    def _page(self, request: HttpRequest, name: str, **context: Any) -> HttpResponse:
        shown = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            **context,
        }
        return TemplateResponse(request, f"admin/django_durable_tasks/{name}.html", shown)

    def _back(self) -> HttpResponse:
        return HttpResponseRedirect(reverse("admin:django_durable_tasks_queuecontrol_changelist"))


# The admin of limits that operators set, which replace those of code and settings.


class LimitForm(EditModelForm):
    """A limit; each ``set_limit`` changes the time at which it was set."""

    def version_of(self, row: Any) -> object:
        """Return when the limit was set."""
        return row.set_at.isoformat()


@admin.register(Limit)
class LimitAdmin(ScreenAdmin):
    """Limits; they are set, changed and removed here, and effective within a second."""

    tenant_path = None
    list_display = (
        "scope",
        "max_concurrency",
        "rate",
        "burst",
        "waiting",
        "comment",
        "set_by",
        "set_at",
    )
    sortable_by = ("scope", "set_at")
    search_fields = ("scope", "comment")
    form = LimitForm
    operations = (operator_limits.set_limit, operator_limits.remove_limit)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (
            "scope",
            "max_concurrency",
            "rate",
            "burst",
            "comment",
            *((OPENED,) if obj is not None else ()),
        )

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("scope",) if obj is not None else ()

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, *rest: Any, **more: Any
    ) -> Any:
        """Show a refusal as a message, for example of a limit that changed while the form was
        validated.
        """
        try:
            return super().changeform_view(request, object_id, *rest, **more)
        except DurableTasksError as refused:
            self.message_user(request, gettext("Nothing was changed. %s") % refused, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def save_model(self, request: HttpRequest, obj: Limit, form: Any, change: bool) -> None:
        operator_limits.set_limit.perform(
            obj.scope,
            by=who(request),
            reason=obj.comment,
            max_concurrency=obj.max_concurrency,
            rate=obj.rate or None,
            burst=obj.burst,
            seen_at=obj.set_at if change else None,
        )
        for warning in _warnings(obj):
            self.message_user(request, warning, messages.WARNING)

    def delete_model(self, request: HttpRequest, obj: Limit) -> None:
        operator_limits.remove_limit.perform(obj.scope, by=who(request), reason="")

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Remove the selected limits with the same operation as one."""
        for scope in list(queryset.values_list("pk", flat=True)):
            operator_limits.remove_limit.perform(scope, by=who(request), reason="")

    @admin.display(description=_("waiting"))
    def waiting(self, limit: Limit) -> int:
        """Count the tasks that wait for this limit."""
        return operator_limits.waiting_for(limit.scope)


def _warnings(limit: Limit) -> Iterator[str]:
    """Yield warnings: a scope that matches nothing yet, a limit that admits no task."""
    kind, _colon, name = limit.scope.partition(":")
    if kind in _KNOWN and name not in _KNOWN[kind]():
        yield gettext(
            "No %(kind)s with the name %(name)s exists: the limit applies to no task until it does."
        ) % {"kind": kind, "name": name}
    if limit.max_concurrency == 0:
        yield gettext(
            "With a max concurrency of 0 no task starts. To stop a queue temporarily, pause it."
        )


def _queues() -> set[str]:
    known = declared()
    return known | {depth.queue for depth in queues.depths(database_now(), known)}


def _tasks() -> frozenset[str]:
    inspect.load_tasks()
    return registry.names()


def _tenants() -> set[str]:
    return {
        str(pk)
        for pk in Tenant.objects.using(conf.settings().DATABASE).values_list("pk", flat=True)
    }


_KNOWN: dict[str, Callable[[], Collection[str]]] = {
    "queue": _queues,
    "task": _tasks,
    "tenant": _tenants,
}

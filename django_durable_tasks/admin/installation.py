"""The admin pages of the installation: nodes, queues, limits, tenants, audit entries, and the
overview.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import date, datetime, time, timedelta
from typing import Any, ClassVar, cast

from django.contrib import admin, messages
from django.contrib.admin.templatetags.admin_urls import admin_urlname
from django.core.exceptions import PermissionDenied
from django.db.models import Exists, Model, OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST

from django_durable_tasks import audit, conf, models, registry
from django_durable_tasks.admin import actions, display, filters
from django_durable_tasks.admin.actions import OperationPage, who
from django_durable_tasks.admin.display import list_of, since
from django_durable_tasks.admin.fields import OPENED, EditModelForm
from django_durable_tasks.admin.readonly import DurableModelAdmin, ReadOnlyAdmin, section
from django_durable_tasks.celery import inspect
from django_durable_tasks.cluster import nodes, queues, status
from django_durable_tasks.cluster.queues import MISROUTED_FOR, Depth, totals
from django_durable_tasks.cluster.status import Overview, overview
from django_durable_tasks.limits import operator_limits
from django_durable_tasks.limits.operator_limits import limit_waits
from django_durable_tasks.limits.scopes import waiting
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.operations import OPERATIONS, Operation
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks.explanations import ago

# The admin of nodes and of the scheduler lease: which processes are live, which missed their
# heartbeats, and which is the leader.


class AliveFilter(filters.ChoiceFilter):
    """Filter by whether the process is live."""

    title = _("process")
    parameter_name = "process"
    conditions: ClassVar = {
        "alive": (_("alive"), lambda nodes: nodes.alive()),
        "left": (
            _("left on purpose"),
            lambda nodes: nodes.filter(stopped_at__isnull=False, declared_dead=False),
        ),
        "dead": (_("declared dead"), lambda nodes: nodes.filter(declared_dead=True)),
    }


@admin.display(description=_("state"))
def state(node: Any) -> SafeString | str:
    """Show whether it is live, and whether it is the leader."""
    silent = node.seen_at - node.last_seen_at > timedelta(seconds=nodes.timeout())
    if node.stopped_at is not None:
        marks = [("failed", "declared dead")] if node.declared_dead else [("cancelled", "left")]
    else:
        marks = [("overdue", "silent")] if silent else [("success", "alive")]
        marks += [("cancelled", "draining")] if node.draining else []
    return display.badges(marks + ([("leader", "leader")] if node.leads else []))


@admin.display(description=_("clock"))
def _clock(node: models.Node) -> SafeString | str:
    """Show the difference between its host's clock and the database's, with a mark if it is too
    large.
    """
    if node.skew is None:
        return display.NOTHING
    text = f"{node.skew:+.3f} s"
    return display.badge("failed", text) if abs(node.skew) > conf.SKEW_MAX else text


@admin.display(description=_("releases"))
def _releases(node: models.Node) -> str:
    """Show its releases of the package and of the time zone database."""
    releases = node.versions or {"package": node.version}
    return ", ".join(f"{package} {release}" for package, release in releases.items())


@admin.display(description=_("runs"))
def _runs(node: models.Node) -> SafeString:
    """Link its running tasks."""
    tasks = display.list_of("task", status__exact="RUNNING", node__exact=node.pk)
    return display.link(tasks, _("running tasks"))


def _listed(values: Collection[Any] | None) -> str:
    return ", ".join(map(str, values or ())) or display.NOTHING


_BEAT = display.column(
    _("last heartbeat"), lambda node: display.since(node.last_seen_at, node.seen_at), "last_beat"
)
# How many of its processes or threads are busy.
_RUNNING = display.column(
    _("running"),
    lambda node: display.NOTHING if node.active is None else str(node.active.get("number", 0)),
)
_QUEUES = display.column(_("queues"), lambda node: _listed(node.queues))


@admin.register(models.Node)
class NodeAdmin(ReadOnlyAdmin):
    """Schedulers and workers."""

    tenant_path = None
    labels: ClassVar = {
        "last_scan_at": _("last poll for due tasks at"),
        "last_start_at": _("last started a task at"),
    }
    list_display = (
        *("name", "kind", state, _BEAT, _RUNNING, _QUEUES, "concurrency", _clock),
        display.column(
            _("process"), lambda node: display.beneath(f"{node.host} {node.pid}", node.version)
        ),
        "started_at",
    )
    list_filter = (AliveFilter, "kind", "region")
    lookups_allowed = frozenset({"kind__exact", "region", "region__exact"})
    sortable_by = ("name", "kind")
    search_fields = ("name", "host")
    change_list_template = "admin/django_durable_tasks/node/change_list.html"
    fieldsets = (
        section(None, "id", ("name", "kind"), "region", state, (_BEAT, "beats"), _RUNNING, _runs),
        section(
            _("Process"),
            ("host", "pid"),
            _releases,
            _clock,
            ("pool", "concurrency"),
            _QUEUES,
            display.column(_("shards"), lambda node: _listed(node.shards)),
        ),
        section(_("How it is notified of due tasks"), "index_state", "wakeups_state", "failing"),
        section(
            _("Times"),
            ("started_at", "last_seen_at", "last_scan_at", "last_start_at", "stopped_at"),
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        leads = models.SchedulerLease.objects.filter(
            holder=OuterRef("pk"), expires_at__gte=DatabaseNow()
        )
        columns = {"leads": Exists(leads), "term": Subquery(leads.values("term")[:1])}
        nodes = super().get_queryset(request).defer("names").annotate(**columns)
        return cast("QuerySet[Any]", nodes)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        running_nodes = list(self.get_queryset(request).filter(stopped_at__isnull=True))
        stalled = status.stalled(running_nodes, running_nodes[0].seen_at) if running_nodes else {}
        context = {
            "leading": next((node for node in running_nodes if node.leads), None),
            "stalled": [(node, stalled[node.pk]) for node in running_nodes if node.pk in stalled],
        }
        return super().changelist_view(request, {**(extra_context or {}), **context})


@admin.display(description=_("owner"))
def _held(lease: Any) -> SafeString | str:
    """Show the present owner."""
    if lease.holder is None or lease.expires_at < lease.seen_at:
        return display.badge("failed", _("none"))
    return str(lease.holder_name or lease.holder)


@admin.register(models.SchedulerLease)
class SchedulerLeaseAdmin(ReadOnlyAdmin):
    """The scheduler lease."""

    tenant_path = None
    list_display = ("name", _held, "term", "acquired_at", "expires_at")
    sortable_by = ()
    fieldsets = (
        section(
            None,
            *("name", _held),
            display.column(_("last holder"), lambda lease: display.row_link("node", lease.holder)),
            *("term", "acquired_at", "expires_at"),
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        names = models.Node.objects.filter(pk=OuterRef("holder")).values("name")[:1]
        leases = super().get_queryset(request).annotate(holder_name=Subquery(names))
        return cast("QuerySet[Any]", leases)


# The admin of queues: all queues that are in use, the number of their tasks, and a button to pause
# or resume each.


@admin.register(models.QueueControl)
class QueueControlAdmin(ReadOnlyAdmin):
    """Queues."""

    tenant_path = None
    actions = None
    operations = (queues.pause, queues.resume)

    def pages(self) -> Iterable[tuple[str, Callable[..., Any], str]]:
        return (
            ("pause/", self.pause_view, "queuecontrol_pause"),
            ("resume/", require_POST(self.resume_view), "queuecontrol_resume"),
        )

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        now = database_now()
        return self.page(
            request,
            "queues",
            "Queues",
            queues=rows_of(queues.depths(now, inspect.declared_queues()), now),
            asked_at=now,
            may_pause=self.permits(request, queues.pause),
            **(extra_context or {}),
        )

    def pause_view(self, request: HttpRequest) -> HttpResponse:
        """Show a form for the reason, then pause the queue."""
        if not self.permits(request, queues.pause):
            raise PermissionDenied
        name = str((request.POST if request.method == "POST" else request.GET).get("queue", ""))
        depths = queues.depths(database_now(), inspect.declared_queues())
        depth = next((depth for depth in depths if depth.queue == name), None)
        if depth is None:
            text = f"No queue named {name!r} is in use. Nothing was paused."
            self.message_user(request, text, messages.ERROR)
            return HttpResponseRedirect(display.list_of("queuecontrol"))
        waiting, running = depth.to_start, depth.running
        waits = ngettext("%s task waits.", "%s tasks wait.", waiting) % waiting
        runs = ngettext("%d task is running.", "%d tasks are running.", running) % running
        return self._respond(request, queues.pause, name, f"{queues.pause.help} {waits} {runs}")

    def resume_view(self, request: HttpRequest) -> HttpResponse:
        """Resume the queue."""
        if not self.permits(request, queues.resume):
            raise PermissionDenied
        name = str(request.POST.get("queue", ""))
        return self._respond(request, queues.resume, name, queues.resume.help)

    def _respond(
        self, request: HttpRequest, operation: Operation, name: str, text: Any
    ) -> HttpResponse:
        page = OperationPage(
            operation=operation,
            subject=name,
            title=f"{operation.title}: {name}",
            back=display.list_of("queuecontrol"),
            of=self,
            keys=[name],
            help=text,
            hidden=[("queue", name)],
        )
        return actions.respond(self, request, page)


# The admin of limits that operators set, which replace those of code and settings.


class LimitForm(EditModelForm):
    """A limit; each ``set_limit`` changes the time at which it was set."""

    def version_of(self, row: Any) -> object:
        """Return when the limit was set."""
        return row.set_at.isoformat()


@admin.register(models.Limit)
class LimitAdmin(DurableModelAdmin):
    """Limits; they are set, changed and removed here, and effective within a second."""

    tenant_path = None
    list_display = (
        *("scope", "max_concurrency"),
        display.column(_("taken"), lambda limit: limit.usage.taken),
        *("rate", "burst"),
        display.column(_("waiting"), lambda limit: str(limit.usage.waiting)),
        *("comment", "set_by", "set_at"),
    )
    sortable_by = ("scope", "set_at")
    search_fields = ("scope", "comment")
    form = LimitForm
    operations = (operator_limits.set_limit, operator_limits.remove_limit)

    def attach(self, rows: list[Any]) -> None:
        """Count the waiting tasks of all rows, with the same statements for one and for many."""
        due = queues.due_tasks(database_now()) if rows else {}
        usages = {usage.scope: usage for usage in operator_limits.limit_usages(due)}
        for limit in rows:
            limit.usage = usages.get(
                limit.scope, operator_limits.LimitUsage(scope=limit.scope, source="")
            )

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        version = () if obj is None else (OPENED,)
        return ("scope", "max_concurrency", "rate", "burst", "comment", *version)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("scope",) if obj is not None else ()

    def save_model(self, request: HttpRequest, obj: models.Limit, form: Any, change: bool) -> None:
        operator_limits.set_limit.perform(
            obj.scope,
            by=who(request),
            reason=obj.comment,
            max_concurrency=obj.max_concurrency,
            rate=obj.rate or None,
            burst=obj.burst,
            seen_at=obj.set_at if change else None,
        )
        # A scope that matches nothing yet, and a limit that admits no task.
        kind, _colon, name = obj.scope.partition(":")
        names: Collection[str] | None = None
        if kind == "queue":
            queues_of_code = inspect.declared_queues()
            in_use = {depth.queue for depth in queues.depths(database_now(), queues_of_code)}
            names = queues_of_code | in_use
        elif kind == "task":
            inspect.load_tasks()
            names = registry.names()
        elif kind == "tenant":
            tenants = models.Tenant.objects.using(conf.settings().DATABASE)
            names = set(map(str, tenants.values_list("pk", flat=True)))
        if names is not None and name not in names:
            text = (
                f"No {kind} with the name {name} exists: the limit applies to no task until it"
                " does."
            )
            self.message_user(request, text, messages.WARNING)
        if obj.max_concurrency == 0:
            text = (
                "With a max concurrency of 0 no task starts. To stop a queue temporarily, pause it."
            )
            self.message_user(request, text, messages.WARNING)

    def delete_model(self, request: HttpRequest, obj: models.Limit) -> None:
        operator_limits.remove_limit.perform(obj.scope, by=who(request), reason="")

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Remove the selected limits with the same operation as one."""
        for scope in list(queryset.values_list("pk", flat=True)):
            operator_limits.remove_limit.perform(scope, by=who(request), reason="")


# The admin of tenants. They are added and renamed here and never deleted, because tasks refer to
# them.


class TenantForm(EditModelForm):
    """A tenant; it has no revision, so its values serve as its version."""

    def version_of(self, row: Any) -> str:
        """Return the values that can be changed."""
        return f"{row.slug} {row.name}"


@admin.register(models.Tenant)
class TenantAdmin(DurableModelAdmin):
    """Tenants. ``contrib.api`` registers one with quotas and staff users in its place."""

    list_display = (
        *("slug", "name", "created_at"),
        display.column(
            _("work"), lambda row: display.link(display.list_of("task", tenant=row.pk), _("tasks"))
        ),
    )
    sortable_by = ("slug", "name")
    search_fields = ("slug", "name")
    form = TenantForm
    tenant_path = "pk"

    def sections(self, request: HttpRequest, obj: Any) -> Any:
        fields = ("slug", "name", *((OPENED,) if obj is not None else ()))
        return [(None, {"fields": fields})]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request) and not filters.is_limited(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: models.Tenant, form: Any, change: bool) -> None:
        """Save the tenant with its audit entry."""
        with audit.recorded("tenant.save") as entry:
            rows = models.Tenant.objects.using(conf.settings().DATABASE).filter(pk=obj.pk)
            before: dict[str, Any] = dict(rows.values("slug", "name").first() or {})
            super().save_model(request, obj, form, change)
            after = {"slug": obj.slug, "name": obj.name}
            entry.changed("tenant", obj.pk, before, after, obj.pk)


# The admin of audit entries: who changed what. Read-only.


PAGES: dict[str, type[Model]] = {
    "task": models.Task,
    "schedule": models.RecurringTask,
    "workflow run": models.WorkflowRun,
    "dead letter": models.DeadLetter,
    "calendar": models.Calendar,
    "tenant": models.Tenant,
}
"""The models whose pages the entries link to, by the type of the object."""
OTHERS = ("task.create", "schedule.create", "schedule.save", "schedule.change", "tenant.save")
"""Operations that are no entries of the registry."""


class AgeFilter(filters.CreatedFilter):
    """Filter by age. The ids of entries are numbers, so this reads their time."""

    def first(self, at: datetime) -> Q:
        """Return the condition for entries from this instant on."""
        return Q(at__gte=at)


class DayFilter(filters.ValueFilter):
    """Filter by a day of the site's time zone; the query string may name any day."""

    title = _("day")
    parameter_name = "day"
    offered = 7
    """The number of days that the list offers, from today backwards."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        days = {str(display.today() - timedelta(days=ago)) for ago in range(self.offered)}
        chosen = self.used_parameters.get("day")
        days |= {chosen} if isinstance(chosen, str) else set()
        return [(day, day) for day in sorted(days, reverse=True)]

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the entries of this day."""
        try:
            day = date.fromisoformat(value)
            days = (day, day + timedelta(days=1))
        except (ValueError, OverflowError):
            return rows.none()
        zone = timezone.get_current_timezone()
        first, end = (datetime.combine(bound, time.min, zone) for bound in days)
        return rows.filter(at__gte=first, at__lt=end)


class OperationFilter(filters.ValueFilter):
    """Filter by operation."""

    title = _("operation")
    parameter_name = "operation"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in sorted({*OPERATIONS, *OTHERS})]

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the entries of this operation."""
        return rows.filter(operation=value)


def history_of(task: models.Task) -> SafeString | str:
    """Return the newest operations on a task, each on its line."""
    entries = audit.of_task(task)
    lines = [
        format_html(
            "{} {} {} {}",
            display.instant(entry.at),
            display.link(display.page_of("auditentry", entry.pk), entry.operation),
            entry.actor or entry.source,
            display.clean(entry.reason),
        )
        for entry in entries
    ]
    if len(entries) == audit.SHOWN:
        lines.append(display.link(display.list_of("auditentry", q=task.pk), _("Older ones too")))
    return display.lines(lines) if lines else display.NOTHING


@admin.register(models.AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """Audit entries."""

    list_display = ("id", "at", "operation", "about", "actor", "source", "address", "reason")
    list_filter = (
        DayFilter,
        AgeFilter,
        filters.ActorFilter,
        OperationFilter,
        filters.TenantFilter,
    )
    sortable_by = ()
    search_fields = ("actor",)
    search_help_text = format_lazy(
        _(
            "The complete id or name of an object, or a complete user name. An operation on several"
            " objects is found by the id of each if it is among the newest {number} of its kind."
        ),
        number=audit.SETS_READ,
    )
    reads_with_page = ("tenant",)
    fieldsets = (
        section(
            None, ("at", "operation"), ("about", "tenant"), ("actor", "source", "address"), "reason"
        ),
        section(_("Changes"), "before", "after", "ids"),
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        key = filters.key_in(term)
        if key is None and not term.isdecimal():
            return queryset.filter(Q(actor=term) | audit.about(term)), False
        term = str(key or term)
        return queryset.filter(Q(actor=term) | audit.about(term) | audit.in_sets(term)), False

    @admin.display(description=_("object"))
    def about(self, row: models.AuditEntry) -> SafeString | str:
        """Link the object, or show how many there are."""
        if not row.object_id:
            return f"{row.count} × {row.object_type}"
        text = f"{row.object_type} {row.object_id}"
        model = PAGES.get(row.object_type)
        if model is None or row.after == {}:
            return text
        address = reverse(admin_urlname(model._meta, SafeString("change")), args=[row.object_id])
        return display.link(address, text)

    @admin.display(description=_("ids"))
    def ids(self, row: models.AuditEntry) -> SafeString | str:
        """Show the ids of a set."""
        return display.folded(_("ids"), "\n".join(row.object_ids))


# The overview: backlog, running tasks, leader, live nodes and problems.


def troubles(seen: Overview) -> Iterator[str]:
    """Yield the problems, the most severe first, each with its remedy."""
    if not seen.alive(models.NodeKind.SCHEDULER):
        yield (
            "No scheduler is alive: waiting tasks are not published. Run `manage.py run_scheduler`."
        )
    elif not seen.is_led:
        yield (
            "No scheduler is the leader: runs with an expired lease are not marked LOST, and lost"
            " messages are not republished."
        )
    for node in seen.nodes:
        if node.pk in seen.stalled:
            yield f"Node {node.name} has stalled: {seen.stalled[node.pk]}. Restart it."
        if node.skew is not None and abs(node.skew) > conf.SKEW_MAX and not seen.is_silent(node):
            skew = f"{abs(node.skew):.1f} s"
            yield f"Node {node.name}: the clock of its host is {skew} from the database's."
    for depth in seen.depths:
        to_start = depth.to_start
        tasks = ngettext("%s task", "%s tasks", to_start) % to_start
        if depth.rejected:
            why = f"the broker rejects its messages ({depth.rejected})"
            yield f"Queue {depth.queue}: {why}: {tasks} to publish."
        if depth.misrouted_at is not None and seen.now - depth.misrouted_at < MISROUTED_FOR:
            yield (
                f"Queue {depth.queue}: messages for its tasks were consumed from queue"
                f" {depth.misrouted_from} and were ignored."
            )
        late = (seen.now - depth.oldest_due_at).total_seconds() if depth.oldest_due_at else 0.0
        if depth.paused_at:
            yield f"Queue {depth.queue} is paused and holds {tasks}."
        elif to_start and not depth.workers:
            yield f"Queue {depth.queue} has {tasks} to start and no live worker."
        elif late > conf.settings().OLDEST_DUE_MAX:
            yield (
                f"Queue {depth.queue} is late: its oldest task could have started {ago(late)} ago."
            )
    if seen.quarantined:
        yield (
            ngettext(
                "%s schedule is QUARANTINED: it could not be triggered. Correct it, then resume"
                " it.",
                "%s schedules are QUARANTINED: they could not be triggered. Correct them, then"
                " resume them.",
                seen.quarantined,
            )
            % seen.quarantined
        )
    if seen.late_schedules and seen.is_led:
        yield (
            ngettext(
                "%s schedule is late: no scheduler has processed its fire time.",
                "%s schedules are late: no scheduler has processed their fire times.",
                seen.late_schedules,
            )
            % seen.late_schedules
        )
    if (noticed := seen.clock_step) is not None:
        since = ago((seen.now - (noticed.clock_step_at or seen.now)).total_seconds())
        yield f"The database's clock was set by {noticed.clock_step or 0.0:+,.1f} s, {since} ago."
    yield from limit_waits(seen.limits)
    for name, number in seen.unknown.items():
        yield f"{waiting(number)} for {name}, which this process does not have."
    if seen.dead_letters > conf.settings().DEAD_LETTERS_MAX:
        letters = ngettext("dead letter is", "dead letters are", seen.dead_letters)
        yield f"{seen.dead_letters} {letters} open."


def rows_of(depths: list[Depth], now: datetime) -> list[dict[str, Any]]:
    """Return the queues as the tables show them."""
    return [
        {
            "depth": depth,
            "pending": str(depth.pending),
            "due": str(depth.due),
            "limited": str(depth.limited),
            "age": since(depth.oldest_due_at, now),
            "paused": since(depth.paused_at, now) if depth.paused_at else "",
            "urls": {
                status: list_of("task", queue=depth.queue, status__exact=status)
                for status in ("PENDING", "QUEUED", "RUNNING")
            },
            "unstarted": (not depth.paused_at and not depth.workers and bool(depth.to_start)),
        }
        for depth in depths
    ]


def overview_view(model_admin: Any, request: HttpRequest) -> Any:
    """Show the overview to a user who sees all tenants."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    if filters.is_limited(request):
        text = "The overview shows all tenants. You see only those assigned to you."
        model_admin.message_user(request, text)
        return HttpResponseRedirect(list_of("task"))
    problems = [problem for problem in (inspect.load_tasks(),) if problem]
    seen = overview(registry.names())
    broker = inspect.broker_problem()
    if broker:
        problems.insert(0, f"The broker does not answer from here: {broker}.")
    workers = seen.alive(models.NodeKind.WORKER)
    facts = {
        "seen": seen,
        "troubles": [*problems, *troubles(seen)],
        "queues": rows_of(seen.depths, seen.now),
        "totals": [
            (status, list_of("task", status__exact=status), str(number))
            for status, number in totals(seen.depths).items()
        ],
        "due": str(sum(depth.due + depth.limited for depth in seen.depths)),
        "schedulers": len(seen.alive(models.NodeKind.SCHEDULER)),
        "workers": len(workers),
        "concurrency": sum(node.concurrency for node in workers),
    }
    return model_admin.page(request, "overview", "Overview", **facts)

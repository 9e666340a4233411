"""The admin of workflow runs: list, page and progress."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin import dependencies_cell, display, filters, graphs
from django_durable_tasks.admin import tasks as admin_tasks
from django_durable_tasks.admin.graphs import CHOSEN_OPERATIONS, RUN_OPERATIONS
from django_durable_tasks.admin.readonly import ReadOnlyAdmin
from django_durable_tasks.choices import Status, WorkflowStatus
from django_durable_tasks.dependencies.joins import layers
from django_durable_tasks.models import RecurringTask, Task, WorkflowRun
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.models.workflows import COUNTS
from django_durable_tasks.tasks.explanations import Level, Sentence
from django_durable_tasks.workflows.diagrams import Diagram, natural

# The progress of a workflow run as a bar, and as text for screen readers.


_BAR = (
    '<svg class="durable-progress" viewBox="0 0 100 8" preserveAspectRatio="none" role="img"'
    ' aria-label="{0}"><title>{0}</title>{1}</svg>'
)
_PART = '<rect class="durable-part-{}" x="{}" y="0" width="{}" height="8"/>'


def counted(run: WorkflowRun) -> list[tuple[str, int]]:
    """Return how many of its tasks ended in each status, as counted so far; zeros are omitted."""
    found = ((str(status), int(getattr(run, column))) for status, column in COUNTS.items())
    return [(status, number) for status, number in found if number]


def progress_words(run: WorkflowRun) -> str:
    """Return the numbers as text: ``12 of 20 ended: 10 SUCCESS, 2 FAILED``."""
    totals = gettext("%(ended)s of %(total)s ended") % {
        "ended": f"{run.ended:,}",
        "total": f"{run.total:,}",
    }
    parts = ", ".join(f"{number:,} {status}" for status, number in counted(run))
    return f"{totals}: {parts}" if parts else totals


def progress_bar(run: WorkflowRun) -> SafeString:
    """Return a bar with one part per status; the part of open tasks is empty."""
    whole, x, parts = max(run.total, run.ended, 1), 0.0, []
    for status, number in counted(run):
        width = 100 * number / whole
        parts.append((status.lower(), f"{x:.2f}", f"{width:.2f}"))
        x += width
    return format_html(_BAR, progress_words(run), format_html_join("", _PART, parts))


def progress_cell(run: WorkflowRun) -> SafeString:
    """Return the bar with its text below."""
    return format_html(
        '{}<span class="durable-beneath">{}</span>', progress_bar(run), progress_words(run)
    )


def progress_marks(run: Any) -> list[tuple[str, str]]:
    """Return the badges of a run: (class, text) of its status and conditions. ``run.seen_at`` is
    the database's time.
    """
    over = run.is_open and run.deadline_at is not None and run.deadline_at <= run.seen_at
    true = {"late": over, "stop requested": run.is_open and run.cancel_requested_at is not None}
    beside = [(text.replace(" ", "-"), text) for text, holds in true.items() if holds]
    return [(run.status, run.status), *beside]


def took(run: Any) -> str:
    """Return the duration of the run, up to now if it is open."""
    if run.status == WorkflowStatus.STARTING:
        return display.NOTHING
    return display.duration(((run.completed_at or run.seen_at) - run.created_at).total_seconds())


def by_status(numbers: Mapping[str, int]) -> list[tuple[SafeString, str, int]]:
    """Return a badge with the number for each status that occurs."""
    return [
        (display.badge(status, status), status, number)
        for status, number in numbers.items()
        if number
    ]


# The context of the page of a workflow run: progress, diagram, tasks and operations.


TASKS = 50
RUNS = 200
_DEEPEST = 8
_HEAVY = ("args", "kwargs", "options", "result", "progress")


def run_of_page(request: HttpRequest, run: Any) -> dict[str, Any]:
    """Return the context of the page of a run, except its columns."""
    may_view = graphs.may_view_tasks(request)
    return {
        "sentences": sentences(run),
        "buttons": graphs.buttons_of_run(request, run),
        "bar": progress_bar(run),
        "words": progress_words(run),
        "looks": may_view,
        "callbacks": _callbacks(run),
        "family": _family(run),
        "family_more": display.list_of("workflowrun", root__exact=run.root),
        **(_graph(request, run) if may_view else {}),
        "forces": graphs.may_force(request),
        "chosen_operations": graphs.buttons_of_chosen(),
    }


def sentences(run: Any) -> list[Sentence]:
    """Return sentences about the problems of a run, the most severe first; none for a run that
    makes progress or has succeeded.
    """
    found = []
    if run.is_open and run.deadline_at is not None and run.deadline_at <= run.seen_at:
        late = display.since(run.deadline_at, run.seen_at)
        found.append(
            Sentence(
                Level.TROUBLE,
                gettext("Its deadline was %s: tasks that have not ended will be cancelled.") % late,
            )
        )
    if run.status == WorkflowStatus.STARTING:
        found.append(
            Sentence(
                Level.WAIT,
                gettext(
                    "Its tasks are still being created. None runs before all have been created."
                ),
            )
        )
    if run.is_open and run.cancel_requested_at is not None:
        asked = display.since(run.cancel_requested_at, run.seen_at)
        found.append(Sentence(Level.WAIT, gettext("Its cancellation was requested %s.") % asked))
    if run.status == WorkflowStatus.FAILED:
        why = f" ({display.clean(run.reason)})" if run.reason else ""
        found.append(Sentence(Level.TROUBLE, gettext("It failed%s.") % why))
    return found


def _numbers(run: WorkflowRun) -> dict[str, int]:
    rows = Task.objects.using(run._state.db).of_workflow(run).order_by()
    there = dict(rows.values_list("status").annotate(Count("pk")))
    return {str(status): there.get(str(status), 0) for status in Status}


# Tasks and diagram --------------------------------------------------------------------------------


def _graph(request: HttpRequest, run: WorkflowRun) -> dict[str, Any]:
    numbers = _numbers(run)
    asked = "draw" in request.GET or sum(numbers.values()) <= graphs.AT_ONCE
    diagram = graphs.diagram_of_run(run) if asked else None
    return {
        "drawing": graphs.inline_diagram(diagram) if diagram else "",
        "draws": graphs.draws_diagrams(),
        "files": graphs.diagram_files_of("workflowrun", run.pk),
        **_tasks(request, run, numbers, diagram),
    }


def _tasks(
    request: HttpRequest, run: WorkflowRun, numbers: dict[str, int], diagram: Diagram | None
) -> dict[str, Any]:
    """Return one page of its tasks: in topological order if the dependencies were read, otherwise
    by id.
    """
    state = request.GET.get("state", "")
    state = state if state in numbers else ""
    total = numbers[state] if state else sum(numbers.values())
    pages = max(1, -(-total // TASKS))
    page = min(max(1, _whole(request.GET.get("p", ""))), pages)
    rows: Any = Task.objects.using(run._state.db).of_workflow(run)
    these, part = (
        (rows.filter(status=state) if state else rows).order_by("pk"),
        slice((page - 1) * TASKS, page * TASKS),
    )
    keys = these.values_list("pk", flat=True)
    keys = _in_order(diagram, list(keys))[part] if diagram else list(keys[part])
    found = rows.defer(*_HEAVY).annotate(seen_at=DatabaseNow()).in_bulk(keys)
    return {
        "tasks": _lines([found[key] for key in keys if key in found]),
        "state": state,
        "page": page,
        "pages": pages,
        "number": total,
        "states": by_status(numbers),
        "all": sum(numbers.values()),
        "tasks_list": display.list_of("task", workflow__id__exact=run.pk),
    }


def _in_order(diagram: Diagram, keys: list[uuid.UUID]) -> list[uuid.UUID]:
    """Return these tasks in topological order, siblings by their labels."""
    wanted = {str(key): key for key in keys}
    above: dict[str, list[str]] = {
        node.id: []
        for node in sorted(diagram.nodes, key=lambda node: (natural(node.label), node.id))
    }
    for edge in diagram.edges:
        above.setdefault(edge.target, []).append(edge.source)
    ordered = [wanted[key] for layer in layers(above) for key in layer if key in wanted]
    return ordered + sorted(set(keys) - set(ordered))


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 1


def _lines(tasks: list[Any]) -> list[dict[str, Any]]:
    held = dependencies_cell.of_tasks(task.pk for task in tasks if task.status == Status.BLOCKED)
    upstreams = [edge.depends_on_id for waits in held.values() for edge in waits.edges]
    known = dependencies_cell.named([*upstreams, *(task.cause for task in tasks)])
    return [
        {
            "task": task,
            "link": display.link(display.page_of("task", task.pk), dependencies_cell.title(task)),
            "state": display.badges([(task.status, task.status), *admin_tasks.status_labels(task)]),
            "waits": dependencies_cell.cell(
                held.get(task.pk, dependencies_cell.DependencyWaits()), known
            ),
            "took": admin_tasks.took(task),
            "cause": dependencies_cell.task_link(task.cause, known) if task.cause else "",
            "why": display.clean(task.reason) or display.first_line(task.last_error),
        }
        for task in tasks
    ]


# Related tasks and runs ---------------------------------------------------------------------------


def _callbacks(run: WorkflowRun) -> list[dict[str, Any]]:
    """Return the durable tasks that are created when the run ends, and those that were created."""
    keys = {f"workflow-{run.pk}-{kind}": kind for kind in run.callbacks}
    rows = Task.objects.using(run._state.db).filter(
        tenant_id=run.tenant_id, idempotency_key__in=list(keys)
    )
    created = {
        keys[task.idempotency_key]: task
        for task in rows.only("name", "status", "idempotency_key")
        if keys
    }
    return [
        {
            "kind": kind,
            "name": name,
            "task": created.get(kind),
            "state": dependencies_cell.task_link(
                created[kind].pk, {created[kind].pk: created[kind]}
            )
            if kind in created
            else "",
        }
        for kind, name in run.callbacks.items()
    ]


def _family(run: WorkflowRun) -> list[dict[str, Any]]:
    """Return the outermost run with its inner runs, each below its parent; at most RUNS."""
    rows = list(
        WorkflowRun.objects.using(run._state.db).filter(root=run.root).order_by("pk")[:RUNS]
    )
    below: dict[Any, list[WorkflowRun]] = {}
    there = {row.pk for row in rows}
    for row in rows:
        below.setdefault(row.parent if row.parent in there else None, []).append(row)
    found, rest = [], [(row, 0) for row in reversed(below.get(None, []))]
    while rest:
        row, depth = rest.pop()
        found.append(
            {
                "run": row,
                "depth": min(depth, _DEEPEST),
                "here": row.pk == run.pk,
                "link": display.link(display.page_of("workflowrun", row.pk), row.name),
                "state": display.badge(row.status, row.status),
                "progress": progress_cell(row),
            }
        )
        rest += [(child, depth + 1) for child in reversed(below.get(row.pk, []))]
    return found if len(found) > 1 else []


_CREATED = display.instant_of("created_at", _("started at"))
_COMPLETED = display.instant_of("completed_at", _("completed at"))
_DEADLINE = display.instant_of("deadline_at", _("deadline"))
_STOP_REQUESTED = display.instant_of("cancel_requested_at", _("stop requested at"))
_FIRED = display.instant_of("fire_time", _("fire time"))
_UPDATED = display.instant_of("updated_at", _("counted at"))


@admin.register(WorkflowRun)
class WorkflowRunAdmin(ReadOnlyAdmin):
    """Runs of workflows."""

    named_by = ("name",)
    list_display = ("named", "state", "progressed", "tenant", "key", "started", "took", "due")
    list_filter = (
        "status",
        filters.RunConditionFilter,
        filters.WorkflowNameFilter,
        filters.TenantFilter,
        filters.CreatedFilter,
    )
    lookups_allowed = frozenset({"status__exact", "root__exact"})
    sortable_by = ()
    search_fields = ("name",)
    search_help_text = _("A complete id or key, or a part of a name.")
    actions = ()
    operations = (*RUN_OPERATIONS, *CHOSEN_OPERATIONS)
    change_form_template = "admin/django_durable_tasks/workflowrun/change_form.html"
    readonly_fields = (
        "state",
        "took",
        "why_it_ended",
        "schedule_link",
        _CREATED,
        _COMPLETED,
        _DEADLINE,
        _STOP_REQUESTED,
        _FIRED,
        _UPDATED,
    )
    fieldsets: ClassVar = (
        (
            None,
            {
                "fields": (
                    ("state", "why_it_ended"),
                    ("tenant", "key"),
                    (_CREATED, _COMPLETED),
                    ("took", _DEADLINE),
                    ("schedule_link", _FIRED),
                    (_STOP_REQUESTED, _UPDATED),
                )
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).annotate(seen_at=DatabaseNow())
        return rows.select_related("tenant")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return queryset.filter(filters.by_id_or(search_term, "name__icontains", "key")), False

    def get_urls(self) -> list[URLPattern]:
        diagram = self.admin_site.admin_view(graphs.diagram_view(self, graphs.diagram_of_run))
        graph_view = self.admin_site.admin_view(graphs.run_view(self))
        return [
            path(
                "<uuid:object_id>/graph.<str:ending>",
                diagram,
                name="django_durable_tasks_workflowrun_graph",
            ),
            path(
                "<uuid:object_id>/do/<str:name>/", graph_view, name="django_durable_tasks_graph_run"
            ),
            *super().get_urls(),
        ]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add progress, diagram, tasks, related runs and the buttons of the operations."""
        context.update(run_of_page(request, context["original"]))
        return super().render_change_form(request, context, *args, **kwargs)

    # Columns and fields ---------------------------------------------------------------------------

    @admin.display(description=_("workflow"))
    def named(self, run: WorkflowRun) -> SafeString | str:
        """Show the name, the end of the id, and whether it is an inner run."""
        part = _("part of %s") % display.short(run.parent) if run.parent else ""
        return display.beneath(
            run.name, " · ".join(str(text) for text in (display.short(run.pk), part) if text)
        )

    @admin.display(description=_("status"))
    def state(self, run: Any) -> SafeString | str:
        """Show the status and further conditions."""
        return display.badges(progress_marks(run))

    @admin.display(description=_("progress"))
    def progressed(self, run: WorkflowRun) -> SafeString:
        """Show how many tasks have ended in each status."""
        return progress_cell(run)

    @admin.display(description=_("started"))
    def started(self, run: Any) -> str:
        """Show the age."""
        return display.since(run.created_at, run.seen_at)

    @admin.display(description=_("duration"))
    def took(self, run: Any) -> str:
        """Show the duration, up to now if the run is open."""
        return took(run)

    @admin.display(description=_("deadline"))
    def due(self, run: Any) -> str:
        """Show the time until its deadline."""
        return (
            display.since(run.deadline_at, run.seen_at)
            if run.is_open
            else display.instant(run.deadline_at)
        )

    @admin.display(description=_("reason"))
    def why_it_ended(self, run: WorkflowRun) -> str:
        """Show the reason of the ending."""
        return display.clean(run.reason) or display.NOTHING

    @admin.display(description=_("recurring task"))
    def schedule_link(self, run: WorkflowRun) -> SafeString | str:
        """Link the schedule that created it; a deleted one is shown by its id."""
        if run.recurring_task is None:
            return display.NOTHING
        row = (
            RecurringTask.objects.using(run._state.db)
            .only("name")
            .filter(pk=run.recurring_task)
            .first()
        )
        if row is None:
            return display.short(run.recurring_task)
        return display.link(display.page_of("recurringtask", row.pk), row.name)

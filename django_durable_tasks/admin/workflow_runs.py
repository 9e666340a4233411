"""The admin of workflow runs: list, page and progress."""

from __future__ import annotations

import functools
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Count, F, QuerySet, Window
from django.db.models.functions import RowNumber
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import display, filters, graphs
from django_durable_tasks.admin import tasks as admin_tasks
from django_durable_tasks.admin.graphs import CHOSEN_OPERATIONS, RUN_OPERATIONS
from django_durable_tasks.admin.readonly import ReadOnlyAdmin, section
from django_durable_tasks.choices import Status, WorkflowStatus
from django_durable_tasks.dependencies.rules import layers
from django_durable_tasks.models import RecurringTask, Task, TaskDependency, WorkflowRun
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.models.workflows import COUNTS
from django_durable_tasks.operations import Operation
from django_durable_tasks.tasks.explanations import Level, Sentence
from django_durable_tasks.workflows import diagrams
from django_durable_tasks.workflows import operations as graph_operations
from django_durable_tasks.workflows.diagrams import natural

# The progress of a workflow run as a bar, and as text for screen readers.


def counted(run: WorkflowRun) -> list[tuple[str, int]]:
    """Return how many of its tasks ended in each status, as counted so far; zeros are omitted."""
    numbers = ((str(status), int(getattr(run, column))) for status, column in COUNTS.items())
    return [(status, number) for status, number in numbers if number]


def progress_words(run: WorkflowRun) -> str:
    """Return the numbers as text: ``12 of 20 ended: 10 SUCCESS, 2 FAILED``."""
    totals = f"{run.ended:,} of {run.total:,} ended"
    counts = ", ".join(f"{number:,} {status}" for status, number in counted(run))
    return f"{totals}: {counts}" if counts else totals


def progress_bar(run: WorkflowRun) -> SafeString:
    """Return a bar with one part per status; the part of open tasks is empty."""
    return display.bar(progress_words(run), max(run.total, run.ended, 1), counted(run))


def progress_cell(run: WorkflowRun) -> SafeString | str:
    """Return the bar with its text below."""
    return display.beneath(progress_bar(run), progress_words(run))


def progress_marks(run: Any) -> list[tuple[str, str]]:
    """Return the badges of a run: (class, text) of its status and conditions. ``run.seen_at`` is
    the database's time.
    """
    over = run.is_open and run.deadline_at is not None and run.deadline_at <= run.seen_at
    states = {"late": over, "stop requested": run.is_open and run.cancel_requested_at is not None}
    badges = [(text.replace(" ", "-"), text) for text, holds in states.items() if holds]
    return [(run.status, run.status), *badges]


def took(run: Any) -> str:
    """Return the duration of the run, up to now if it is open."""
    if run.status == WorkflowStatus.STARTING:
        return display.NOTHING
    return display.duration(((run.completed_at or run.seen_at) - run.created_at).total_seconds())


# The context of the page of a workflow run: progress, diagram, tasks and operations.


TASKS = 50
EDGES = 5
"""The number of edges and gates that are shown of each task."""
RUNS = 200
_DEEPEST = 8


def sentences(run: Any) -> list[Sentence]:
    """Return sentences about the problems of a run, the most severe first; none for a run that
    makes progress or has succeeded.
    """
    texts = []
    if run.is_open and run.deadline_at is not None and run.deadline_at <= run.seen_at:
        late = display.since(run.deadline_at, run.seen_at)
        text = f"Its deadline was {late}: tasks that have not ended will be cancelled."
        texts.append(Sentence(Level.TROUBLE, text))
    if run.status == WorkflowStatus.STARTING:
        text = "Its tasks are still being created. None runs before all have been created."
        texts.append(Sentence(Level.WAIT, text))
    if run.is_open and run.cancel_requested_at is not None:
        requested = display.since(run.cancel_requested_at, run.seen_at)
        texts.append(Sentence(Level.WAIT, f"Its cancellation was requested {requested}."))
    if run.status == WorkflowStatus.FAILED:
        why = f" ({display.clean(run.reason)})" if run.reason else ""
        texts.append(Sentence(Level.TROUBLE, f"It failed{why}."))
    return texts


# Tasks and diagram --------------------------------------------------------------------------------


def _graph(request: HttpRequest, run: WorkflowRun) -> dict[str, Any]:
    """Return the diagram, and one page of the tasks: in topological order if the dependencies were
    read, otherwise by id.
    """
    rows: Any = Task.objects.using(run._state.db).of_workflow(run)
    counts = dict(rows.order_by().values_list("status").annotate(Count("pk")))
    numbers = {str(status): counts.get(str(status), 0) for status in Status}
    is_drawn = "draw" in request.GET or sum(numbers.values()) <= graphs.AT_ONCE
    diagram = diagrams.of_run(run) if is_drawn else None
    state, page_number = request.GET.get("state", ""), request.GET.get("p", "")
    state = state if state in numbers else ""
    total = numbers[state] if state else sum(numbers.values())
    pages = max(1, -(-total // TASKS))
    is_number = page_number.isascii() and page_number.isdecimal() and len(page_number) < 7
    page = min(max(1, int(page_number) if is_number else 1), pages)
    queryset = (rows.filter(status=state) if state else rows).order_by("pk")
    of_page = slice((page - 1) * TASKS, page * TASKS)
    keys = queryset.values_list("pk", flat=True)
    if diagram is None:
        keys = list(keys[of_page])
    else:
        # In topological order, siblings by their labels.
        by_text = {str(key): key for key in keys}
        above: dict[str, list[str]] = {
            node.id: []
            for node in sorted(diagram.nodes, key=lambda node: (natural(node.label), node.id))
        }
        for edge in diagram.edges:
            above.setdefault(edge.target, []).append(edge.source)
        ordered = [by_text[key] for layer in layers(above) for key in layer if key in by_text]
        keys = [*ordered, *sorted(set(by_text.values()) - set(ordered))][of_page]
    tasks = (
        rows.defer(*admin_tasks.TaskAdmin.unlisted).annotate(seen_at=DatabaseNow()).in_bulk(keys)
    )
    return {
        "drawing": graphs.inline_diagram(diagram) if diagram else "",
        "draws": graphs.draws_diagrams(),
        "files": graphs.diagram_files_of("workflowrun", run.pk),
        "tasks": _lines([tasks[key] for key in keys if key in tasks]),
        "state": state,
        "page": page,
        "pages": pages,
        "number": total,
        "states": [
            (display.badge(status, status), status, number)
            for status, number in numbers.items()
            if number
        ],
        "all": sum(numbers.values()),
        "tasks_list": display.list_of("task", workflow__id__exact=run.pk),
    }


def _lines(tasks: list[Any]) -> list[dict[str, Any]]:
    """Return the lines of these tasks with what they wait for: the first edges and gates that are
    unresolved, read in one statement.
    """
    each: dict[str, Any] = {"partition_by": [F("task")]}
    blocked = [task.pk for task in tasks if task.status == Status.BLOCKED]
    edges: Any = TaskDependency.objects.using(conf.settings().DATABASE).above(blocked)
    edges = edges.unresolved().annotate(
        place=Window(RowNumber(), order_by=F("id").asc(), **each),
        number=Window(Count("*"), **each),
    )
    waits: dict[uuid.UUID, list[Any]] = defaultdict(list)
    for edge in edges.filter(place__lte=EDGES).order_by("task", "id"):
        waits[edge.task_id].append(edge)
    upstreams = [edge.depends_on_id for held in waits.values() for edge in held]
    upstream_tasks = display.named_tasks([*upstreams, *(task.cause for task in tasks)])

    def cell(held: list[Any]) -> SafeString | str:
        if not held:
            return display.NOTHING
        more = held[0].number - len(held)
        upstreams_html = display.lines(_upstream(edge, upstream_tasks) for edge in held)
        return display.beneath(upstreams_html, f"and {more:,} more" if more else "")

    return [
        {
            "task": task,
            "link": display.link(display.page_of("task", task.pk), display.task_title(task)),
            "state": display.badges([(task.status, task.status), *admin_tasks.status_labels(task)]),
            "waits": cell(waits[task.pk]),
            "took": admin_tasks.took(task),
            "cause": display.task_link(task.cause, upstream_tasks) if task.cause else "",
            "why": display.clean(task.reason) or display.first_line(task.last_error),
        }
        for task in tasks
    ]


def _upstream(edge: TaskDependency, tasks: Mapping[uuid.UUID, Task]) -> SafeString:
    """Show the upstream of an edge and its required ending, or the gate."""
    if edge.depends_on_id is None:
        comment = display.clean(edge.comment)
        return format_html("{} {}", display.badge("gate", edge.gate or ""), comment)
    return format_html(
        '{} <span class="durable-quiet">{}</span>',
        display.task_link(edge.depends_on_id, tasks),
        edge.dependency_type,
    )


# Related tasks and runs ---------------------------------------------------------------------------


def _callbacks(run: WorkflowRun) -> list[dict[str, Any]]:
    """Return the durable tasks that are created when the run ends, and those that were created."""
    keys = {f"workflow-{run.pk}-{kind}": kind for kind in run.callbacks}
    rows = Task.objects.using(run._state.db).filter(
        tenant_id=run.tenant_id, idempotency_key__in=list(keys)
    )
    created = {
        keys[str(task.idempotency_key)]: task
        for task in rows.only("name", "status", "idempotency_key")
        if keys
    }
    return [
        {
            "kind": kind,
            "name": name,
            "task": task,
            "state": display.task_link(task.pk, {task.pk: task}) if task else "",
        }
        for kind, name in run.callbacks.items()
        for task in (created.get(kind),)
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
    family, stack = [], [(row, 0) for row in reversed(below.get(None, []))]
    while stack:
        row, depth = stack.pop()
        family.append(
            {
                "run": row,
                "depth": min(depth, _DEEPEST),
                "here": row.pk == run.pk,
                "link": display.link(display.page_of("workflowrun", row.pk), row.name),
                "state": display.badge(row.status, row.status),
                "progress": progress_cell(row),
            }
        )
        stack += [(child, depth + 1) for child in reversed(below.get(row.pk, []))]
    return family if len(family) > 1 else []


@admin.display(description=_("workflow"))
def named(run: WorkflowRun) -> SafeString | str:
    """Show the name, the end of the id, and whether it is an inner run."""
    parent = f"part of {display.short(run.parent)}" if run.parent else ""
    return display.beneath(run.name, " · ".join(filter(None, (display.short(run.pk), parent))))


@admin.display(description=_("deadline"))
def due(run: Any) -> str:
    """Show the time until the deadline of an open run."""
    if run.is_open:
        return display.since(run.deadline_at, run.seen_at)
    return display.instant(run.deadline_at)


@admin.display(description=_("recurring task"))
def _schedule(run: WorkflowRun) -> SafeString | str:
    """Link the schedule that created it; a deleted one is shown by its id."""
    if run.recurring_task is None:
        return display.NOTHING
    schedules = RecurringTask.objects.using(run._state.db).only("name")
    row = schedules.filter(pk=run.recurring_task).first()
    if row is None:
        return display.short(run.recurring_task)
    return display.row_link("recurringtask", row.pk, row.name)


_STATE = display.column(_("status"), lambda run: display.badges(progress_marks(run)), "state")
_TOOK = display.column(_("duration"), took)


@admin.register(WorkflowRun)
class WorkflowRunAdmin(ReadOnlyAdmin):
    """Runs of workflows."""

    labels: ClassVar = {
        "created_at": _("started at"),
        "cancel_requested_at": _("stop requested at"),
        "updated_at": _("counted at"),
    }
    list_display = (
        named,
        _STATE,
        display.column(_("progress"), progress_cell, "progressed"),
        *("tenant", "key"),
        display.column(
            _("started"), lambda run: display.since(run.created_at, run.seen_at), "started"
        ),
        _TOOK,
        due,
    )
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
    page_operations = RUN_OPERATIONS
    operations = (*RUN_OPERATIONS, *CHOSEN_OPERATIONS)
    change_form_template = "admin/django_durable_tasks/workflowrun/change_form.html"
    list_select_related = reads_with_page = ("tenant",)
    fieldsets = (
        section(
            None,
            (_STATE, "reason"),
            ("tenant", "key"),
            ("created_at", "completed_at"),
            (_TOOK, "deadline_at"),
            (_schedule, "fire_time"),
            ("cancel_requested_at", "updated_at"),
        ),
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return queryset.filter(filters.by_id_or(search_term, "name__icontains", "key")), False

    def pages(self) -> Iterable[tuple[str, Callable[..., Any], str]]:
        yield from super().pages()
        diagram = functools.partial(graphs.diagram_view, self)
        yield "<uuid:object_id>/graph.<str:ending>", diagram, "workflowrun_graph"

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Return progress, diagram, tasks, related runs and the buttons of the operations."""
        fits: dict[Operation, bool] = {
            graph_operations.cancel_workflow: row.is_open and row.cancel_requested_at is None,
            graph_operations.retry_workflow: (
                row.status != WorkflowStatus.STARTING and row.ended > 0
            ),
        }
        may_view = graphs.may_view_tasks(request)
        chosen = "admin:django_durable_tasks_graph_chosen"
        return {
            "sentences": sentences(row),
            "buttons": self.operation_buttons(request, row, fits),
            "bar": progress_bar(row),
            "words": progress_words(row),
            "looks": may_view,
            "callbacks": _callbacks(row),
            "family": _family(row),
            "family_more": display.list_of("workflowrun", root__exact=row.root),
            **(_graph(request, row) if may_view else {}),
            "forces": graph_operations.force_run.is_permitted(request.user),
            "chosen_operations": [
                {"address": reverse(chosen, args=[operation.name]), "title": operation.title}
                for operation in CHOSEN_OPERATIONS
            ],
        }

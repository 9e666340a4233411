"""The pages that add a dependency between two tasks, and that remove one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_durable_tasks import conf
from django_durable_tasks.admin import (
    actions,
    confirm_page,
    dependencies_cell,
    display,
    staff_tenants,
)
from django_durable_tasks.admin.operation_form import (
    TASK_ID_ATTRIBUTES,
    OperationForm,
    form_fields,
    reason_field,
)
from django_durable_tasks.exceptions import DependencyCycle, DurableTasksError
from django_durable_tasks.models import Task, TaskDependency
from django_durable_tasks.operations.dependencies import ADD, REMOVE

_PAGE = "admin/django_durable_tasks/taskdependency/add.html"


class DependencyForm(OperationForm):
    """The dependent task, the fields of the operation, and the reason."""

    operation = ADD

    task = forms.UUIDField(
        label=gettext_lazy("Task"),
        widget=forms.TextInput(attrs=TASK_ID_ATTRIBUTES),
        help_text=gettext_lazy("The id of the task that will wait. It has not started."),
    )

    def __init__(self, data: Any = None, *, initial: dict[str, str] | None = None) -> None:
        super().__init__(data, initial=initial)
        self.fields.update(form_fields(ADD), reason=reason_field(ADD))


def _tasks(screen: Any, request: HttpRequest, form: DependencyForm) -> tuple[Task, Task] | None:
    """Return the two tasks; None if one does not exist, which the form shows."""
    keys = {name: form.cleaned_data[name] for name in ("task", "upstream")}
    known, tenants = dependencies_cell.named(keys.values()), staff_tenants.tenants_of(request)
    if tenants is not None:
        known = {key: task for key, task in known.items() if task.tenant_id in tenants}
    for name, key in keys.items():
        if key not in known:
            form.add_error(name, _("There is no task %s.") % key)
    return None if form.errors else (known[keys["task"]], known[keys["upstream"]])


def _link(
    request: HttpRequest, form: DependencyForm, pair: tuple[Task, Task], *, dry_run: bool
) -> Any:
    """Add the dependency, or make a dry run; None if it was refused, which the form shows."""
    task, upstream = pair
    values = form.values() | {"upstream": upstream}
    by = actions.who(request)
    try:
        return ADD.perform(task, by=by, reason=form.reason, dry_run=dry_run, **values).report
    except DurableTasksError as refused:
        field = "upstream" if isinstance(refused, DependencyCycle) else None
        form.add_error(field, str(refused))
        return None


def add(screen: Any, request: HttpRequest) -> HttpResponse:
    """Show the form, then what the dependency would change, then add it."""
    if not screen.has_add_permission(request) or not screen.has_view_permission(request):
        raise PermissionDenied
    posted = request.method == "POST"
    form = DependencyForm(request.POST if posted else None, initial=_initial(request))
    shown: dict[str, Any] = {}
    if posted and form.is_valid() and (pair := _tasks(screen, request, form)) is not None:
        confirmed = confirm_page.DO in request.POST
        report = _link(request, form, pair, dry_run=not confirmed)
        if report is not None and confirmed:
            return _added(screen, request, form, pair, report)
        shown = (
            {}
            if report is None
            else {"previewed": True, **_pair(pair), **confirm_page.changes(report)}
        )
    context = {
        **screen.admin_site.each_context(request),
        "opts": screen.opts,
        "media": screen.media,
        "form": form,
        "title": ADD.title,
        "do": confirm_page.DO,
        "back": display.list_of("taskdependency"),
        **shown,
    }
    return TemplateResponse(request, _PAGE, context)


def _pair(pair: tuple[Task, Task]) -> dict[str, Any]:
    known = {task.pk: task for task in pair}
    return {
        "below_link": dependencies_cell.task_link(pair[0].pk, known),
        "upstream_link": dependencies_cell.task_link(pair[1].pk, known),
    }


def _added(
    screen: Any, request: HttpRequest, form: DependencyForm, pair: tuple[Task, Task], report: Any
) -> HttpResponse:
    task, upstream = pair
    # The name does not come first: the templates of the admin capitalize the first letter.
    message = _("Now %(task)s waits for %(upstream)s (%(kind)s).") % {
        "task": dependencies_cell.title(task),
        "upstream": dependencies_cell.title(upstream),
        "kind": form.cleaned_data["type"],
    }
    message = f"{message} {confirm_page.summed_up(report)}"
    remember(
        request,
        task,
        f"Dependency on {upstream.pk} added. {message} {form.cleaned_data['reason']}".strip(),
    )
    screen.message_user(request, message)
    return HttpResponseRedirect(display.page_of("task", task.pk))


def _initial(request: HttpRequest) -> dict[str, str]:
    """Return the initial values from the query string, which links on other pages set."""
    return {name: request.GET[name] for name in ("task", "upstream") if name in request.GET}


def remember(request: HttpRequest, task: Task, message: str) -> None:
    """Add an entry to the history of the dependent task."""
    rows: Any = Task.objects.using(conf.settings().DATABASE).filter(pk=task.pk).only("pk", "name")
    LogEntry.objects.log_actions(int(request.user.pk or 0), rows, CHANGE, message)


def unlink_view(screen: Any) -> Callable[[HttpRequest, int], HttpResponse]:
    """Return the view that removes a dependency, for this ModelAdmin."""

    def view(request: HttpRequest, edge_id: int) -> HttpResponse:
        if not screen.has_view_permission(request) or not REMOVE.is_permitted(request.user):
            raise PermissionDenied
        edge: TaskDependency | None = (
            screen.get_queryset(request).filter(pk=edge_id, depends_on__isnull=False).first()
        )
        known = (
            dependencies_cell.named([edge.task_id, edge.depends_on_id]) if edge is not None else {}
        )
        if edge is None or edge.task_id not in known:
            raise Http404(_("No dependency between tasks has this id."))
        return confirm_page.respond(screen, request, _removal(request, edge, known))

    return view


def _removal(
    request: HttpRequest, edge: TaskDependency, known: dict[Any, Task]
) -> confirm_page.PendingOperation:
    task = known[edge.task_id]
    # The upstream may be pruned. It must still be possible to release its dependent task.
    upstream = known.get(edge.upstream_id) or Task(id=edge.upstream_id, name=str(edge.upstream_id))
    names = {"task": dependencies_cell.title(task), "upstream": dependencies_cell.title(upstream)}
    return confirm_page.PendingOperation(
        title=_("Remove a dependency: %(task)s no longer waits for %(upstream)s") % names,
        operation=REMOVE,
        help=REMOVE.help,
        perform=lambda by, reason, dry_run: REMOVE.perform(
            task, upstream=upstream, by=by, reason=reason, dry_run=dry_run
        ),
        address=request.path,
        remember=lambda message: remember(
            request, task, f"Dependency on {edge.upstream_id} removed. {message}"
        ),
        back=display.page_of("task", task.pk),
    )

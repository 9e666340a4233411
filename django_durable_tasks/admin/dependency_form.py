"""The page on which an operator lets one task wait for another: checked for circles, shown first, then done."""

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
from django_durable_tasks.admin import actions, display, graph_verbs, previews, waiting
from django_durable_tasks.exceptions import DependencyCycle, DurableTasksError
from django_durable_tasks.lifecycle import graph_operations
from django_durable_tasks.models import Task, TaskDependency
from django_durable_tasks.rules.graphs import DependencyType, OnUpstreamFailure

_ID = {"autocomplete": "off", "spellcheck": "false", "placeholder": "0195f3c2-…"}
_PAGE = "admin/django_durable_tasks/taskdependency/add.html"
_WAIT_FOR = {
    DependencyType.MUST_SUCCEED: gettext_lazy("MUST_SUCCEED: it must end as SUCCESS"),
    DependencyType.MUST_FINISH: gettext_lazy("MUST_FINISH: it must end, whichever way"),
    DependencyType.MUST_FAIL: gettext_lazy("MUST_FAIL: it must end as FAILED"),
}
_OTHERWISE = {
    "": gettext_lazy("as the task says"),
    OnUpstreamFailure.SKIP: gettext_lazy("SKIP: the task is skipped"),
    OnUpstreamFailure.FAIL: gettext_lazy("FAIL: the task fails"),
    OnUpstreamFailure.WAIT: gettext_lazy("WAIT: the task goes on waiting"),
    OnUpstreamFailure.RUN: gettext_lazy("RUN: the task runs anyway"),
}


class DependencyForm(forms.Form):
    """Which task waits for which, and how that one must end."""

    task = forms.UUIDField(
        label=gettext_lazy("Task"), widget=forms.TextInput(attrs=_ID),
        help_text=gettext_lazy("The id of the task that will wait; it has not started."),
    )  # fmt: skip
    upstream = forms.UUIDField(
        label=gettext_lazy("Waits for"), widget=forms.TextInput(attrs=_ID),
        help_text=gettext_lazy("The id of the task that it waits for."),
    )  # fmt: skip
    kind = forms.ChoiceField(label=gettext_lazy("Which must"), choices=list(_WAIT_FOR.items()),
                             initial=DependencyType.MUST_SUCCEED)  # fmt: skip
    on_upstream_failure = forms.ChoiceField(
        label=gettext_lazy("Otherwise"), choices=list(_OTHERWISE.items()), required=False,
        help_text=gettext_lazy("What becomes of the task when that one ends otherwise."),
    )  # fmt: skip
    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=150, required=False,
                             help_text=gettext_lazy("Kept beside your name, for whoever asks later."))  # fmt: skip


def _tasks(screen: Any, request: HttpRequest, form: DependencyForm) -> tuple[Task, Task] | None:
    """Return the two tasks; None when one does not exist, which the form tells."""
    keys = {name: form.cleaned_data[name] for name in ("task", "upstream")}
    known = waiting.named(keys.values())
    for name, key in keys.items():
        if key not in known:
            form.add_error(name, _("There is no task %s.") % key)
    return None if form.errors else (known[keys["task"]], known[keys["upstream"]])


def _link(request: HttpRequest, form: DependencyForm, pair: tuple[Task, Task], *, dry_run: bool) -> Any:
    """Say the one verb, or look what it would do; None when it was refused, which the form tells."""
    task, upstream = pair
    given = form.cleaned_data
    try:
        return graph_operations.add_edge(
            task, upstream, given["kind"], by=actions.who(request), reason=given["reason"],
            policy=given["on_upstream_failure"] or None, dry_run=dry_run,
        )  # fmt: skip
    except DurableTasksError as refused:
        field = "upstream" if isinstance(refused, DependencyCycle) else None
        form.add_error(field, str(refused))
        return None


def add(screen: Any, request: HttpRequest) -> HttpResponse:
    """Ask for the edge, show what it would change, place it."""
    if not screen.has_add_permission(request) or not screen.has_view_permission(request):
        raise PermissionDenied
    posted = request.method == "POST"
    form = DependencyForm(request.POST if posted else None, initial=_initial(request))
    shown: dict[str, Any] = {}
    if posted and form.is_valid() and (pair := _tasks(screen, request, form)) is not None:
        doing = previews.DO in request.POST
        report = _link(request, form, pair, dry_run=not doing)
        if report is not None and doing:
            return _added(screen, request, form, pair, report)
        shown = {} if report is None else {"previewed": True, **_pair(pair), **previews.told(report)}
    context = {**screen.admin_site.each_context(request), "opts": screen.opts, "media": screen.media, "form": form,
               "title": _("Add a dependency"), "do": previews.DO, "back": display.list_of("taskdependency"),
               **shown}  # fmt: skip
    return TemplateResponse(request, _PAGE, context)


def _pair(pair: tuple[Task, Task]) -> dict[str, Any]:
    known = {task.pk: task for task in pair}
    return {"below_link": waiting.task_link(pair[0].pk, known), "upstream_link": waiting.task_link(pair[1].pk, known)}


def _added(
    screen: Any, request: HttpRequest, form: DependencyForm, pair: tuple[Task, Task], report: Any
) -> HttpResponse:
    task, upstream = pair
    told = _("Now %(task)s waits for %(upstream)s (%(kind)s).") % {
        "task": waiting.title(task), "upstream": waiting.title(upstream), "kind": form.cleaned_data["kind"],
    }  # fmt: skip
    said = f"{told} {previews.summed_up(report)}"
    remember(request, task, f"Dependency on {upstream.pk} added. {said} {form.cleaned_data['reason']}".strip())
    screen.message_user(request, said)
    return HttpResponseRedirect(display.page_of("task", task.pk))


def _initial(request: HttpRequest) -> dict[str, str]:
    """Return what the address fills in, so that the form is one click away from the page of a task."""
    return {name: request.GET[name] for name in ("task", "upstream") if name in request.GET}


def remember(request: HttpRequest, task: Task, message: str) -> None:
    """Write into the history of the task that waits."""
    rows: Any = Task.objects.using(conf.settings().DATABASE).filter(pk=task.pk).only("pk", "name")
    LogEntry.objects.log_actions(int(request.user.pk or 0), rows, CHANGE, message)


def unlink_view(screen: Any) -> Callable[[HttpRequest, int], HttpResponse]:
    """Return the view that takes an edge away, inside the site of this screen."""

    def view(request: HttpRequest, edge_id: int) -> HttpResponse:
        if not screen.has_view_permission(request) or not graph_verbs.may(request, "delete_taskdependency"):
            raise PermissionDenied
        edge: TaskDependency | None = screen.get_queryset(request).filter(pk=edge_id, depends_on__isnull=False).first()
        known = waiting.named([edge.task_id, edge.depends_on_id]) if edge is not None else {}
        if edge is None or edge.task_id not in known:
            raise Http404(_("No dependency between tasks has this id."))
        return previews.respond(screen, request, _unlinking(request, edge, known))

    return view


def _unlinking(request: HttpRequest, edge: TaskDependency, known: dict[Any, Task]) -> previews.Deed:
    task = known[edge.task_id]
    # A row may be gone, and what waits for it must be freed all the same.
    upstream = known.get(edge.upstream_id) or Task(id=edge.upstream_id, name=str(edge.upstream_id))

    def do(by: str, reason: str, dry_run: bool) -> graph_operations.Report:
        return graph_operations.remove_edge(task, upstream, by=by, reason=reason, dry_run=dry_run)

    return previews.Deed(
        title=_("Remove a dependency: %(task)s no longer waits for %(upstream)s") % {
            "task": waiting.title(task), "upstream": waiting.title(upstream)},
        verb=_("Remove the dependency"), warning=_("The task runs as soon as nothing else holds it."), do=do,
        address=request.path,
        remember=lambda told: remember(request, task, f"Dependency on {edge.upstream_id} removed. {told}"),
        back=display.page_of("task", task.pk),
    )  # fmt: skip

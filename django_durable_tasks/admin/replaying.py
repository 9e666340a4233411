"""The page on which the arguments of one ended task are edited before it runs again."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_durable_tasks.admin import actions, display
from django_durable_tasks.admin.edit_conflicts import EditForm
from django_durable_tasks.admin.fields import JsonField
from django_durable_tasks.celery import wiring
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.lifecycle import dead_letters
from django_durable_tasks.models import Task
from django_durable_tasks.rules.states import REPLAYABLE


class ReplayForm(EditForm):
    """New arguments, and why."""

    args = JsonField(list, label=gettext_lazy("Arguments"), help_text=gettext_lazy("A JSON list, by position."))
    kwargs = JsonField(dict, label=gettext_lazy("Keyword arguments"), help_text=gettext_lazy("A JSON object, by name."))
    reason = forms.CharField(max_length=200, required=False, label=gettext_lazy("Reason"),
                           help_text=gettext_lazy("Kept with the dead letter, beside your name."))  # fmt: skip

    def __init__(self, data: Any = None, *, task: Task) -> None:
        super().__init__(data, initial={"args": display.pretty(task.args), "kwargs": display.pretty(task.kwargs)})
        self.compare_with(task, task.epoch)


def _replay(screen: Any, request: HttpRequest, task: Task, form: ReplayForm) -> bool:
    """Say the one verb; unchanged arguments are not sent, so that also an unknown task can run again."""
    args, kwargs = form.cleaned_data["args"], form.cleaned_data["kwargs"]
    same = args == task.args and kwargs == task.kwargs
    if not same:
        wiring.load_tasks()
    question = screen.model.objects.filter(pk=task.pk, epoch=task.epoch)
    reason, by = form.cleaned_data["reason"], actions.who(request)
    try:
        moved = dead_letters.replay(
            question.using(task._state.db),
            by=by,
            reason=reason,
            args=None if same else args,
            kwargs=None if same else kwargs,
        )
    except DurableTasksError as refused:
        form.add_error(None, str(refused))
        return False
    if not moved:
        form.add_error(None, _("The task is not where it was: somebody else moved it. Nothing was changed."))
        return False
    edited = "" if same else _(" with edited arguments")
    actions.remember(screen, request, moved, f"Replayed{edited}. {reason}".strip())
    screen.message_user(request, _("The task runs again now%s.") % edited)
    return True


def view_for(screen: Any) -> Callable[[HttpRequest, uuid.UUID], HttpResponse]:
    """Return the view, inside the site of this screen."""

    def view(request: HttpRequest, object_id: uuid.UUID) -> HttpResponse:
        if not screen.has_edit_permission(request):
            raise PermissionDenied
        task = screen.get_queryset(request).filter(pk=object_id, status__in=REPLAYABLE).first()
        if task is None:
            raise Http404(_("No ended task has this id."))
        form = ReplayForm(request.POST if request.method == "POST" else None, task=task)
        if request.method == "POST" and form.is_valid() and _replay(screen, request, task, form):
            return HttpResponseRedirect(display.page_of("task", task.pk))
        context = {**screen.admin_site.each_context(request), "opts": screen.opts, "media": screen.media, "form": form,
                   "task": task, "title": _("Replay with edited arguments"),
                   "back": display.page_of("task", task.pk)}  # fmt: skip
        return TemplateResponse(request, "admin/django_durable_tasks/replay.html", context)

    return view

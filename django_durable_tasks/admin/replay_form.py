"""The page that edits the arguments of an ended task before it is replayed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from django_durable_tasks.admin import actions, display
from django_durable_tasks.admin.edit_conflicts import EditForm
from django_durable_tasks.admin.operation_form import form_fields, reason_field
from django_durable_tasks.celery import inspect
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import Task
from django_durable_tasks.operations.tasks import REPLAY_EDITED
from django_durable_tasks.rules.states import REPLAYABLE


def may_edit_arguments(request: HttpRequest) -> bool:
    """Return whether the user may replay a task with edited arguments, which the form shows
    unmasked.
    """
    return (
        REPLAY_EDITED.is_permitted(request.user)
        and bool(request.user.has_perm("django_durable_tasks.view_task"))
        and display.reads_secrets(request)
    )


class ReplayForm(EditForm):
    """New arguments and a reason."""

    def __init__(self, data: Any = None, *, task: Task) -> None:
        super().__init__(
            data, initial={"args": display.pretty(task.args), "kwargs": display.pretty(task.kwargs)}
        )
        self.fields.update(form_fields(REPLAY_EDITED), reason=reason_field(REPLAY_EDITED))
        self.compare_with(task, task.epoch)


def _replay(screen: Any, request: HttpRequest, task: Task, form: ReplayForm) -> bool:
    """Replay the task. Unchanged arguments are not passed, so that a task that is not registered in
    this process can be replayed too.
    """
    args, kwargs = form.cleaned_data["args"], form.cleaned_data["kwargs"]
    same = args == task.args and kwargs == task.kwargs
    if not same:
        inspect.load_tasks()
    tasks = screen.model.objects.using(task._state.db).filter(pk=task.pk, epoch=task.epoch)
    edited = {} if same else {"args": args, "kwargs": kwargs}
    reason = form.cleaned_data["reason"]
    try:
        done = REPLAY_EDITED.perform(tasks, by=actions.who(request), reason=reason, **edited)
    except DurableTasksError as refused:
        form.add_error(None, str(refused))
        return False
    if not done.changed:
        message = _("The status of the task has changed in the meantime. Nothing was changed.")
        form.add_error(None, message)
        return False
    suffix = "" if same else _(" with edited arguments")
    actions.remember(screen, request, [task.pk], f"Replayed{suffix}. {reason}".strip())
    screen.message_user(request, _("Replayed the task%s.") % suffix)
    return True


def view_for(screen: Any) -> Callable[[HttpRequest, uuid.UUID], HttpResponse]:
    """Return the view for this ModelAdmin."""

    def view(request: HttpRequest, object_id: uuid.UUID) -> HttpResponse:
        if not may_edit_arguments(request):
            raise PermissionDenied
        task = screen.get_queryset(request).filter(pk=object_id, status__in=REPLAYABLE).first()
        if task is None:
            raise Http404(_("No ended task has this id."))
        form = ReplayForm(request.POST if request.method == "POST" else None, task=task)
        if request.method == "POST" and form.is_valid() and _replay(screen, request, task, form):
            return HttpResponseRedirect(display.page_of("task", task.pk))
        context = {
            **screen.admin_site.each_context(request),
            "opts": screen.opts,
            "media": screen.media,
            "form": form,
            "task": task,
            "title": REPLAY_EDITED.title,
            "help": REPLAY_EDITED.help,
            "back": display.page_of("task", task.pk),
        }
        return TemplateResponse(request, "admin/django_durable_tasks/replay.html", context)

    return view

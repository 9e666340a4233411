"""The page that adds or edits a schedule, with a preview of its next fires."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from django_durable_tasks.admin import actions, display, fire_table, staff_tenants
from django_durable_tasks.admin.fields import refuse
from django_durable_tasks.admin.recurring_form import RecurringForm
from django_durable_tasks.engine.recurring.preview import Preview, preview
from django_durable_tasks.engine.recurring.schedules import upsert
from django_durable_tasks.exceptions import DurableTasksError, InvalidArguments
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.rules.recurring.declarations import CODE, SETTINGS
from django_durable_tasks.rules.recurring.policies import RecurringStatus

SHOWN = 10


def _preview(form: RecurringForm) -> Preview | None:
    """Return a preview of the schedule; None if it was refused, which the form shows."""
    try:
        return preview(number=SHOWN, **form.keywords())
    except DurableTasksError as refused:
        _refuse(form, refused)
        return None


def _saved(form: RecurringForm) -> RecurringTask | None:
    """Save the schedule; None if it was refused, which the form shows."""
    try:
        is_new = form.row is None
        revision = None if form.row is None else form.row.revision
        return upsert(**form.keywords(), revision=revision, replaces_ended=is_new)
    except DurableTasksError as refused:
        _refuse(form, refused)
        return None


def _refuse(form: RecurringForm, refused: DurableTasksError) -> None:
    if isinstance(refused, InvalidArguments) and "args" in form.fields:
        form.add_error("args", str(refused))
    else:
        refuse(form, refused)


def _row(screen: Any, request: HttpRequest, object_id: uuid.UUID | None) -> RecurringTask | None:
    if object_id is None:
        if not screen.has_add_permission(request):
            raise PermissionDenied
        return None
    if not (screen.has_edit_permission(request) and screen.has_view_permission(request)):
        raise PermissionDenied
    rows = screen.get_queryset(request).exclude(status=RecurringStatus.CANCELLED)
    row: RecurringTask | None = rows.filter(pk=object_id).first()
    if row is None:
        raise Http404(_("No schedule with this id can be edited."))
    return row


def _name_in_use(form: RecurringForm, screen: Any, request: HttpRequest) -> bool:
    """Refuse to add a schedule under the name of an existing one."""
    if form.row is not None:
        return False
    given = form.keywords()
    rows = screen.get_queryset(request).filter(tenant=given["tenant"], name=given["name"])
    found = rows.exclude(~Q(source__in=(CODE, SETTINGS)), status=RecurringStatus.CANCELLED).exists()
    if found:
        form.add_error("name", _("A schedule with this name already exists."))
    return bool(found)


def editing_for(screen: Any) -> Callable[..., HttpResponse]:
    """Return the view, inside the site of this screen."""

    def view(request: HttpRequest, object_id: uuid.UUID | None = None) -> HttpResponse:
        row = _row(screen, request, object_id)
        posted = request.method == "POST"
        form = RecurringForm(
            request.POST if posted else None,
            tenants=staff_tenants.offered(request),
            row=row,
            secrets=display.reads_secrets(request),
        )
        looked = None
        if posted and form.is_valid() and not _name_in_use(form, screen, request):
            if "_look" in request.POST:
                looked = _preview(form)
            elif saved := _saved(form):
                return _saved_response(screen, request, saved, form)
        return _page(screen, request, form, looked)

    return view


def _saved_response(
    screen: Any, request: HttpRequest, saved: RecurringTask, form: RecurringForm
) -> HttpResponse:
    actions.remember(screen, request, [saved.pk], form.summary())
    message = _("Schedule %s is saved. Past fire times do not fire.") % saved.name
    screen.message_user(request, message)
    may_view = screen.has_view_permission(request)
    return HttpResponseRedirect(
        display.page_of("recurringtask", saved.pk) if may_view else request.path
    )


def _page(
    screen: Any, request: HttpRequest, form: RecurringForm, looked: Preview | None
) -> HttpResponse:
    row = form.row
    shown = None if looked is None else fire_table.shown(looked.fires, looked.row, looked.now)
    context = {
        **screen.admin_site.each_context(request),
        "opts": screen.opts,
        "media": screen.media,
        "form": form,
        "row": row,
        "looked": looked,
        "fires": shown,
        "source": row.source if row else "",
        "resting": looked is not None and form.is_paused(form.cleaned_data),
        "title": _("Edit schedule %s") % row.name if row else _("Add a schedule"),
        "back": display.page_of("recurringtask", row.pk)
        if row
        else display.list_of("recurringtask"),
    }
    return TemplateResponse(request, "admin/django_durable_tasks/recurringtask/edit.html", context)

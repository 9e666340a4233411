"""The pages of the operations on one schedule."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _

from django_durable_tasks.admin import actions, display, fire_table
from django_durable_tasks.admin.fields import in_zone, refuse
from django_durable_tasks.admin.operation_form import OperationForm, form_class
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import RecurringTask, Task
from django_durable_tasks.operations import schedules
from django_durable_tasks.operations.operation import Operation, OperationResult

_BY_NAME = {operation.name: operation for operation in schedules.OPERATIONS}


def buttons(screen: Any, request: HttpRequest, row: RecurringTask) -> list[dict[str, Any]]:
    """Return the buttons of the permitted operations that can change this row."""
    return [
        {"url": address(row, operation), "title": f"{operation.title}…"}
        for operation in schedules.OPERATIONS
        if operation is not schedules.REMOVE_OVERRIDE  # it is offered beside each override
        and operation.fits(row.status)
        and _is_permitted(screen, request, operation)
    ]


def address(row: RecurringTask, operation: Operation) -> str:
    """Return the address of the page of an operation."""
    return reverse("admin:django_durable_tasks_recurringtask_do", args=[row.pk, operation.name])


def _is_permitted(screen: Any, request: HttpRequest, operation: Operation) -> bool:
    return operation.is_permitted(request.user) and bool(screen.has_view_permission(request))


def _found(
    screen: Any, request: HttpRequest, object_id: uuid.UUID, operation: Operation
) -> RecurringTask:
    rows = screen.get_queryset(request).filter(pk=object_id, status__in=operation.statuses)
    row: RecurringTask | None = rows.first()
    if row is None:
        raise Http404(_("No schedule has this id, or its status does not allow this."))
    return row


def _perform(
    request: HttpRequest, row: RecurringTask, form: OperationForm, **how: Any
) -> OperationResult | None:
    """Perform the operation; None if it was refused, which the form shows."""
    values = form.values() | how
    try:
        outcome = form.operation.perform(row, by=actions.who(request), reason=form.reason, **values)
        if form.operation is schedules.BACKFILL and not how.get("dry_run"):
            schedules.refuse_nothing(outcome)
    except DurableTasksError as refused:
        refuse(form, refused)
        return None
    return outcome


def _done(
    screen: Any,
    request: HttpRequest,
    row: RecurringTask,
    form: OperationForm,
    outcome: OperationResult,
) -> HttpResponse:
    title = form.operation.title
    entry = f"{title}. {outcome.message} {form.reason}".strip()
    actions.remember(screen, request, [row.pk], entry)
    message: Any = outcome.message
    if isinstance(outcome.value, Task):
        task = outcome.value.pk
        link = display.link(display.page_of("task", task), task)
        message = format_html(_("Created task {}."), link)
    # The name does not come first: the templates of the admin capitalize the first letter.
    text = format_html(_("Schedule {name}: {message}"), name=row.name, message=message)
    screen.message_user(request, text)
    return HttpResponseRedirect(display.page_of("recurringtask", row.pk))


def _report(row: RecurringTask, outcome: OperationResult) -> dict[str, Any]:
    """Return the context of what a backfill would do."""
    steps = [
        {
            "at": fire_table.local_of(step.fire_time, row.time_zone),
            "action": display.badge(f"action-{step.action}", step.action),
            "why": step.why,
        }
        for step in outcome.value.steps
    ]
    return {"steps": steps, "remark": outcome.value.remark}


def view_for(screen: Any) -> Callable[[HttpRequest, uuid.UUID, str], HttpResponse]:
    """Return the view for this ModelAdmin."""

    def view(request: HttpRequest, object_id: uuid.UUID, name: str) -> HttpResponse:
        operation = _BY_NAME.get(name)
        if operation is None:
            raise Http404(_("There is no such operation."))
        if not _is_permitted(screen, request, operation):
            raise PermissionDenied
        row = _found(screen, request, object_id, operation)
        posted = request.method == "POST"
        form = form_class(operation)(request.POST if posted else None, initial=_initial(request))
        in_zone(form, row.time_zone)
        report = None
        if posted and form.is_valid():
            looks = operation.dry_run and "_look" in request.POST
            outcome = _perform(request, row, form, **({"dry_run": True} if looks else {}))
            if outcome is not None and not looks:
                return _done(screen, request, row, form, outcome)
            report = None if outcome is None else _report(row, outcome)
        return _page(screen, request, row, form, report)

    return view


def _page(
    screen: Any,
    request: HttpRequest,
    row: RecurringTask,
    form: OperationForm,
    report: dict[str, Any] | None,
) -> HttpResponse:
    operation = form.operation
    context = {
        **screen.admin_site.each_context(request),
        "opts": screen.opts,
        "media": screen.media,
        "form": form,
        "row": row,
        "operation": operation,
        "report": report,
        "title": _("%(operation)s: %(name)s") % {"operation": operation.title, "name": row.name},
        "back": display.page_of("recurringtask", row.pk),
    }
    template = "admin/django_durable_tasks/recurringtask/operation.html"
    return TemplateResponse(request, template, context)


def _initial(request: HttpRequest) -> dict[str, Any]:
    """Return the initial values from the query string, which links of a fire table set."""
    return {
        "request_id": uuid.uuid4(),
        **{
            name: request.GET[name]
            for name in ("fire_time", "action", "start", "end")
            if name in request.GET
        },
    }

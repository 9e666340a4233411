"""The page that adds or edits a calendar, with imported dates and a year at a glance."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_durable_tasks.admin import actions, display, staff_tenants
from django_durable_tasks.admin.calendar_dates import MergedDates, months_of, written
from django_durable_tasks.admin.calendar_form import CalendarForm
from django_durable_tasks.admin.fields import refuse
from django_durable_tasks.engine.recurring import calendars
from django_durable_tasks.engine.recurring.schedule_cache import business_days
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import Calendar
from django_durable_tasks.operations.calendars import SAVE

_MOST_SHOWN = 200


def _known(screen: Any, request: HttpRequest, object_id: int | None) -> Calendar | None:
    if object_id is None:
        if not screen.has_add_permission(request):
            raise PermissionDenied
        return None
    if not (screen.has_edit_permission(request) and screen.has_view_permission(request)):
        raise PermissionDenied
    found: Calendar | None = screen.get_queryset(request).filter(pk=object_id).first()
    if found is None:
        raise Http404(_("No calendar has this id."))
    return found


def _name_in_use(form: CalendarForm, screen: Any, request: HttpRequest) -> bool:
    """Refuse to add a calendar under the name of an existing one."""
    if form.known is not None:
        return False
    given = form.keywords()
    found = screen.get_queryset(request).filter(tenant=given["tenant"], name=given["name"]).exists()
    if found:
        form.add_error("name", _("A calendar with this name already exists."))
    return bool(found)


def _saved(form: CalendarForm, by: str) -> Calendar | None:
    """Save the calendar; None if it was refused, which the form shows."""
    revision = form.known.revision if form.known else None
    try:
        outcome = SAVE.perform(
            by=by, reason=form.cleaned_data["reason"], revision=revision, **form.keywords()
        )
    except DurableTasksError as refused:
        refuse(form, refused)
        return None
    saved: Calendar = outcome.value
    return saved


def editing_for(screen: Any) -> Callable[..., HttpResponse]:
    """Return the view, inside the site of this screen."""

    def view(request: HttpRequest, object_id: int | None = None) -> HttpResponse:
        known = _known(screen, request, object_id)
        special = business_days(known).special if known else ()
        given: dict[str, Any] = {"known": known, "tenants": staff_tenants.offered(request)}
        if request.method != "POST":
            return _page(screen, request, CalendarForm(**given, days=special))
        form = CalendarForm(request.POST, request.FILES, **given, days=special)
        if not form.is_valid() or _name_in_use(form, screen, request):
            return _page(screen, request, form)
        if "_take" in request.POST:
            return _page(screen, request, *_with_taken(form, request))
        if "_look" in request.POST:
            return _page(screen, request, form)
        saved = _saved(form, actions.who(request))
        return (
            _page(screen, request, form)
            if saved is None
            else _saved_response(screen, request, saved, form)
        )

    return view


def _with_taken(
    form: CalendarForm, request: HttpRequest
) -> tuple[CalendarForm, MergedDates | None]:
    """Return the form with the imported dates, which are not saved yet."""
    taken = form.take_in()
    if taken is None:
        return form, None
    data = request.POST.copy()
    data["days"], data["origin"] = written(taken.days), form.source()
    filled = CalendarForm(data, known=form.known, tenants=staff_tenants.offered(request))
    filled.is_valid()
    return filled, taken


def _saved_response(
    screen: Any, request: HttpRequest, saved: Calendar, form: CalendarForm
) -> HttpResponse:
    actions.remember(screen, request, [saved.pk], form.summary())
    number = len(calendars.naming(saved.name, saved.tenant_id))
    effect = ngettext("%d schedule uses it.", "%d schedules use it.", number) % number
    screen.message_user(
        request,
        _("Calendar %(name)s is saved. %(effect)s") % {"name": saved.name, "effect": effect},
    )
    may_view = screen.has_view_permission(request)
    return HttpResponseRedirect(display.page_of("calendar", saved.pk) if may_view else request.path)


def _page(
    screen: Any, request: HttpRequest, form: CalendarForm, taken: MergedDates | None = None
) -> HttpResponse:
    known = form.known
    shown = form.is_bound and not form.errors
    year = _year(form, taken) if shown else 0
    context = {
        **screen.admin_site.each_context(request),
        "opts": screen.opts,
        "media": screen.media,
        "form": form,
        "taken": taken,
        "added": taken.added[:_MOST_SHOWN] if taken else (),
        "changed": taken.changed[:_MOST_SHOWN] if taken else (),
        "months": months_of(form.value(), year) if shown else [],
        "year": year,
        "title": _("Edit calendar %s") % known.name if known else _("Add a calendar"),
        "back": display.page_of("calendar", known.pk) if known else display.list_of("calendar"),
    }
    return TemplateResponse(request, "admin/django_durable_tasks/calendar/edit.html", context)


def _year(form: CalendarForm, taken: MergedDates | None) -> int:
    """Return this year, or the first one of the imported dates."""
    this_year = timezone.localdate().year
    days: list[date] = [one.day for one in taken.added] if taken else []
    return this_year if not days or any(day.year == this_year for day in days) else min(days).year

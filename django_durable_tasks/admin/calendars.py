"""The admin of calendars: working days, a year at a glance, dates, imports, and the schedules
that use them.
"""

from __future__ import annotations

import calendar
from calendar import Calendar as Months
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, time
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Count, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.dates import MONTHS, WEEKDAYS, WEEKDAYS_ABBR
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin import actions, display, filters, staff_tenants
from django_durable_tasks.admin.actions import reason_field
from django_durable_tasks.admin.fields import OPENED, EditForm, refuse
from django_durable_tasks.admin.readonly import ScreenAdmin
from django_durable_tasks.admin.staff_tenants import is_default_only
from django_durable_tasks.choices import DayKind, SpecialDay
from django_durable_tasks.exceptions import DurableTasksError, InvalidCalendar
from django_durable_tasks.models import (
    DEFAULT_TENANT_ID,
    Calendar,
    CalendarDay,
    RecurringTask,
    Tenant,
)
from django_durable_tasks.schedules import calendars
from django_durable_tasks.schedules.business_days import (
    MOST_CHARACTERS,
    BusinessDays,
    from_holidays,
    from_ics,
)
from django_durable_tasks.schedules.schedule_cache import business_days

# The dates of a calendar as editable text lines, ``2026-12-24 HALF 14:00 Christmas Eve``, and as a
# table of a year.
#
# Without a kind a date is CLOSED. A half day contains its last open wall time.


FIRST_YEAR, LAST_YEAR = 1900, 2200


def written(days: Sequence[SpecialDay]) -> str:
    """Return one line of text for each date, in their order."""
    return "\n".join(_line(one) for one in sorted(days, key=lambda one: one.day))


def _line(one: SpecialDay) -> str:
    unmistaken = one.kind == DayKind.CLOSED and one.name.partition(" ")[0] not in set(DayKind)
    kind = "" if unmistaken else one.kind.value
    until = f"{one.until:%H:%M}" if one.until else ""
    return " ".join(part for part in (one.day.isoformat(), kind, until, one.name) if part)


def read(text: str) -> list[SpecialDay]:
    """Return the dates of these lines; raises InvalidCalendar with the line and the remedy."""
    lines = ((number, line.split()) for number, line in enumerate(text.splitlines(), 1))
    return [_read(number, words) for number, words in lines if words]


def _read(number: int, words: list[str]) -> SpecialDay:
    try:
        day, rest = date.fromisoformat(words[0]), words[1:]
        kind = DayKind(rest.pop(0)) if rest and rest[0] in set(DayKind) else DayKind.CLOSED
        until = time.fromisoformat(rest.pop(0)) if kind == DayKind.HALF else None
    except (ValueError, IndexError):
        message = gettext(
            "Line %(number)d, %(line)r: write 2026-12-25 Christmas, 2026-12-24 HALF 14:00 or"
            " 2026-05-02 OPEN."
        )
        raise InvalidCalendar(message % {"number": number, "line": " ".join(words)[:60]}) from None
    return SpecialDay(day, kind, " ".join(rest)[:200], until)


@dataclass(frozen=True, slots=True)
class MergedDates:
    """The merged dates, and which of the imported ones are new or differ from the previous date."""

    days: tuple[SpecialDay, ...]
    added: tuple[SpecialDay, ...]
    changed: tuple[SpecialDay, ...]


def taken_in(known: Sequence[SpecialDay], others: Sequence[SpecialDay]) -> MergedDates:
    """Return the known dates merged with the others, which replace those of the same day."""
    by_day = {one.day: one for one in known}
    added = tuple(one for one in others if one.day not in by_day)
    changed = tuple(one for one in others if one.day in by_day and by_day[one.day] != one)
    by_day |= {one.day: one for one in others}
    return MergedDates(tuple(by_day[day] for day in sorted(by_day)), added, changed)


# The table of a year ------------------------------------------------------------------------------


def months_of(days: BusinessDays, year: int) -> list[dict[str, Any]]:
    """Return the months of a year: their names and weeks of cells; a cell outside of the month is
    None.
    """
    special = {one.day: one for one in days.special if one.day.year == year}
    return [
        {
            "name": f"{MONTHS[month]} {year}",
            "weeks": [
                [_cell(days, special.get(day), day) if day.month == month else None for day in week]
                for week in Months().monthdatescalendar(year, month)
            ],
        }
        for month in range(1, 13)
    ]


def _cell(days: BusinessDays, special: SpecialDay | None, day: date) -> dict[str, Any]:
    if special is None:
        open_ = days.is_open(day)
        return {
            "number": day.day,
            "mark": "open" if open_ else "off",
            "title": "" if open_ else gettext("closed"),
        }
    kinds = {
        DayKind.CLOSED: ("closed", gettext("closed")),
        DayKind.OPEN: ("extra", gettext("open")),
    }
    mark, word = kinds.get(
        special.kind,
        ("half", f"{gettext('open until')} {special.until:%H:%M}" if special.until else ""),
    )
    return {
        "number": day.day,
        "mark": mark,
        "title": f"{word}: {special.name}" if special.name else word,
    }


def year_of(text: str, otherwise: int) -> int:
    """Return the year in the query string, otherwise the default."""
    year = int(text) if text.isdecimal() and len(text) == 4 else otherwise
    return min(max(year, FIRST_YEAR), LAST_YEAR)


# The form of a calendar: its working days, its dates as text lines, and the source of an import.


_WEEK = [(day + 1, WEEKDAYS[day]) for day in calendar.Calendar().iterweekdays()]
_YEARS_AHEAD = 4


class CalendarForm(EditForm):
    """A calendar. The fields of the second half are used by the import button and never saved."""

    name = forms.CharField(
        max_length=200,
        help_text=_("Schedules refer to this name. It cannot be changed later."),
    )
    tenant = forms.ModelChoiceField(Tenant.objects.none(), to_field_name="slug")
    description = forms.CharField(required=False, max_length=500)
    working_days = forms.TypedMultipleChoiceField(
        choices=_WEEK,
        coerce=int,
        required=False,
        widget=forms.CheckboxSelectMultiple,
        initial=[1, 2, 3, 4, 5],
    )
    days = forms.CharField(
        required=False,
        label=_("Dates"),
        max_length=2_000_000,
        widget=forms.Textarea(attrs={"rows": 16, "cols": 60, "spellcheck": "false"}),
        help_text=_(
            "One date per line: 2026-12-25 Christmas, 2026-12-24 HALF 14:00 Eve, 2026-05-02 OPEN."
        ),
    )
    origin = forms.CharField(
        required=False, max_length=200, help_text=_("Where the dates come from.")
    )

    country = forms.CharField(
        required=False,
        max_length=10,
        help_text=_("A country (DE) or a stock exchange (XNYS), as named by the package holidays."),
    )
    subdivision = forms.CharField(required=False, max_length=20, help_text=_("For example BY."))
    first_year = forms.IntegerField(required=False, min_value=FIRST_YEAR, max_value=LAST_YEAR)
    last_year = forms.IntegerField(required=False, min_value=FIRST_YEAR, max_value=LAST_YEAR)
    file = forms.FileField(
        required=False,
        label=_("iCalendar file"),
        help_text=_("An .ics file; the days of its events become closed."),
    )

    reason = reason_field(calendars.upsert)

    HALVES = (
        ("name", "tenant", "description", "working_days", "days", "origin", "reason", OPENED),
        ("country", "subdivision", "first_year", "last_year", "file"),
    )

    def __init__(
        self,
        data: Any = None,
        files: Any = None,
        *,
        tenants: QuerySet[Tenant],
        known: Calendar | None = None,
        days: Sequence[SpecialDay] = (),
    ) -> None:
        self.known = known
        this_year = timezone.localdate().year
        initial: dict[str, Any] = {"first_year": this_year, "last_year": this_year + _YEARS_AHEAD}
        if known is not None:
            initial |= {
                name: getattr(known, name) for name in ("description", "working_days", "origin")
            }
            initial["days"] = written(days)
        super().__init__(data, files, initial=initial)
        if known is not None or is_default_only(tenants):
            del self.fields["tenant"]
        else:
            self.fields["tenant"].queryset = tenants  # type: ignore[attr-defined]
        if known is not None:
            del self.fields["name"]
        self.compare_with(known, known.revision if known else "")

    def half(self, number: int) -> list[forms.BoundField]:
        """Return the fields of one half of the form."""
        return [self[name] for name in self.HALVES[number] if name in self.fields]

    def own(self) -> list[forms.BoundField]:
        """Return the fields that are saved."""
        return self.half(0)

    def sources(self) -> list[forms.BoundField]:
        """Return the fields of the import."""
        return self.half(1)

    def clean_days(self) -> list[SpecialDay]:
        """Return the dates."""
        try:
            return read(self.cleaned_data["days"])
        except InvalidCalendar as refused:
            raise forms.ValidationError(str(refused)) from None

    def clean(self) -> dict[str, Any]:
        """Refuse an invalid calendar, and an edit of a calendar that has changed since the form was
        opened.
        """
        given: dict[str, Any] = super().clean() or {}
        if not self.errors:
            try:
                self.value()
            except InvalidCalendar as refused:
                self.add_error("days" if given["working_days"] else "working_days", str(refused))
        return given

    def value(self) -> BusinessDays:
        """Return the open days of the form; raises InvalidCalendar."""
        given = self.cleaned_data
        name = self.known.name if self.known else given["name"]
        return BusinessDays(
            name=name, working_days=tuple(given["working_days"]), special=tuple(given["days"])
        )

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of ``calendars.upsert``."""
        given, known = self.cleaned_data, self.known
        tenant = known.tenant_id if known else getattr(given.get("tenant"), "pk", DEFAULT_TENANT_ID)
        return {
            "name": known.name if known else given["name"],
            "tenant": tenant,
            "days": given["days"],
            **{name: given[name] for name in ("working_days", "description", "origin")},
        }

    # Import ---------------------------------------------------------------------------------------

    def take_in(self) -> MergedDates | None:
        """Return the dates merged with those of the country or file; None if these are refused,
        which the form shows.
        """
        given = self.cleaned_data
        source = "file" if given.get("file") else "country"
        if not given.get(source):
            self.add_error("country", gettext("Give a country or a file."))
            return None
        try:
            found = self._from_file() if source == "file" else self._from_holidays()
        except InvalidCalendar as refused:
            self.add_error(
                "first_year" if str(refused).startswith("years=") else source, str(refused)
            )
            return None
        return taken_in(given["days"], found)

    def _years(self) -> range:
        first, last = self.cleaned_data.get("first_year"), self.cleaned_data.get("last_year")
        this_year = timezone.localdate().year
        return range(first or this_year, (last or first or this_year) + 1)

    def _from_holidays(self) -> Sequence[SpecialDay]:
        given = self.cleaned_data
        return from_holidays(
            given["country"].strip().upper(), given["subdivision"].strip() or None, self._years()
        )

    def _from_file(self) -> Sequence[SpecialDay]:
        try:
            text = self.cleaned_data["file"].read(4 * MOST_CHARACTERS + 1).decode()
        except UnicodeDecodeError as error:
            raise InvalidCalendar(
                gettext("The file is not in UTF-8: byte %d cannot be read.") % error.start
            ) from error
        return from_ics(text, self._years())

    def source(self) -> str:
        """Return the sources of imported dates, added to those that the field already lists."""
        given = self.cleaned_data
        years = self._years()
        name = (
            given["file"].name
            if given.get("file")
            else "-".join(
                part
                for part in (given["country"].strip().upper(), given["subdivision"].strip())
                if part
            )
        )
        found = f"{name} {years[0]}-{years[-1]}"
        before = [one for one in given["origin"].split(", ") if one and one != found]
        return ", ".join([*before, found])[:200]


# The page that adds or edits a calendar, with imported dates and a year at a glance.


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
        raise Http404(gettext("No calendar has this id."))
    return found


def _name_in_use(form: CalendarForm, screen: Any, request: HttpRequest) -> bool:
    """Refuse to add a calendar under the name of an existing one."""
    if form.known is not None:
        return False
    given = form.keywords()
    found = screen.get_queryset(request).filter(tenant=given["tenant"], name=given["name"]).exists()
    if found:
        form.add_error("name", gettext("A calendar with this name already exists."))
    return bool(found)


def _saved(form: CalendarForm, by: str) -> Calendar | None:
    """Save the calendar; None if it was refused, which the form shows."""
    revision = form.known.revision if form.known else None
    try:
        values = form.keywords()
        outcome = calendars.upsert.perform(
            values.pop("name"),
            by=by,
            reason=form.cleaned_data["reason"],
            revision=revision,
            **values,
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
        gettext("Calendar %(name)s is saved. %(effect)s") % {"name": saved.name, "effect": effect},
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
        "title": gettext("Edit calendar %s") % known.name if known else gettext("Add a calendar"),
        "back": display.page_of("calendar", known.pk) if known else display.list_of("calendar"),
    }
    return TemplateResponse(request, "admin/django_durable_tasks/calendar/edit.html", context)


def _year(form: CalendarForm, taken: MergedDates | None) -> int:
    """Return this year, or the first one of the imported dates."""
    this_year = timezone.localdate().year
    days: list[date] = [one.day for one in taken.added] if taken else []
    return this_year if not days or any(day.year == this_year for day in days) else min(days).year


_UPDATED = display.instant_of("updated_at", _("updated at"))
_SHOWN = 100


def _delete(screen: Any, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
    """Delete calendars, and redirect from the page of a deleted one to the list."""
    answer = actions.run(screen, request, rows, calendars.delete)
    gone = actions.CONFIRMED in request.POST and not rows.exists()
    return HttpResponseRedirect(display.list_of("calendar")) if gone else answer


@admin.register(Calendar)
class CalendarAdmin(ScreenAdmin):
    """Calendars."""

    named_by = ("name",)
    list_display = ("name", "description", "week", "dates", "origin", _UPDATED)
    list_filter = (filters.TenantFilter,)
    sortable_by = ()
    ordering = ("tenant_id", "name")
    search_fields = ("name", "description")
    actions = (actions.labelled(_delete, calendars.delete),)
    operations = (calendars.upsert,)
    change_form_template = "admin/django_durable_tasks/calendar/change_form.html"
    fieldsets: ClassVar = (
        (
            None,
            {
                "fields": (
                    ("week", "dates"),
                    "description",
                    ("origin", _UPDATED),
                    ("updated_by", "reason"),
                    "tenant",
                )
            },
        ),
    )
    readonly_fields = ("week", "dates", _UPDATED)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        days = CalendarDay.objects.filter(calendar=OuterRef("pk")).order_by().values("calendar")
        number = Subquery(
            days.annotate(number=Count("pk")).values("number"), output_field=IntegerField()
        )
        rows: QuerySet[Any] = super().get_queryset(request).annotate(number=Coalesce(number, 0))
        return rows.select_related("tenant")

    def get_urls(self) -> list[URLPattern]:
        edit = self.admin_site.admin_view(editing_for(self))
        return [
            path("add/", edit, name="django_durable_tasks_calendar_add"),
            path("<int:object_id>/edit/", edit, name="django_durable_tasks_calendar_edit"),
            *super().get_urls(),
        ]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add a year at a glance, its dates, the schedules that use the calendar, and buttons."""
        row = context["original"]
        year = year_of(request.GET.get("year", ""), timezone.localdate().year)
        context |= {
            **_context_of(row, year),
            **_followers(row),
            "year": year,
            "before": year - 1,
            "after": year + 1,
            "buttons": self._buttons(request, row),
        }
        return super().render_change_form(request, context, *args, **kwargs)

    def _buttons(self, request: HttpRequest, row: Calendar) -> list[dict[str, str]]:
        edit = reverse("admin:django_durable_tasks_calendar_edit", args=[row.pk])
        found = (
            [{"url": edit, "title": gettext("Edit or import dates…")}]
            if self.has_edit_permission(request)
            else []
        )
        if calendars.delete.is_permitted(request.user):
            found.append({"action": calendars.delete.name, "title": f"{calendars.delete.title}…"})
        return found

    # Permissions ----------------------------------------------------------------------------------

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse the stock form: a calendar is changed by ``upsert``, on a separate page."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse Django's deletion: a calendar that a schedule uses must not be deleted."""
        return False

    def has_edit_permission(self, request: HttpRequest) -> bool:
        return calendars.upsert.is_permitted(request.user)

    # Columns and fields ---------------------------------------------------------------------------

    @admin.display(description=_("working days"))
    def week(self, row: Calendar) -> str:
        """Show the working days."""
        return ", ".join(str(WEEKDAYS_ABBR[day - 1]) for day in row.working_days) or display.NOTHING

    @admin.display(description=_("dates"))
    def dates(self, row: Any) -> str:
        """Show the number of dates that differ from their weekday."""
        return f"{row.number:,}"


def _context_of(row: Calendar, year: int) -> dict[str, Any]:
    try:
        days = business_days(row)
    except InvalidCalendar as broken:
        return {"months": [], "special": [], "problem": str(broken)}
    return {
        "months": months_of(days, year),
        "special": [one for one in days.special if one.day.year == year],
    }


def _followers(row: Calendar) -> dict[str, Any]:
    keys = calendars.naming(row.name, row.tenant_id)
    found = (
        RecurringTask.objects.using(row._state.db)
        .filter(pk__in=keys[:_SHOWN])
        .order_by("name")
        .only("name", "status")
    )
    shown = [
        {
            "name": one.name,
            "status": display.badge(f"schedule-{one.status}", one.status),
            "url": display.page_of("recurringtask", one.pk),
        }
        for one in found
    ]
    return {"followers": shown, "number": len(keys), "unshown": max(0, len(keys) - _SHOWN)}

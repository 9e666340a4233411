"""The admin of calendars: working days, a year at a glance, dates, imports, and the schedules
that use them.
"""

from __future__ import annotations

import calendar
from calendar import Calendar as Months
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, time
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.dates import MONTHS, WEEKDAYS, WEEKDAYS_ABBR
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_durable_tasks.admin import actions, display, filters
from django_durable_tasks.admin.actions import reason_field
from django_durable_tasks.admin.fields import NamedRowForm
from django_durable_tasks.admin.readonly import OwnFormAdmin, section
from django_durable_tasks.choices import DayKind, SpecialDay
from django_durable_tasks.exceptions import InvalidCalendar
from django_durable_tasks.models import Calendar, RecurringTask, Tenant
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
    lines = []
    for special in sorted(days, key=lambda special: special.day):
        # A name that begins with the word of a kind would be read as this kind.
        names_kind = special.name.partition(" ")[0] in set(DayKind)
        kind = "" if special.kind == DayKind.CLOSED and not names_kind else special.kind.value
        until = f"{special.until:%H:%M}" if special.until else ""
        words = (special.day.isoformat(), kind, until, special.name)
        lines.append(" ".join(word for word in words if word))
    return "\n".join(lines)


def read(text: str) -> list[SpecialDay]:
    """Return the dates of these lines; raises InvalidCalendar with the line and the remedy."""
    days = []
    for number, line in enumerate(text.splitlines(), 1):
        if not (words := line.split()):
            continue
        try:
            day, tail = date.fromisoformat(words[0]), words[1:]
            kind = DayKind(tail.pop(0)) if tail and tail[0] in set(DayKind) else DayKind.CLOSED
            until = time.fromisoformat(tail.pop(0)) if kind == DayKind.HALF else None
        except (ValueError, IndexError):
            raise InvalidCalendar(
                f"Line {number}, {' '.join(words)[:60]!r}: write 2026-12-25 Christmas, 2026-12-24"
                " HALF 14:00 or 2026-05-02 OPEN."
            ) from None
        days.append(SpecialDay(day, kind, " ".join(tail)[:200], until))
    return days


@dataclass(frozen=True, slots=True)
class MergedDates:
    """The merged dates, and which of the imported ones are new or differ from the previous date."""

    days: tuple[SpecialDay, ...]
    added: tuple[SpecialDay, ...]
    changed: tuple[SpecialDay, ...]


# The table of a year ------------------------------------------------------------------------------


def months_of(days: BusinessDays, year: int) -> list[dict[str, Any]]:
    """Return the months of a year: their names and weeks of cells; a cell outside of the month is
    None.
    """
    special = {
        special_day.day: special_day for special_day in days.special if special_day.day.year == year
    }
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
        mark, title = ("open", "") if days.is_open(day) else ("off", "closed")
        return {"number": day.day, "mark": mark, "title": title}
    mark, word = {
        DayKind.CLOSED: ("closed", "closed"),
        DayKind.OPEN: ("extra", "open"),
        DayKind.HALF: ("half", f"open until {special.until:%H:%M}" if special.until else ""),
    }[special.kind]
    title = f"{word}: {special.name}" if special.name else word
    return {"number": day.day, "mark": mark, "title": title}


def year_of(text: str, otherwise: int) -> int:
    """Return the year in the query string, otherwise the default."""
    year = int(text) if text.isdecimal() and len(text) == 4 else otherwise
    return min(max(year, FIRST_YEAR), LAST_YEAR)


# The form of a calendar: its working days, its dates as text lines, and the source of an import.


_WEEK = [(day + 1, WEEKDAYS[day]) for day in calendar.Calendar().iterweekdays()]
_YEARS_AHEAD = 4


class CalendarForm(NamedRowForm):
    """A calendar. The fields of IMPORTED are used by the import button and never saved."""

    name = forms.CharField(
        max_length=200, help_text=_("Schedules refer to this name. It cannot be changed later.")
    )
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

    IMPORTED = ("country", "subdivision", "first_year", "last_year", "file")

    def __init__(
        self,
        data: Any = None,
        files: Any = None,
        *,
        tenants: QuerySet[Tenant],
        row: Calendar | None = None,
        days: Sequence[SpecialDay] = (),
    ) -> None:
        this_year = display.today().year
        initial: dict[str, Any] = {"first_year": this_year, "last_year": this_year + _YEARS_AHEAD}
        if row is not None:
            initial |= {
                name: getattr(row, name) for name in ("description", "working_days", "origin")
            }
            initial["days"] = written(days)
        super().__init__(data, files, tenants=tenants, row=row, initial=initial)

    def own(self) -> list[forms.BoundField]:
        """Return the fields that are saved."""
        return [self[name] for name in self.fields if name not in self.IMPORTED]

    def sources(self) -> list[forms.BoundField]:
        """Return the fields of the import."""
        return [self[name] for name in self.IMPORTED]

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
        cleaned: dict[str, Any] = super().clean() or {}
        if not self.errors:
            try:
                self.value()
            except InvalidCalendar as refused:
                self.add_error("days" if cleaned["working_days"] else "working_days", str(refused))
        return cleaned

    def value(self) -> BusinessDays:
        """Return the open days of the form; raises InvalidCalendar."""
        cleaned = self.cleaned_data
        return BusinessDays(
            name=self.name_of(cleaned),
            working_days=tuple(cleaned["working_days"]),
            special=tuple(cleaned["days"]),
        )

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of ``calendars.upsert``."""
        names = ("days", "working_days", "description", "origin")
        return self.identity() | {name: self.cleaned_data[name] for name in names}

    # Import ---------------------------------------------------------------------------------------

    def take_in(self) -> MergedDates | None:
        """Return the dates merged with those of the country or file; None if these are refused,
        which the form shows.
        """
        cleaned = self.cleaned_data
        source = "file" if cleaned.get("file") else "country"
        if not cleaned.get(source):
            self.add_error("country", "Give a country or a file.")
            return None
        try:
            if source == "file":
                try:
                    text = cleaned["file"].read(4 * MOST_CHARACTERS + 1).decode()
                except UnicodeDecodeError as error:
                    text = f"The file is not in UTF-8: byte {error.start} cannot be read."
                    raise InvalidCalendar(text) from error
                imported = from_ics(text, self._years())
            else:
                country = cleaned["country"].strip().upper()
                subdivision = cleaned["subdivision"].strip() or None
                imported = from_holidays(country, subdivision, self._years())
        except InvalidCalendar as refused:
            self.add_error("first_year" if refused.option == "years" else source, str(refused))
            return None
        # The imported dates replace those of the same day.
        by_day = {special.day: special for special in cleaned["days"]}
        differing = [special for special in imported if by_day.get(special.day) != special]
        added = tuple(special for special in differing if special.day not in by_day)
        changed = tuple(special for special in differing if special.day in by_day)
        by_day |= {special.day: special for special in imported}
        return MergedDates(tuple(by_day[day] for day in sorted(by_day)), added, changed)

    def _years(self) -> range:
        first, last = self.cleaned_data.get("first_year"), self.cleaned_data.get("last_year")
        this_year = display.today().year
        return range(first or this_year, (last or first or this_year) + 1)

    def source(self) -> str:
        """Return the sources of imported dates, added to those that the field already lists."""
        cleaned, years = self.cleaned_data, self._years()
        codes = (cleaned["country"].strip().upper(), cleaned["subdivision"].strip())
        file = cleaned.get("file")
        name = file.name if file else "-".join(code for code in codes if code)
        source = f"{name} {years[0]}-{years[-1]}"
        origins = [text for text in cleaned["origin"].split(", ") if text and text != source]
        return ", ".join([*origins, source])[:200]


# How many imported dates, and how many schedules that use a calendar, a page shows.
_DATES_SHOWN, _SCHEDULES_SHOWN = 200, 100


def _delete(model_admin: Any, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
    """Delete calendars, and redirect from the page of a deleted one to the list."""
    response = actions.run(model_admin, request, rows, calendars.delete)
    gone = actions.CONFIRMED in request.POST and not rows.exists()
    return HttpResponseRedirect(display.list_of("calendar")) if gone else response


_WEEK_COLUMN = display.column(
    _("working days"),
    lambda row: (
        ", ".join(str(WEEKDAYS_ABBR[day - 1]) for day in row.working_days) or display.NOTHING
    ),
)
# The number of dates that differ from their weekday.
_DATES = display.column(_("dates"), lambda row: f"{len(row.days):,}")


@admin.register(Calendar)
class CalendarAdmin(OwnFormAdmin):
    """Calendars."""

    noun = "calendar"
    list_display = ("name", "description", _WEEK_COLUMN, _DATES, "origin", "updated_at")
    list_filter = (filters.TenantFilter,)
    sortable_by = ()
    ordering = ("tenant_id", "name")
    search_fields = ("name", "description")
    actions = (actions.labelled(_delete, calendars.delete),)
    operations = (calendars.upsert,)
    change_form_template = "admin/django_durable_tasks/calendar/change_form.html"
    list_select_related = reads_with_page = ("tenant",)
    fieldsets = (
        section(
            None,
            (_WEEK_COLUMN, _DATES),
            "description",
            ("origin", "updated_at"),
            ("updated_by", "reason"),
            "tenant",
        ),
    )

    def has_edit_permission(self, request: HttpRequest) -> bool:
        return calendars.upsert.is_permitted(request.user)

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Return a year, its dates, the schedules that use the calendar, and the buttons."""
        year = year_of(request.GET.get("year", ""), display.today().year)
        context: dict[str, Any] = {"year": year, "before": year - 1, "after": year + 1}
        try:
            days = business_days(row)
        except InvalidCalendar as broken:
            context["problem"] = str(broken)
        else:
            context["months"] = months_of(days, year)
            context["special"] = [item for item in days.special if item.day.year == year]
        keys = calendars.naming(row.name, row.tenant_id)
        schedules = RecurringTask.objects.using(row._state.db).filter(
            pk__in=keys[:_SCHEDULES_SHOWN]
        )
        context["followers"] = [
            {
                "name": item.name,
                "status": display.badge(f"schedule-{item.status}", item.status),
                "url": display.page_of("recurringtask", item.pk),
            }
            for item in schedules.order_by("name").only("name", "status")
        ]
        context["unshown"] = max(0, len(keys) - _SCHEDULES_SHOWN)
        context["buttons"] = self.edit_buttons(request, row, "Edit or import dates…")
        if calendars.delete.is_permitted(request.user):
            delete = {"action": calendars.delete.name, "title": f"{calendars.delete.title}…"}
            context["buttons"].append(delete)
        return context

    # The page that adds or edits a calendar, with imported dates and a year at a glance -----------

    previews = frozenset({"_look", "_take"})

    def edit_form(self, request: HttpRequest, *posted: Any, **options: Any) -> CalendarForm:
        row = options["row"]
        return CalendarForm(*posted, **options, days=business_days(row).special if row else ())

    def preview(self, request: HttpRequest, form: CalendarForm) -> dict[str, Any]:
        """Return a year at a glance, with imported dates if these are requested."""
        taken, context = None, dict[str, Any]()
        if "_take" in request.POST and (taken := form.take_in()):
            # The imported dates are not saved yet.
            data = request.POST.copy()
            data["days"], data["origin"] = written(taken.days), form.source()
            form = CalendarForm(data, row=form.row, tenants=filters.offered(request))
            form.is_valid()
            added, changed = taken.added[:_DATES_SHOWN], taken.changed[:_DATES_SHOWN]
            context = {"form": form, "taken": taken, "added": added, "changed": changed}
        if form.errors:
            return context
        # This year, or the first one of the imported dates.
        year = display.today().year
        years = {special.day.year for special in taken.added} if taken else set()
        year = year if not years or year in years else min(years)
        return {**context, "year": year, "months": months_of(form.value(), year)}

    def save_row(self, request: HttpRequest, form: CalendarForm) -> tuple[Any, str]:
        values = form.keywords()
        saved: Calendar = calendars.upsert.perform(
            values.pop("name"),
            by=actions.who(request),
            reason=form.cleaned_data["reason"],
            revision=form.row.revision if form.row else None,
            **values,
        ).value
        number = len(calendars.naming(saved.name, saved.tenant_id))
        effect = ngettext("%d schedule uses it.", "%d schedules use it.", number) % number
        return saved, f"Calendar {saved.name} is saved. {effect}"

"""The form of a calendar: its working days, its dates as text lines, and the source of an
import.
"""

from __future__ import annotations

import calendar
from collections.abc import Sequence
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.dates import WEEKDAYS
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_durable_tasks.admin.calendar_dates import (
    FIRST_YEAR,
    LAST_YEAR,
    MergedDates,
    read,
    taken_in,
    written,
)
from django_durable_tasks.admin.edit_conflicts import OPENED, EditForm
from django_durable_tasks.admin.operation_form import reason_field
from django_durable_tasks.admin.staff_tenants import is_default_only
from django_durable_tasks.exceptions import InvalidCalendar
from django_durable_tasks.models import DEFAULT_TENANT_ID, Calendar, Tenant
from django_durable_tasks.operations.calendars import SAVE
from django_durable_tasks.rules.recurring.calendars import BusinessDays, SpecialDay, from_holidays
from django_durable_tasks.rules.recurring.icalendar import MOST_CHARACTERS, from_ics

_WEEK = [(day + 1, WEEKDAYS[day]) for day in calendar.Calendar().iterweekdays()]
_YEARS_AHEAD = 4


class CalendarForm(EditForm):
    """A calendar. The fields of the second half are used by the import button and never saved."""

    name = forms.CharField(
        max_length=200,
        help_text=gettext_lazy("Schedules refer to this name. It cannot be changed later."),
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
        label=gettext_lazy("Dates"),
        max_length=2_000_000,
        widget=forms.Textarea(attrs={"rows": 16, "cols": 60, "spellcheck": "false"}),
        help_text=gettext_lazy(
            "One date per line: 2026-12-25 Christmas, 2026-12-24 HALF 14:00 Eve, 2026-05-02 OPEN."
        ),
    )
    origin = forms.CharField(
        required=False, max_length=200, help_text=gettext_lazy("Where the dates come from.")
    )

    country = forms.CharField(
        required=False,
        max_length=10,
        help_text=gettext_lazy(
            "A country (DE) or a stock exchange (XNYS), as named by the package holidays."
        ),
    )
    subdivision = forms.CharField(
        required=False, max_length=20, help_text=gettext_lazy("For example BY.")
    )
    first_year = forms.IntegerField(required=False, min_value=FIRST_YEAR, max_value=LAST_YEAR)
    last_year = forms.IntegerField(required=False, min_value=FIRST_YEAR, max_value=LAST_YEAR)
    file = forms.FileField(
        required=False,
        label=gettext_lazy("iCalendar file"),
        help_text=gettext_lazy("An .ics file; the days of its events become closed."),
    )

    reason = reason_field(SAVE)

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
            self.add_error("country", _("Give a country or a file."))
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
                _("The file is not in UTF-8: byte %d cannot be read.") % error.start
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

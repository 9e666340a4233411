"""Calendars in the admin: the year view, dates entered as lines, imports of holidays and files."""

from __future__ import annotations

from datetime import date, time
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from django_durable_tasks.admin.calendars import CalendarForm, read, written
from django_durable_tasks.choices import DayKind, SpecialDay
from django_durable_tasks.exceptions import InvalidCalendar
from django_durable_tasks.models import Calendar, RecurringTask, Tenant
from django_durable_tasks.schedules import calendars
from django_durable_tasks.schedules.schedule_cache import business_days
from tests.database.admin.site import act, list_of, messages_of, page_of, text
from tests.factories import a_tenant
from tests.project import tasks

pytestmark = pytest.mark.django_db

ADD = "admin:django_durable_tasks_calendar_add"
WEEK = ["1", "2", "3", "4", "5"]
CHRISTMAS = SpecialDay(date(2026, 12, 25), DayKind.CLOSED, "Christmas Day")
EVE = SpecialDay(date(2026, 12, 24), DayKind.HALF, "Christmas Eve", time(14))
EXTRA = SpecialDay(date(2026, 5, 2), DayKind.OPEN, "")
ICS = """BEGIN:VCALENDAR
VERSION:2.0
BEGIN:VEVENT
UID:1
DTSTART;VALUE=DATE:20260703
SUMMARY:Outing
END:VEVENT
END:VCALENDAR
"""


def _post(client: Client, row: Calendar | None = None, **given: Any) -> Any:
    if row is None:
        address, shown = reverse(ADD), {"name": "office", "working_days": WEEK}
    else:
        address = reverse("admin:django_durable_tasks_calendar_edit", args=[row.pk])
        form = CalendarForm(row=row, tenants=Tenant.objects.all(), days=business_days(row).special)
        shown = {name: form[name].value() for name in form.fields if form[name].value() is not None}
    return client.post(address, {**shown, **given})


def _days() -> list[tuple[str, str]]:
    return [(day["date"], day["kind"]) for row in Calendar.objects.all() for day in row.days]


def test_a_calendar_is_created_from_its_week_and_from_dates_entered_as_lines(ann: Client) -> None:
    lines = (
        "2026-12-25 Christmas Day\r\n\r\n2026-12-24  HALF 14:00 Christmas Eve\r\n2026-05-02 OPEN"
    )
    answer = _post(ann, days=lines, description="Head office", origin="by hand")
    row = Calendar.objects.get()
    assert answer["Location"] == page_of(row)
    assert messages_of(answer) == ["Calendar office is saved. 0 schedules use it."]
    assert (row.working_days, row.description, row.origin) == (
        [1, 2, 3, 4, 5],
        "Head office",
        "by hand",
    )
    assert business_days(row).special == (EXTRA, EVE, CHRISTMAS)


def test_lines_are_shown_again_as_they_were_entered() -> None:
    odd = SpecialDay(date(2026, 7, 1), DayKind.CLOSED, "OPEN air day")
    days = [EXTRA, odd, EVE, CHRISTMAS]
    assert read(written(days)) == days
    assert written([CHRISTMAS, EVE]).splitlines() == [
        "2026-12-24 HALF 14:00 Christmas Eve",
        "2026-12-25 Christmas Day",
    ]


@pytest.mark.parametrize(
    "line", ["25.12.2026", "2026-02-30 never", "2026-12-24 HALF", "2026-12-24 HALF noon", "x"]
)
def test_a_line_that_is_not_a_date_is_refused_with_its_line_number(line: str) -> None:
    with pytest.raises(InvalidCalendar, match="Line 2"):
        read(f"2026-12-25\n{line}")


REFUSED = [
    ("days", {"days": "christmas"}, "Line 1"),
    ("days", {"days": "2026-12-25\n2026-12-25"}, "is given twice"),
    ("working_days", {"working_days": []}, "no working day"),
    ("working_days", {"working_days": ["8"]}, "Select a valid choice"),
    ("name", {"name": ""}, "This field is required"),
]


@pytest.mark.parametrize(("field", "given", "expected"), REFUSED)
@pytest.mark.parametrize("button", ["_look", "_save", "_take"])
def test_errors_are_shown_at_their_field_and_nothing_is_written(
    ann: Client, field: str, given: dict[str, Any], expected: str, button: str
) -> None:
    page = _post(ann, **{**given, button: "1"})
    assert list(page.context["form"].errors) == [field]
    assert expected in text(page)
    assert not Calendar.objects.exists()


def test_imported_holidays_are_shown_first_and_written_only_on_save(ann: Client) -> None:
    page = _post(
        ann,
        _take="1",
        country="de",
        subdivision="BY",
        first_year="2026",
        last_year="2027",
        days="2026-12-24 HALF 14:00 Christmas Eve\n2026-12-25 ours",
    )
    assert not Calendar.objects.exists()
    taken, form = page.context["taken"], page.context["form"]
    assert date(2026, 1, 6) in {one.day for one in taken.added}
    assert [one.day for one in taken.changed] == [date(2026, 12, 25)]
    assert "Imported, not saved yet" in text(page)
    assert page.context["year"] == 2026
    assert _post(ann, days=form["days"].value(), origin=form["origin"].value()).status_code == 302
    row = Calendar.objects.get()
    special = {one.day: one for one in business_days(row).special}
    assert special[date(2026, 12, 24)].kind == DayKind.HALF
    assert special[date(2027, 1, 1)].kind == DayKind.CLOSED
    assert row.origin == "DE-BY 2026-2027"


def test_the_dates_of_a_file_are_imported(ann: Client) -> None:
    file = SimpleUploadedFile("outings.ics", ICS.encode(), "text/calendar")
    page = _post(ann, _take="1", file=file, first_year="2026", last_year="2026")
    assert page.context["form"]["days"].value() == "2026-07-03 Outing"
    assert page.context["form"]["origin"].value() == "outings.ics 2026-2026"


BAD_SOURCES: list[tuple[str, dict[str, Any], str]] = [
    ("country", {}, "Give a country or a file."),
    ("country", {"country": "ATLANTIS"}, "ATLANTIS"),
    ("country", {"country": "DE", "subdivision": "XX"}, "XX"),
    (
        "first_year",
        {"country": "DE", "first_year": "2027", "last_year": "2026"},
        "give 1 to 100 years",
    ),
    ("file", {"file": b"\xff\xfe"}, "not in UTF-8"),
    ("file", {"file": b"no calendar"}, ""),
]


@pytest.mark.parametrize(("field", "given", "expected"), BAD_SOURCES)
def test_an_unreadable_source_is_refused_at_its_field(
    ann: Client, field: str, given: dict[str, Any], expected: str
) -> None:
    if "file" in given:
        given = {"file": SimpleUploadedFile("x.ics", given["file"])}
    page = _post(ann, _take="1", **given)
    assert list(page.context["form"].errors) == [field]
    assert expected in text(page)


def test_a_preview_shows_the_year_and_saves_nothing(ann: Client) -> None:
    page = _post(ann, _look="1", days="2026-12-25 Christmas Day")
    assert len(page.context["months"]) == 12
    assert not Calendar.objects.exists()


def test_an_edit_moves_the_schedules_of_the_calendar_and_keeps_fields_it_does_not_change(
    ann: Client,
) -> None:
    row = calendars.upsert("office", days=[CHRISTMAS], description="Head office")
    schedule = RecurringTask.objects.upsert(
        name="daily", task=tasks.noop, cron="0 9 * * *", calendar="office"
    )
    assert schedule.next_run_at is not None
    day = schedule.next_run_at.date()
    answer = _post(ann, row, days=f"{written([CHRISTMAS])}\n{day} shut")
    assert messages_of(answer) == ["Calendar office is saved. 1 schedule uses it."]
    row.refresh_from_db()
    assert (row.description, len(_days())) == ("Head office", 2)
    schedule.refresh_from_db()
    assert schedule.next_run_at is not None
    assert schedule.next_run_at.date() > day


def test_adding_a_calendar_with_an_existing_name_is_refused(ann: Client) -> None:
    calendars.upsert("office", days=[CHRISTMAS])
    assert _post(ann, days="").context["form"].errors["name"]
    assert len(_days()) == 1


def test_an_edit_that_leaves_a_schedule_without_a_day_is_refused(ann: Client) -> None:
    row = calendars.upsert("office")
    RecurringTask.objects.upsert(
        name="sundays", task=tasks.noop, cron="0 9 * * 1", calendar="office"
    )
    page = _post(ann, row, working_days=["7"])
    assert "sundays" in text(page)
    row.refresh_from_db()
    assert row.working_days == [1, 2, 3, 4, 5]


def test_the_page_shows_a_year_and_names_the_schedules(ann: Client) -> None:
    row = calendars.upsert("office", days=[CHRISTMAS, EVE, EXTRA])
    schedule = RecurringTask.objects.upsert(
        name="daily", task=tasks.noop, cron="0 9 * * *", calendar="office"
    )
    page = ann.get(page_of(row), {"year": "2026"})
    cells = {
        (number, cell["number"]): cell
        for number, month in enumerate(page.context["months"], 1)
        for week in month["weeks"]
        for cell in week
        if cell
    }
    assert len(cells) == 365
    marks = [cells[one]["mark"] for one in ((12, 25), (12, 24), (5, 2), (12, 23), (12, 26))]
    assert marks == ["closed", "half", "extra", "open", "off"]
    assert "open until 14:00: Christmas Eve" in text(page)
    assert page_of(schedule) in page.content.decode()
    for odd in ("0", "9999", "x", "２０２６"):
        assert ann.get(page_of(row), {"year": odd}).status_code == 200


def test_a_calendar_without_an_open_day_can_be_opened_and_shows_a_warning(ann: Client) -> None:
    row = Calendar.objects.unguarded().create(name="broken", working_days=[])
    assert "has no working day" in text(ann.get(page_of(row)))


def test_a_calendar_is_deleted_only_if_no_schedule_uses_it(ann: Client) -> None:
    row, other = calendars.upsert("office", days=[CHRISTMAS]), calendars.upsert("other")
    schedule = RecurringTask.objects.upsert(
        name="daily", task=tasks.noop, cron="0 9 * * *", calendar="office"
    )
    refused = act(ann, "delete", other, row)
    assert (
        "Nothing was changed. Calendar 'office' is named by 1 recurring tasks: daily."
        in messages_of(refused)
    )
    assert Calendar.objects.count() == 2
    schedule.cancel()
    answer = act(ann, "delete", row, durable_from_page="1")
    assert answer["Location"] == list_of("calendar")
    assert list(Calendar.objects.values_list("name", flat=True)) == ["other"]


def test_with_several_tenants_the_calendar_gets_the_chosen_tenant(ann: Client) -> None:
    tenant = a_tenant()
    assert _post(ann).context["form"].errors["tenant"]
    _post(ann, tenant=tenant.slug)
    assert Calendar.objects.get().tenant_id == tenant.pk

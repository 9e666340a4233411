"""A schedule is created and edited by one call after a preview of its next fires; errors are shown
at their field.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_durable_tasks.admin import recurring_tasks
from django_durable_tasks.admin.recurring_tasks import RecurringForm
from django_durable_tasks.models import (
    DEFAULT_TENANT_ID,
    Calendar,
    OccurrenceRecord,
    RecurringTask,
    Task,
    Tenant,
)
from django_durable_tasks.schedules.options import COLUMNS
from django_durable_tasks.schedules.timetables import zones
from tests.database.admin.site import messages_of, page_of, staff, text
from tests.database.recurring.schedules import START, a_schedule, at, fire
from tests.factories import a_tenant
from tests.project import tasks

pytestmark = pytest.mark.django_db

ADD = "admin:django_durable_tasks_recurringtask_add"
NEW = {
    "name": "report",
    "task": "tests.project.tasks.add",
    "args": "[1, 2]",
    "cron": "30 2 * * *",
    "timezone": "Europe/Berlin",
}


def add_schedule(client: Client, **given: Any) -> Any:
    """Send the form of a new schedule with these values."""
    return client.post(reverse(ADD), _as_shown(None, **{**NEW, **given}))


def _edit(row: RecurringTask) -> str:
    return reverse("admin:django_durable_tasks_recurringtask_edit", args=[row.pk])


def _as_shown(row: RecurringTask | None, **given: Any) -> dict[str, Any]:
    """Return what a browser would submit for the form of this object, or of a new one, with some
    fields changed.
    """
    form = RecurringForm(row=row, tenants=Tenant.objects.all(), secrets=True)
    shown = {name: form[name].value() for name in form.fields}
    return {name: "" if value is None else value for name, value in {**shown, **given}.items()}


def test_a_preview_writes_nothing_and_saving_creates_the_schedule(ann: Client) -> None:
    looked = add_schedule(ann, _look="1")
    assert len(looked.context["fires"]) == 10
    assert "Saved now, it would fire at" in text(looked)
    assert not RecurringTask.objects.exists()
    answer = add_schedule(ann)
    row = RecurringTask.objects.get()
    assert answer["Location"] == page_of(row)
    assert messages_of(answer) == ["Schedule report is saved. Past fire times do not fire."]
    assert (row.name, row.task, row.args, row.timetable) == (
        "report",
        "tests.project.tasks.add",
        [1, 2],
        [{"cron": "30 2 * * *"}],
    )
    assert (row.time_zone, row.status, row.source, row.priority, row.max_runs) == (
        "Europe/Berlin",
        "ACTIVE",
        "",
        None,
        None,
    )
    assert row.next_run_at == looked.context["looked"].fires[0].nominal


EVERY_FIELD: dict[str, tuple[Any, Any]] = {
    "calendar": (["berlin"], ["berlin"]),
    "roll": ("FOLLOWING", "FOLLOWING"),
    "dst_gap": ("SKIP", "SKIP"),
    "dst_overlap": ("BOTH", "BOTH"),
    "start_time": ("2026-03-02 10:00", START),
    "end_time": ("2999-01-01T00:00:00Z", datetime(2999, 1, 1, tzinfo=UTC)),
    "max_runs": ("7", 7),
    "expires_in": ("30", 30.0),
    "catch_up_mode": ("RUN_ALL_MISSED", "RUN_ALL_MISSED"),
    "misfire_grace": ("5", 5.0),
    "catchup_window": ("900", 900.0),
    "max_catchup_runs": ("3", 3),
    "catchup_order": ("NEWEST", "NEWEST"),
    "catchup_pace": ("2.5", 2.5),
    "overlap": ("QUEUE_ALL", "QUEUE_ALL"),
    "overlap_key": ("k-{0}", "k-{0}"),
    "queue": ("reports", "reports"),
    "priority": ("0", 0),
    "description": ("told", "told"),
    "options": ('{"max_attempts": 2}', {"max_attempts": 2}),
    "name": ("report", "report"),
    "task": ("tests.project.tasks.add", "tests.project.tasks.add"),
    "args": ("[1, 2]", [1, 2]),
    "kwargs": ("{}", {}),
    "timezone": ("Europe/Berlin", "Europe/Berlin"),
}
"""What is submitted for each field that is a column, and what is stored."""
OTHERS = {
    "cron": "0 9 * * *\r\n0 17 * * 1-5",
    "interval": "3600",
    "rrule": "FREQ=MONTHLY;BYDAY=-1FR",
    "parts": '[{"at": ["2999-03-08T07:00:00Z"]}]',
    "jitter": "10%",
    "paused": "on",
}


def test_every_zone_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurring_tasks, "zone_names", zones.zone_names)
    field: Any = RecurringForm(tenants=Tenant.objects.all(), secrets=True).fields["timezone"]
    offered = [value for value, _title in field.choices]
    assert offered == sorted(zones.zone_names())
    assert len(offered) > 400


def test_every_field_is_saved_to_its_column(ann: Client) -> None:
    assert {*EVERY_FIELD, *OTHERS} == set(
        RecurringForm(tenants=Tenant.objects.filter(pk=DEFAULT_TENANT_ID), secrets=True).fields
    )
    Calendar.objects.unguarded().create(name="berlin")
    add_schedule(ann, **{name: text for name, (text, _) in EVERY_FIELD.items()}, **OTHERS)
    row = RecurringTask.objects.get()
    kinds = [next(iter(part)) for part in row.timetable]
    assert kinds == ["cron", "cron", "interval", "rrule", "at"]
    stored = {name: getattr(row, COLUMNS.get(name, name)) for name in EVERY_FIELD}
    assert stored == {name: value for name, (_, value) in EVERY_FIELD.items()}
    assert (row.jitter_percent, row.status, row.status_reason) == (10, "PAUSED", "CREATED_PAUSED")


REFUSED = [
    ("cron", {"cron": "61 * * * *"}, "61"),
    ("cron", {"cron": "0 0 31 2 *"}, "can never fire"),
    ("interval", {"interval": "0"}, "interval"),
    ("interval", {"interval": "-5"}, "interval"),
    ("rrule", {"rrule": "FREQ=SOMETIMES"}, "SOMETIMES"),
    ("parts", {"parts": '[{"solar": "sunset"}]'}, "latitude"),
    ("parts", {"parts": "{"}, "This is not JSON"),
    ("parts", {"parts": "[5]"}, "a part has one of the keys"),
    ("timezone", {"timezone": "right/UTC"}, "Select a valid choice"),
    ("start_time", {"start_time": "soon"}, "Give a time as"),
    ("start_time", {"start_time": "2026-03-29 02:30"}, "does not exist"),
    ("jitter", {"jitter": "much"}, "jitter='much'"),
    ("jitter", {"jitter": "101%"}, "jitter="),
    ("args", {"args": "[1]"}, "missing a required argument"),
    ("args", {"args": '{"left": 1}'}, "a list"),
    ("max_runs", {"max_runs": "0"}, "greater than or equal to 1"),
    ("misfire_grace", {"misfire_grace": "-1"}, "greater than or equal to 0"),
    ("task", {"task": "no.such"}, "Select a valid choice"),
    ("calendar", {"calendar": ["nowhere"]}, "Select a valid choice"),
    ("overlap_key", {"overlap_key": "{9}"}, "overlap_key"),
    ("__all__", {"cron": ""}, "needs one of"),
    ("end_time", {"end_time": "2020-01-01 00:00"}, "end_time"),
]


@pytest.mark.parametrize(
    ("field", "given", "expected"), REFUSED, ids=[f"{field} {given}" for field, given, _ in REFUSED]
)
@pytest.mark.parametrize("button", ["_look", "_save"])
def test_errors_are_shown_at_their_field_and_nothing_is_written(
    ann: Client, field: str, given: dict[str, Any], expected: str, button: str
) -> None:
    page = add_schedule(ann, **{**given, button: "1"})
    assert page.status_code == 200
    assert list(page.context["form"].errors) == [field]
    assert expected in text(page)
    assert not RecurringTask.objects.exists()


def test_adding_a_schedule_with_an_existing_name_is_refused(ann: Client) -> None:
    row = a_schedule("report")
    page = add_schedule(ann)
    assert page.context["form"].errors["name"] == ["A schedule with this name already exists."]
    row.refresh_from_db()
    assert row.task == "tests.project.tasks.noop"


def test_a_form_submitted_unchanged_changes_nothing(ann: Client) -> None:
    row = a_schedule(
        "odd",
        parts=[
            {"cron": "0 9 * * *"},
            {"cron": "0 0 9 * * *", "seconds": "FIRST"},
            {"interval": 2.5},
            {"interval": 7},
            {"rrule": "FREQ=DAILY"},
        ],
        jitter="5%",
        timezone="America/New_York",
        kwargs={"day": "é"},
        task=tasks.echo,
    )
    before = RecurringTask.objects.values().get()
    ann.post(_edit(row), _as_shown(row))
    assert RecurringTask.objects.values().get() == before


def test_an_edit_never_fires_a_past_time(ann: Client) -> None:
    row = a_schedule("report")
    looked = ann.post(_edit(row), {**_as_shown(row, interval="86400000"), "_look": "1"})
    answer = ann.post(_edit(row), _as_shown(row, interval="86400000"))
    assert answer.status_code == 302
    row.refresh_from_db()
    assert row.timetable == [{"interval": 86_400_000.0}]
    assert row.next_run_at is not None
    assert row.next_run_at == looked.context["looked"].fires[0].nominal
    assert fire(row.updated_at) == 0
    assert not Task.objects.exists()
    assert not OccurrenceRecord.objects.exists()


def test_fields_that_an_edit_leaves_empty_are_cleared(ann: Client) -> None:
    row = a_schedule(
        "report", max_runs=7, expires_in=30, priority=4, end_time=at(days=99_999), catchup_window=5
    )
    given = {
        "max_runs": "",
        "expires_in": "",
        "priority": "",
        "end_time": "",
        "catchup_window": "",
        "queue": "",
        "start_time": "",
    }
    assert ann.post(_edit(row), _as_shown(row, **given)).status_code == 302
    row.refresh_from_db()
    assert (
        row.max_runs,
        row.expires_in,
        row.priority,
        row.end_time,
        row.catchup_window,
        row.queue,
    ) == (None, None, None, None, None, "")
    assert row.start_time == START


def test_an_edit_keeps_and_shows_the_source_of_the_schedule(ann: Client) -> None:
    row = a_schedule("report", source="code")
    assert "This schedule is declared by code" in text(ann.get(_edit(row)))
    ann.post(_edit(row), _as_shown(row, description="x"))
    row.refresh_from_db()
    assert (row.source, row.description) == ("code", "x")


def test_a_refused_edit_keeps_the_stored_values(ann: Client) -> None:
    row = a_schedule("report")
    before = RecurringTask.objects.values().get()
    page = ann.post(_edit(row), _as_shown(row, interval="", cron="x"))
    assert page.context["form"].errors["cron"]
    assert RecurringTask.objects.values().get() == before


def test_a_schedule_of_an_unregistered_task_can_be_edited(ann: Client) -> None:
    row = a_schedule("report")
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(task="another.release")
    row.refresh_from_db()
    assert ann.get(_edit(row)).status_code == 200
    assert "No durable task is registered as" in text(
        ann.post(_edit(row), _as_shown(row, description="x"))
    )


def test_with_several_tenants_the_schedule_gets_the_chosen_tenant(ann: Client) -> None:
    tenant = a_tenant()
    assert add_schedule(ann).context["form"].errors["tenant"]
    add_schedule(ann, tenant=tenant.slug)
    assert RecurringTask.objects.get().tenant_id == tenant.pk


def test_a_user_without_permission_for_secrets_edits_everything_except_the_arguments(
    ann: Client,
) -> None:
    row = a_schedule(
        "report", task=tasks.echo, kwargs={"password": "swordfish"}, options={"max_attempts": 2}
    )
    client = staff("view_recurringtask", "change_recurringtask")
    page = client.get(_edit(row))
    assert "swordfish" not in page.content.decode()
    assert "kwargs" not in page.context["form"].fields
    client.post(_edit(row), _as_shown(row, description="x", kwargs='{"password": "other"}'))
    row.refresh_from_db()
    assert (row.description, row.kwargs) == ("x", {"password": "swordfish"})


def test_an_ended_schedule_cannot_be_edited(ann: Client) -> None:
    row = a_schedule("report")
    row.cancel("over")
    assert ann.get(_edit(row)).status_code == 404


def test_a_paused_schedule_may_never_fire(ann: Client) -> None:
    page = add_schedule(ann, cron="0 0 31 2 *", paused="on", _look="1")
    assert page.context["form"].errors == {}
    assert page.context["fires"] == []
    assert "Saved and resumed now, it would fire at" in text(page)
    assert add_schedule(ann, cron="0 0 31 2 *", paused="on").status_code == 302
    row = RecurringTask.objects.get()
    assert row.status == "PAUSED"
    assert ann.get(page_of(row)).status_code == 200
    assert ann.post(_edit(row), _as_shown(row, cron="0 0 30 2 *")).status_code == 302
    row.refresh_from_db()
    assert row.timetable == [{"cron": "0 0 30 2 *"}]
    assert "would never fire" in text(ann.post(_do(row, "resume"), {"pace": ""}))


def _do(row: RecurringTask, name: str) -> str:
    return reverse("admin:django_durable_tasks_recurringtask_do", args=[row.pk, name])

"""An edit form that is older than another user's change is not saved, and shows who changed which
field.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_durable_tasks.admin.calendars import read as from_lines
from django_durable_tasks.choices import Status
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.limits.operator_limits import set_limit
from django_durable_tasks.models import Calendar, DeadLetter, Limit, RecurringTask, Task, Tenant
from django_durable_tasks.schedules import calendars
from tests.database.admin.site import operator, page_of, text
from tests.database.recurring.schedules import a_schedule
from tests.factories import a_task
from tests.project import tasks

pytestmark = pytest.mark.django_db

REPLAY = "admin:django_durable_tasks_task_replay"


@pytest.fixture
def ann() -> Client:
    """Return a client logged in as a superuser."""
    return operator("ann")


@pytest.fixture
def bert() -> Client:
    """Return a client logged in as a second superuser."""
    return operator("bert")


def _edit(row: Any) -> str:
    return reverse(f"admin:django_durable_tasks_{row._meta.model_name}_edit", args=[row.pk])


def _opened(client: Client, address: str) -> dict[str, Any]:
    """Return the fields of the form on this page as a browser would submit them."""
    return _sent(client.get(address))


def _sent(page: Any) -> dict[str, Any]:
    """Return the fields of this form as a browser submits them: lines end with CRLF."""
    form = page.context["adminform"].form if "adminform" in page.context else page.context["form"]
    shown = {form.add_prefix(name): form[name].value() for name in form.fields}
    return {name: _as_sent(value) for name, value in shown.items()}


def _as_sent(value: Any) -> Any:
    if value is None:
        return ""
    return "\r\n".join(value.splitlines()) if isinstance(value, str) else value


def _errors(page: Any) -> str:
    found = re.findall(
        r'<ul class="errorlist nonfield"[^>]*>(.*?)</ul>', page.content.decode(), re.DOTALL
    )
    return unescape(re.sub(r"<[^>]+>", "\n", "".join(found)))


def test_a_stale_edit_of_a_schedule_keeps_the_other_change_and_names_its_user(
    ann: Client, bert: Client
) -> None:
    row = a_schedule("report", cron="0 6 * * *")
    stale = _opened(bert, _edit(row))
    ann.post(_edit(row), {**_opened(ann, _edit(row)), "cron": "0 7 * * *"})
    page = bert.post(_edit(row), {**stale, "description": "for the board"})
    assert page.status_code == 200
    errors = _errors(page)
    assert "Nothing was saved" in errors
    assert "by ann" in errors
    assert "Cron: was “0 6 * * *”, is now “0 7 * * *”." in errors
    row.refresh_from_db()
    assert (row.timetable, row.description) == ([{"cron": "0 7 * * *"}], "")
    assert bert.post(_edit(row), _sent(page)).status_code == 302
    row.refresh_from_db()
    assert (row.timetable, row.description) == ([{"cron": "0 7 * * *"}], "for the board")


def test_a_stale_edit_does_not_restore_multi_line_fields_of_a_schedule(
    ann: Client, bert: Client
) -> None:
    row = a_schedule("report", cron=["0 6 * * *", "0 18 * * *"])
    stale = _opened(bert, _edit(row))
    ann.post(_edit(row), {**_opened(ann, _edit(row)), "cron": "0 7 * * *\r\n0 19 * * *"})
    page = bert.post(_edit(row), {**stale, "description": "for the board"})
    assert "is now “0 7 * * * 0 19 * * *”." in _errors(page)
    assert "is kept in the form" not in _errors(page)
    assert bert.post(_edit(row), _sent(page)).status_code == 302
    row.refresh_from_db()
    assert row.timetable == [{"cron": "0 7 * * *"}, {"cron": "0 19 * * *"}]
    assert row.description == "for the board"


def test_if_both_users_changed_the_same_field_the_second_save_overwrites_it(
    ann: Client, bert: Client
) -> None:
    row = a_schedule("report", cron="0 6 * * *")
    stale = _opened(bert, _edit(row))
    ann.post(_edit(row), {**_opened(ann, _edit(row)), "cron": "0 7 * * *"})
    page = bert.post(_edit(row), {**stale, "cron": "0 8 * * *"})
    assert (
        "Cron: was “0 6 * * *”, is now “0 7 * * *”. Your value “0 8 * * *” is kept in the form."
        in _errors(page)
    )
    bert.post(_edit(row), _sent(page))
    row.refresh_from_db()
    assert row.timetable == [{"cron": "0 8 * * *"}]


def test_a_change_by_code_is_shown_as_made_outside_the_admin(bert: Client) -> None:
    row = a_schedule("report", cron="0 6 * * *")
    stale = _opened(bert, _edit(row))
    RecurringTask.objects.upsert(name="report", task=row.task, priority=3, calendar=[])
    errors = _errors(bert.post(_edit(row), {**stale, "description": "x"}))
    assert "outside the admin" in errors
    assert "Priority: was empty, is now “3”." in errors


def test_a_pause_in_between_is_not_a_conflict(bert: Client) -> None:
    row = a_schedule("report", cron="0 6 * * *")
    stale = _opened(bert, _edit(row))
    row.pause("deploy")
    assert bert.post(_edit(row), {**stale, "description": "x"}).status_code == 302
    row.refresh_from_db()
    assert (row.status, row.status_reason, row.description) == ("PAUSED", "deploy", "x")


@pytest.mark.parametrize("opened", [None, "", "forged"])
def test_a_form_without_its_version_field_is_not_saved(bert: Client, opened: str | None) -> None:
    row = a_schedule("report", cron="0 6 * * *")
    other = a_schedule("other", cron="0 6 * * *")
    sent = {**_opened(bert, _edit(row)), "description": "x"}
    sent.pop("opened")
    sent |= {} if opened is None else {"opened": opened or _opened(bert, _edit(other))["opened"]}
    assert "Open it again" in _errors(bert.post(_edit(row), sent))
    row.refresh_from_db()
    assert row.description == ""


def test_the_conflict_check_runs_under_the_row_lock(bert: Client) -> None:
    row = a_schedule("report")
    before = row.revision
    row.pause("deploy")
    with pytest.raises(TransitionRefused, match="was changed meanwhile"):
        RecurringTask.objects.upsert(name="report", task=row.task, description="x", revision=before)


def test_a_stale_edit_of_a_calendar_names_the_dates_that_differ(ann: Client, bert: Client) -> None:
    row = calendars.upsert("office", description="ours")
    stale = _opened(bert, _edit(row))
    ann.post(_edit(row), {**_opened(ann, _edit(row)), "days": "2030-12-25 Christmas"})
    page = bert.post(_edit(row), {**stale, "description": "all offices"})
    assert "by ann" in _errors(page)
    assert "2030-12-25 Christmas" in _errors(page)
    assert Calendar.objects.get().description == "ours"
    assert bert.post(_edit(row), _sent(page)).status_code == 302
    row = Calendar.objects.get()
    assert (row.description, row.days.count()) == ("all offices", 1)


def test_a_stale_edit_does_not_restore_the_dates_of_a_calendar(ann: Client, bert: Client) -> None:
    row = calendars.upsert("office", days=from_lines("2030-12-25 Christmas\n2030-12-26 Boxing day"))
    stale = _opened(bert, _edit(row))
    ann.post(
        _edit(row),
        {**_opened(ann, _edit(row)), "days": "2030-12-25 Christmas\r\n2031-01-01 New year"},
    )
    page = bert.post(_edit(row), {**stale, "description": "all offices"})
    assert "is kept in the form" not in _errors(page)
    assert bert.post(_edit(row), _sent(page)).status_code == 302
    row = Calendar.objects.get()
    assert row.description == "all offices"
    assert sorted(day.name for day in row.days.all()) == ["Christmas", "New year"]


def test_a_stale_edit_of_a_limit_is_not_saved(ann: Client, bert: Client) -> None:
    set_limit("queue:mail", max_concurrency=2, rate=None, burst=None, by="setup")
    row = Limit.objects.get()
    stale = _opened(bert, page_of(row))
    ann.post(page_of(row), {**_opened(ann, page_of(row)), "max_concurrency": "5"})
    page = bert.post(page_of(row), {**stale, "comment": "slow"})
    assert "Max concurrency: was “2”, is now “5”." in _errors(page)
    assert "by ann" in _errors(page)
    assert Limit.objects.get().max_concurrency == 5
    assert bert.post(page_of(row), _sent(page)).status_code == 302
    row = Limit.objects.get()
    assert (row.max_concurrency, row.comment, row.set_by) == (5, "slow", "bert")


def test_a_limit_that_was_removed_meanwhile_is_not_created_again(bert: Client) -> None:
    set_limit("queue:mail", max_concurrency=2, rate=None, burst=None, by="setup")
    row = Limit.objects.get()
    stale = _opened(bert, page_of(row))
    Limit.objects.all().delete()
    assert bert.post(page_of(row), stale).status_code == 302
    assert not Limit.objects.exists()


def test_a_stale_edit_of_a_tenant_is_not_saved(ann: Client, bert: Client) -> None:
    row = Tenant.objects.create(slug="acme", name="Acme")
    stale = _opened(bert, page_of(row))
    ann.post(page_of(row), {**_opened(ann, page_of(row)), "name": "Acme Ltd"})
    page = bert.post(page_of(row), {**stale, "slug": "acme-uk"})
    assert "Name: was “Acme”, is now “Acme Ltd”." in _errors(page)
    row.refresh_from_db()
    assert (row.slug, row.name) == ("acme", "Acme Ltd")


def test_arguments_of_a_task_that_ran_meanwhile_are_not_edited(ann: Client, bert: Client) -> None:
    task = a_task(Status.FAILED, name="tests.project.tasks.add", args=[1, "x"])
    address = reverse(REPLAY, args=[task.pk])
    stale = _opened(bert, address)
    ann.post(address, {**_opened(ann, address), "args": "[1, 7]"})
    Task.objects.unguarded().filter(pk=task.pk).update(status=Status.FAILED, due_at=None)
    page = bert.post(address, {**stale, "comment": "again"})
    assert 'Arguments: was “[1, "x"]”, is now “[1, 7]”.' in _errors(page)
    assert Task.objects.get().args == [1, 7]
    assert DeadLetter.objects.count() >= 1


def test_the_history_names_the_fields_that_an_edit_changed(ann: Client) -> None:
    row = a_schedule("report", cron="0 6 * * *")
    ann.post(_edit(row), {**_opened(ann, _edit(row)), "cron": "0 7 * * *", "description": "x"})
    history = reverse("admin:django_durable_tasks_recurringtask_history", args=[row.pk])
    assert "Edited: description, cron." in text(ann.get(history))


def test_the_history_does_not_name_an_unchanged_multi_line_field(ann: Client) -> None:
    row = a_schedule("report", task=tasks.add, cron=["0 6 * * *", "0 18 * * *"], args=[1, 2])
    ann.post(_edit(row), {**_opened(ann, _edit(row)), "description": "x"})
    history = reverse("admin:django_durable_tasks_recurringtask_history", args=[row.pk])
    assert "Edited: description." in text(ann.get(history))

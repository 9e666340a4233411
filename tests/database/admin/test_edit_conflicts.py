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
from django_durable_tasks.models import DeadLetter, Limit, RecurringTask, Task, Tenant
from django_durable_tasks.schedules import calendars
from tests.database.admin.site import operator, page_of, text
from tests.database.notifications.sending import a_setting
from tests.database.recurring.schedules import a_schedule
from tests.factories import a_task

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("open_notifications")]

REPLAY = "admin:django_durable_tasks_task_replay"


@pytest.fixture
def bert() -> Client:
    """Return a client logged in as a second superuser."""
    return operator("bert")


def _edit(row: Any) -> str:
    """Return the address of the edit form: a page of its own, or Django's."""
    name = row._meta.model_name
    is_own = name in ("recurringtask", "calendar")
    return (
        reverse(f"admin:django_durable_tasks_{name}_edit", args=[row.pk])
        if is_own
        else page_of(row)
    )


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


def _schedule() -> Any:
    return a_schedule("report", cron=["0 6 * * *", "0 18 * * *"])


def _calendar() -> Any:
    days = from_lines("2030-12-25 Christmas\n2030-12-26 Boxing day")
    return calendars.upsert("office", days=days, description="ours")


def _limit() -> Any:
    set_limit("queue:mail", max_concurrency=2, rate=None, burst=None, by="setup")
    return Limit.objects.get()


def _tenant() -> Any:
    return Tenant.objects.create(slug="acme", name="Acme")


@pytest.mark.parametrize(
    ("make", "first", "second", "named"),
    [
        (_schedule, ("cron", "0 7 * * *\r\n0 19 * * *"), ("description", "all"), "Cron: was “0 6 * * * 0 18 * * *”, is now “0 7 * * * 0 19 * * *”."),
        (_calendar, ("days", "2030-12-25 Christmas\r\n2031-01-01 New year"), ("description", "all"), "2031-01-01 New year"),
        (_limit, ("max_concurrency", "5"), ("comment", "slow"), "Max concurrency: was “2”, is now “5”."),
        (_tenant, ("name", "Acme Ltd"), ("slug", "acme-uk"), "Name: was “Acme”, is now “Acme Ltd”."),
        (a_setting, ("destination", "new@example.com"), ("on_retry", True), "new@example.com"),
    ],
)  # fmt: skip
def test_a_stale_edit_is_not_saved_names_the_other_change_and_keeps_it_when_it_is_repeated(
    ann: Client, bert: Client, make: Any, first: Any, second: Any, named: str
) -> None:
    row = make()
    address = _edit(row)
    stale = _opened(bert, address)
    ann.post(address, {**_opened(ann, address), first[0]: first[1]})
    changed = _opened(ann, address)
    page = bert.post(address, {**stale, second[0]: second[1]})
    assert page.status_code == 200
    errors = _errors(page)
    for expected in ("Nothing was saved", "by ann", named):
        assert expected in errors
    assert "is kept in the form" not in errors
    assert _opened(ann, address) | {"opened": ""} == changed | {"opened": ""}
    assert bert.post(address, _sent(page)).status_code == 302
    both = {**changed, second[0]: second[1]}
    assert _opened(ann, address) | {"opened": ""} == both | {"opened": ""}


def test_if_both_users_changed_the_same_field_the_second_save_overwrites_it(
    ann: Client, bert: Client
) -> None:
    row = _schedule()
    stale = _opened(bert, _edit(row))
    ann.post(_edit(row), {**_opened(ann, _edit(row)), "cron": "0 7 * * *"})
    page = bert.post(_edit(row), {**stale, "cron": "0 8 * * *"})
    assert "Your value “0 8 * * *” is kept in the form." in _errors(page)
    bert.post(_edit(row), _sent(page))
    row.refresh_from_db()
    assert row.timetable == [{"cron": "0 8 * * *"}]


@pytest.mark.parametrize(
    "change", [{"cron": "0 7 * * *", "description": "x"}, {"description": "x"}]
)
def test_the_history_names_the_fields_that_an_edit_changed(
    ann: Client, change: dict[str, str]
) -> None:
    row = _schedule()
    ann.post(_edit(row), {**_opened(ann, _edit(row)), **change})
    history = reverse("admin:django_durable_tasks_recurringtask_history", args=[row.pk])
    assert f"Edited: {', '.join(sorted(change, reverse=True))}." in text(ann.get(history))


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


def test_a_limit_that_was_removed_meanwhile_is_not_created_again(bert: Client) -> None:
    set_limit("queue:mail", max_concurrency=2, rate=None, burst=None, by="setup")
    row = Limit.objects.get()
    stale = _opened(bert, page_of(row))
    Limit.objects.all().delete()
    assert bert.post(page_of(row), stale).status_code == 302
    assert not Limit.objects.exists()


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

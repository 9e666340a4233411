"""A secret argument is shown nowhere: in no page, answer, listing, log line or stored error."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.test import Client

from django_durable_tasks import durable_task
from django_durable_tasks.audit import masked_arguments
from django_durable_tasks.masking import MASK
from django_durable_tasks.models import RecurringTask, Task, Tenant
from tests.database.admin.site import list_of, page_of, staff
from tests.database.api.client import SETTINGS, a_client, a_tenant
from tests.database.commands.durable_command import durable
from tests.delivery import deliver
from tests.factories import a_dead_letter

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "hunter2hunter2"


@durable_task(name="tests.masking.login", max_attempts=1)
def login(user: str, password: str, **more: Any) -> dict[str, str]:
    """Fail with the secret in the error, its cause and its arguments."""
    try:
        raise ValueError(f'{{"password": "{password}"}}')
    except ValueError as cause:
        raise RuntimeError(f"password={password}", {"token": password}) from cause


@durable_task(name="tests.masking.store")
def store(*passwords: str, note: str = "") -> None:
    """Take any number of secrets."""


def test_positional_values_are_masked_by_the_parameter_that_takes_them() -> None:
    shown = masked_arguments("tests.masking.store", [SECRET, SECRET], {"note": "two"})
    assert shown == {"args": [MASK, MASK], "kwargs": {"note": "two"}}


@pytest.fixture
def failed(settings: Any, caplog: pytest.LogCaptureFixture) -> Task:
    """A failed task with secrets, of a tenant."""
    settings.DURABLE_TASKS = {**SETTINGS, "API_TASKS": ["tests.masking.*"]}
    caplog.set_level(logging.DEBUG)
    task = login.using(tenant=a_tenant("acme")).schedule(
        "ada", password=SECRET, nested={"api_key": [SECRET]}
    )
    Task.objects.unguarded().filter(pk=task.pk, status="PENDING").update(status="QUEUED")
    with pytest.raises(RuntimeError):
        deliver(Task.objects.get(pk=task.pk))
    found: Task = Task.objects.get(pk=task.pk)
    return found


def test_stored_errors_and_log_lines_are_masked(
    failed: Task, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = failed.executions.get()
    texts = [failed.last_error, attempt.error_message, attempt.traceback, str(attempt.exception)]
    letter = failed.dead_letters.get()
    ours = [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("django_durable_tasks")
    ]
    for text in [*texts, letter.error_message, *ours]:
        assert SECRET not in text


def test_pages_of_the_admin_are_masked(failed: Task) -> None:
    RecurringTask.objects.upsert(
        name="secret", task=login, args=["ada"], kwargs={"password": SECRET}, cron="0 9 * * *"
    )
    Task.objects.filter(pk=failed.pk).replay(by="ada", kwargs={"password": f"{SECRET}2"})
    views = ("view_task", "view_deadletter", "view_recurringtask", "view_taskexecutionlog")
    viewer: Client = staff(*views, "view_auditentry")
    pages = [page_of(failed), page_of(failed.dead_letters.get()), page_of(failed.executions.get())]
    pages += [page_of(RecurringTask.objects.get())]
    pages += [list_of(name.removeprefix("view_")) for name in (*views, "view_auditentry")]
    for address in pages:
        answer = viewer.get(address)
        assert answer.status_code == 200, address
        assert SECRET not in answer.content.decode(), address


def test_answers_of_the_api_are_masked_without_the_scope(failed: Task) -> None:
    reader = a_client(Tenant.objects.get(slug="acme"), "read")
    a_dead_letter(failed, open=False)
    address = f"/tasks/{failed.pk}"
    for path in (
        f"{address}?include=target_config,result,progress",
        f"{address}/executions",
        f"{address}/dependencies",
        "/dead-letters?state=all",
        "/audit",
        "/tasks?include=target_config",
    ):
        answer = reader.get(path)
        assert answer.status_code == 200, answer.content
        assert SECRET not in answer.content.decode(), path
    scoped = a_client(Tenant.objects.get(slug="acme"), "read", "secrets")
    assert SECRET in scoped.get(f"{address}?include=target_config").content.decode()


def test_the_command_line_is_masked(failed: Task) -> None:
    for words in (("show", failed.pk), ("list",), ("list", "dead-letters"), ("audit",)):
        for form in ("table", "json"):
            answer = durable(*words, "--format", form)
            assert SECRET not in answer.out + answer.err, words

"""A secret argument is shown nowhere: in no page, answer, listing, log line or stored error."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from django_durable_tasks import durable_task
from django_durable_tasks.audit import masked_arguments
from django_durable_tasks.masking import MASK
from django_durable_tasks.models import Task
from tests.database.api.client import SETTINGS, a_tenant
from tests.delivery import deliver

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

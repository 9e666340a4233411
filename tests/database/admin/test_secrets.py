"""Secrets are masked for users without the permission to read them, and cannot be guessed by
filters or searches.
"""

from typing import Any

import pytest
from django.urls import reverse

from django_durable_tasks import durable_task
from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt
from django_durable_tasks.models import DeadLetter, Task, TaskExecutionLog
from tests.database.admin.site import list_of, operator, page_of, staff
from tests.factories import a_log_row, a_task

pytestmark = pytest.mark.django_db

SECRET = "hunter2-and-more"
ECHO = "tests.project.tasks.unique"
VIEWS = ("view_task", "view_deadletter", "view_taskexecutionlog")


@durable_task
def log_in(user: str, password: str, *tokens: str) -> None:
    """Take secrets as positional arguments."""


def _write_tasks_with_secrets() -> list[str]:
    task = a_task(
        Status.FAILED,
        args=["ann"],
        kwargs={"password": SECRET, "deep": [{"api_key": SECRET}]},
        name=ECHO,
        last_error=f"Broken: token={SECRET}",
    )
    done = a_task(Status.SUCCESS, result={"session_token": SECRET, "total": 42})
    log = a_log_row(
        task, error_message=f"Broken: token={SECRET}", traceback=f"  login(password={SECRET!r})"
    )
    letter = DeadLetter.objects.get()
    DeadLetter.objects.unguarded().update(error_message=f"Broken: token={SECRET}")
    lists = [list_of("task"), list_of("taskexecutionlog"), list_of("deadletter")]
    return [page_of(task), page_of(done), page_of(log), page_of(letter), *lists]


def test_values_that_are_not_secret_are_shown() -> None:
    failed, done, *_ = _write_tasks_with_secrets()
    assert "42" in staff(*VIEWS).get(done).content.decode()
    assert "&quot;ann&quot;" in staff(*VIEWS).get(failed).content.decode()


def test_users_with_permission_see_arguments_and_results_while_texts_stay_masked() -> None:
    failed, done, log, letter, *_ = _write_tasks_with_secrets()
    reader = staff(*VIEWS, "view_task_arguments")
    assert reader.get(failed).content.decode().count(SECRET) == 2
    assert SECRET in reader.get(done).content.decode()
    assert SECRET not in reader.get(log).content.decode()
    assert reader.get(letter).content.decode().count(SECRET) == 2


def test_positional_arguments_are_masked_by_the_names_of_their_parameters() -> None:
    task = a_task(name=log_in.name, args=["ann", SECRET, "more", SECRET])
    page = staff(*VIEWS).get(page_of(task)).content.decode()
    assert SECRET not in page
    assert "&quot;ann&quot;" in page
    assert "&quot;more&quot;" not in page


def test_positional_arguments_of_an_unknown_task_are_all_masked() -> None:
    task = a_task(name="gone.task", args=[SECRET, 4111])
    page = staff(*VIEWS).get(page_of(task)).content.decode()
    assert SECRET not in page
    assert ">4111" not in page


@pytest.mark.parametrize(
    "question",
    [
        {"kwargs__password__startswith": "h"},
        {"kwargs__contains": "h"},
        {"args__0": "ann"},
        {"result__session_token__startswith": "h"},
        {"last_error__contains": "hunter"},
        {"executions__traceback__contains": "hunter"},
        {"tenant__slug": "default"},
    ],
)
def test_a_list_cannot_be_filtered_by_hidden_values(question: dict[str, Any]) -> None:
    _write_tasks_with_secrets()
    assert staff(*VIEWS).get(list_of("task"), question).status_code == 400


def test_other_lists_cannot_be_filtered_by_hidden_values() -> None:
    _write_tasks_with_secrets()
    for model in ("taskexecutionlog", "deadletter"):
        answer = staff(*VIEWS).get(list_of(model), {"task__kwargs__password__startswith": "h"})
        assert answer.status_code == 400
    assert Task.objects.exists()
    assert TaskExecutionLog.objects.exists()


def test_the_page_that_edits_arguments_shows_them_only_with_permission() -> None:
    _write_tasks_with_secrets()
    task = Task.objects.get(status=Status.FAILED)
    address = reverse("admin:django_durable_tasks_task_replay", args=[task.pk])
    assert staff(*VIEWS, "replay_deadletter").get(address).status_code == 403
    assert staff(*VIEWS, "view_task_arguments").get(address).status_code == 403
    assert SECRET in operator().get(address).content.decode()


def test_secrets_of_a_callback_are_masked_on_its_page() -> None:
    task = a_task(
        Status.SUCCESS,
        name="django_durable_tasks.http_callback",
        kwargs={
            "url": f"https://example.com/?token={SECRET}",
            "headers": {"Authorization": f"Bearer {SECRET}", "X-Api-Key": SECRET},
            "body": f'{{"password": "{SECRET}"}}',
        },
        target_type="HTTP_CALLBACK",
    )
    request = DeliveryAttempt(
        task=task,
        attempt_number=1,
        outcome="DONE",
        started_at=task.created_at,
        method="POST",
        url="https://example.com/hook",
        status=204,
        request_headers=[["Authorization", "********"], ["X-Shop", "7"]],
        response_body="<b>thanks</b>",
        total_seconds=0.25,
    )
    DeliveryAttempt.objects.unguarded().bulk_create([request])
    page = staff(*VIEWS, "view_deliveryattempt").get(page_of(task)).content.decode()
    assert SECRET not in page
    assert "https://example.com/hook" in page
    assert "&lt;b&gt;thanks&lt;/b&gt;" in page
    assert "total 250 ms" in page
    without = staff(*VIEWS).get(page_of(task)).content.decode()
    assert "https://example.com/hook" not in without

"""``AsyncResult(id)`` and ``revoke(id)``: ids of plain tasks need no database; durable tasks support
callbacks. ``get()`` raises at once if the task cannot run while the caller waits.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from celery import current_app
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from django.db import DatabaseError, connection, transaction
from django.test import SimpleTestCase

from django_durable_tasks.celery.result import DurableResult, known
from django_durable_tasks.exceptions import InvalidOption, WouldWaitForever
from django_durable_tasks.models import Task
from tests.project import tasks

PLAIN, OURS = str(uuid.uuid4()), "0193b0e0-0000-7000-8000-000000000000"


def test_a_plain_id_is_unknown_in_a_test_without_database_access() -> None:
    assert known([PLAIN]) == set()
    with pytest.raises(RuntimeError, match="Database access not allowed"):
        known([OURS])


class TestWithoutDatabase(SimpleTestCase):
    """Django's own way to forbid the database."""

    def test_a_plain_id_is_unknown(self) -> None:
        assert known([PLAIN]) == set()
        with pytest.raises(AssertionError, match="Database queries"):
            known([OURS])


@pytest.mark.django_db
@pytest.mark.postgresql
def test_a_lookup_that_fails_leaves_the_callers_transaction_intact(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {Task._meta.db_table} RENAME TO elsewhere")
        with caplog.at_level("DEBUG", "django_durable_tasks.calls"):
            assert known([PLAIN]) == set()
        assert "does not exist" in caplog.text
        cursor.execute("SELECT 1")
        with pytest.raises(DatabaseError):
            known([PLAIN, OURS])
        transaction.set_rollback(True)


@pytest.mark.django_db
@pytest.mark.parametrize("form", [DurableResult, AsyncResult])
def test_the_callback_of_get_receives_id_and_value(
    form: Any, settings: Any, django_capture_on_commit_callbacks: Any
) -> None:
    settings.CELERY_TASK_ALWAYS_EAGER = True
    with django_capture_on_commit_callbacks(execute=True):
        task_id = tasks.add.delay(1, 2).id
    received = list[tuple[str, int]]()
    assert form(task_id).get(callback=lambda *given: received.append(given)) == 3
    assert form(task_id).get(9, True, 0.1, True, True, lambda *given: received.append(given)) == 3
    assert received == [(task_id, 3)] * 2


FORMS: list[Any] = [DurableResult, AsyncResult]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("form", FORMS)
def test_on_interval_of_get_is_called_while_the_task_is_open(form: Any) -> None:
    task_id = tasks.add.apply_async((1, 2), countdown=60).id
    called = list[str]()

    def on_interval() -> None:
        called.append(Task.objects.get(pk=task_id).status)
        if len(called) == 2:
            DurableResult(task_id).revoke()

    with pytest.raises(TaskRevokedError):
        form(task_id).get(timeout=60, interval=0.02, on_interval=on_interval)
    assert called == ["PENDING", "PENDING"]


@pytest.mark.django_db
@pytest.mark.parametrize("form", FORMS)
def test_options_of_get_without_effect_are_refused(form: Any) -> None:
    result = form(tasks.add.apply_async((1, 2), countdown=60).id)
    with pytest.raises(InvalidOption, match=r"on_message=.* use callback="):
        result.get(on_message=print)
    with pytest.raises(TypeError, match="timout"):
        result.get(timout=1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "revoke",
    [
        lambda task_id: AsyncResult(task_id).revoke(wait=True),
        lambda task_id: DurableResult(task_id).revoke(terminate=True, wait=True),
        lambda task_id: current_app.control.revoke([task_id], reply=True),
    ],
    ids=["AsyncResult", "DurableResult", "control"],
)
def test_a_revoke_inside_a_transaction_does_not_wait_for_the_workers(revoke: Any) -> None:
    """Workers would wait for its locks."""
    task_id = tasks.add.apply_async((1, 2), countdown=60).id
    with (
        transaction.atomic(),
        pytest.raises(WouldWaitForever, match="revoke after the transaction"),
    ):
        revoke(task_id)
    assert Task.objects.get(pk=task_id).status == "PENDING"


@pytest.mark.django_db(transaction=True)
def test_a_revoke_without_terminate_does_not_wait_for_a_reply() -> None:
    task_id = tasks.add.apply_async((1, 2), countdown=60).id
    with transaction.atomic():
        DurableResult(task_id).revoke(wait=True)
    assert Task.objects.get(pk=task_id).status == "CANCELLED"


@pytest.mark.django_db
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("countdown", [0, 60])
def test_a_result_of_the_open_transaction_raises(form: Any, countdown: int) -> None:
    result = tasks.add.apply_async((1, 2), countdown=countdown)
    with pytest.raises(WouldWaitForever, match="captureOnCommitCallbacks"):
        result.get()
    with pytest.raises(WouldWaitForever, match="in a transaction that is still open"):
        form(result.id).get(timeout=60)


@pytest.mark.django_db
def test_the_result_of_a_task_that_ran_in_the_open_transaction_is_returned(
    settings: Any, django_capture_on_commit_callbacks: Any
) -> None:
    settings.CELERY_TASK_ALWAYS_EAGER = True
    with django_capture_on_commit_callbacks(execute=True):
        result = tasks.add.delay(1, 2)
    assert result.get() == 3


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_savepoint_leaves_no_task_to_wait_for() -> None:
    with transaction.atomic():
        with transaction.atomic():
            result = tasks.add.delay(1, 2)
            transaction.set_rollback(True)
        with pytest.raises(WouldWaitForever, match="rolled back"):
            result.get()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("task", "status"), [(tasks.failing, "PENDING"), (tasks.add, "PENDING")])
def test_in_eager_mode_an_open_task_raises(settings: Any, task: Any, status: str) -> None:
    settings.CELERY_TASK_ALWAYS_EAGER = True
    result = task.apply_async(
        (1, 2)[: 1 + (task is tasks.add)], countdown=60 if task is tasks.add else 0
    )
    with pytest.raises(WouldWaitForever, match=f"is {status} and CELERY_TASK_ALWAYS_EAGER is set"):
        result.get()

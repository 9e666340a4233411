"""``get()`` raises at once if the task cannot run while the caller waits."""

from __future__ import annotations

from typing import Any

import pytest
from celery.result import AsyncResult
from django.db import transaction

from django_durable_tasks.celery.result import DurableResult
from django_durable_tasks.exceptions import WouldWaitForever
from tests.project import tasks

FORMS = [DurableResult, AsyncResult, tasks.add.AsyncResult]  # type: ignore[attr-defined]


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

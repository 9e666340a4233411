"""A rotation encrypts all rows again, while tasks are edited and run."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from django.utils import timezone

from django_durable_tasks.contrib.callbacks import endpoints
from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt
from django_durable_tasks.models import AuditEntry, DeadLetter, RecurringTask, Task
from django_durable_tasks.tasks import key_rotation
from tests.database.commands.durable_command import durable, json_of
from tests.database.encryption.keys import SECRET, assert_nowhere, queued, raw, use
from tests.database.recurring.schedules import a_schedule
from tests.delivery import deliver
from tests.factories import a_task
from tests.project.tasks import echo, failing_once

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def encryption(settings: Any) -> None:
    """Switch encryption on."""
    use(settings, "first")


def _keys() -> set[tuple[str, str | None]]:
    return {
        (model.__name__, key)
        for model in (Task, DeadLetter, RecurringTask)
        for key in model.objects.values_list("encryption_key", flat=True)
    }


def test_a_rotation_encrypts_everything_again(settings: Any) -> None:
    first = echo.schedule(SECRET, card=SECRET)
    deliver(queued(first))
    failed = failing_once.schedule(SECRET)
    with pytest.raises(Exception, match="4111"):
        deliver(queued(failed))
    a_schedule("encrypted", task=echo, args=[SECRET], interval=60)
    use(settings, "second", "first")
    before = Task.objects.get(pk=first.pk)
    assert (before.args, before.kwargs) == ([SECRET], {"card": SECRET})
    assert SECRET in json.dumps(before.result)
    assert json_of("rotate-keys", "--dry-run")["remaining"]["durable_tasks_task"] == 2
    data = json_of("rotate-keys", "--by", "ada")
    assert (data["changed"], data["failed"], sum(data["remaining"].values())) == (4, 0, 0)
    assert {key for _model, key in _keys()} == {"second"}
    use(settings, "second")
    after = Task.objects.get(pk=first.pk)
    assert (after.args, after.kwargs, after.result) == (before.args, before.kwargs, before.result)
    assert after.epoch == before.epoch
    assert DeadLetter.objects.get().args == [SECRET]
    assert RecurringTask.objects.get().args == [SECRET]
    assert AuditEntry.objects.latest("pk").operation == "installation.rotate_keys"


def test_headers_of_requests_are_encrypted_and_rotated(settings: Any) -> None:
    task = a_task("SUCCESS")
    endpoints.record_delivery(
        DeliveryAttempt(
            task=task,
            tenant_id=task.tenant_id,
            attempt_number=1,
            run_id=uuid.uuid4(),
            outcome="DONE",
            started_at=timezone.now(),
            method="POST",
            url="https://example.com/",
            endpoint="https://example.com",
            request_headers=[["X-Card", SECRET]],
            status=200,
            response_headers=[["X-Echo", SECRET]],
            total_seconds=0.1,
        )
    )
    assert SECRET not in raw("durable_tasks_delivery_attempt")
    use(settings, "second", "first")
    assert json_of("rotate-keys")["changed"] == 1
    use(settings, "second")
    row = DeliveryAttempt.objects.get()
    assert row.request_headers == [["X-Card", SECRET]]
    assert row.response_headers == [["X-Echo", SECRET]]


def test_a_rotation_leaves_what_it_cannot_decrypt_and_reports_it(settings: Any) -> None:
    lost = echo.schedule(SECRET)
    use(settings, "second")
    mine = echo.schedule(SECRET)
    answer = durable("rotate-keys")
    assert answer.code == 1
    assert "1 row could not be decrypted" in answer.out
    assert "'first'" in answer.out
    assert Task.objects.get(pk=mine.pk).args == [SECRET]
    use(settings, "first")
    assert Task.objects.get(pk=lost.pk).args == [SECRET]


def test_rows_from_before_encryption_are_encrypted_on_request() -> None:
    row = a_task(name=echo.name, args=[SECRET])
    Task.objects.unguarded().filter(pk=row.pk).update(encryption_key=None, args=[SECRET])
    assert SECRET in raw("durable_tasks_task")
    assert json_of("rotate-keys")["changed"] == 0
    assert json_of("rotate-keys", "--include-plain")["changed"] == 1
    assert_nowhere()
    assert Task.objects.get(pk=row.pk).args == [SECRET]


def test_a_result_under_another_key_than_the_arguments_is_rotated(settings: Any) -> None:
    task = echo.schedule(SECRET)
    row = queued(task)
    use(settings, "second", "first")
    deliver(row)
    assert Task.objects.get(pk=task.pk).encryption_key == "*"
    assert json_of("rotate-keys")["changed"] == 1
    use(settings, "second")
    row = Task.objects.get(pk=task.pk)
    assert (row.encryption_key, row.args) == ("second", [SECRET])
    assert SECRET in json.dumps(row.result)


def test_an_edit_between_the_batches_of_a_rotation_is_kept(settings: Any) -> None:
    tasks = [echo.using(key=f"k{number}").schedule("old", number) for number in range(5)]
    use(settings, "second", "first")
    batches = key_rotation.rotate(batch=2)
    next(batches)
    for number in range(5):
        echo.using(key=f"k{number}").schedule("new", number)
    assert sum(batch.changed for batch in batches) < 5
    rows = {row.pk: row for row in Task.objects.all()}
    assert [rows[task.pk].args for task in tasks] == [["new", number] for number in range(5)]
    assert set(Task.objects.values_list("encryption_key", flat=True)) <= {"second", "*"}
    assert json_of("rotate-keys")["failed"] == 0
    assert {row.encryption_key for row in Task.objects.all()} == {"second"}

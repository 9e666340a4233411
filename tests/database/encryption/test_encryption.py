"""Arguments and results are encrypted in the database, and nowhere else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import current_app
from celery.exceptions import Retry as CeleryRetry
from celery.utils.saferepr import saferepr
from django.db import connection

from django_durable_tasks import Workflow
from django_durable_tasks.celery.result import DurableResult
from django_durable_tasks.checks import check_settings
from django_durable_tasks.conf import InvalidSetting
from django_durable_tasks.encryption import current_key_id
from django_durable_tasks.exceptions import (
    DecryptionFailed,
    EncryptionKeyMissing,
    IdempotencyConflict,
    InvalidArguments,
)
from django_durable_tasks.models import AuditEntry, DeadLetter, RecurringTask, Task
from tests.database.api.client import SETTINGS, a_client, a_tenant, call
from tests.database.commands.durable_command import durable
from tests.database.dependencies.worker_and_leader import fail, of, resolve_all, succeed
from tests.database.encryption.keys import SECRET, assert_nowhere, key_of, queued, raw, use
from tests.database.recurring.schedules import a_schedule, at, fire
from tests.delivery import deliver, trace
from tests.factories import a_task
from tests.project.tasks import add, echo, failing_once, noop

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def encryption(settings: Any) -> None:
    """Switch encryption on."""
    use(settings, "first")


def test_a_task_is_encrypted_in_the_database_and_runs() -> None:
    task = echo.schedule(SECRET, card=SECRET)
    assert_nowhere()
    assert "$encrypted" in raw("durable_tasks_task")
    row = Task.objects.get(pk=task.pk)
    assert (row.args, row.kwargs, row.encryption_key) == ([SECRET], {"card": SECRET}, "first")
    value = deliver(queued(row))
    assert SECRET in json.dumps(value)
    row = Task.objects.get(pk=task.pk)
    assert row.status == "SUCCESS"
    assert row.result == value
    assert_nowhere()


@pytest.mark.parametrize("number", [1, 3, 250])
def test_bulk_inserts_encrypt(number: int) -> None:
    echo.schedule_many([(SECRET,)] * number)
    wf = Workflow("encrypted")
    first = wf.add(echo, SECRET)
    wf.add(echo, first.result, SECRET, after=first)
    wf.start()
    assert_nowhere()
    rows = list(Task.objects.exclude(encryption_key=None))
    assert len(rows) == number + 2
    assert all(SECRET in row.args for row in rows)


def test_a_task_without_arguments_has_no_key() -> None:
    row = noop.schedule()
    assert Task.objects.get(pk=row.pk).encryption_key is None


def test_a_deferred_column_is_decrypted() -> None:
    task = echo.schedule(SECRET)
    assert Task.objects.defer("args", "tenant").get(pk=task.pk).args == [SECRET]
    assert Task.objects.only("id").get(pk=task.pk).args == [SECRET]


def test_values_never_contain_a_ciphertext_as_value() -> None:
    echo.schedule(SECRET)
    (value,) = Task.objects.values_list("args", flat=True)
    assert repr(value) == "<encrypted with key 'first'>"
    with pytest.raises(TypeError):
        json.dumps(value)


def test_results_of_upstreams_are_decrypted_for_references() -> None:
    wf = Workflow("references")
    first = wf.add(echo, SECRET, step="first")
    wf.add(echo, first.result, step="second", after=first)
    run = wf.start()
    deliver(queued(of(run, "first")))
    resolve_all()
    value = deliver(queued(of(run, "second")))
    assert SECRET in json.dumps(value)
    assert_nowhere()


def test_an_idempotent_call_is_compared_with_the_decrypted_arguments() -> None:
    first = echo.using(idempotency_key="once").schedule(SECRET)
    assert echo.using(idempotency_key="once").schedule(SECRET).pk == first.pk
    with pytest.raises(IdempotencyConflict):
        echo.using(idempotency_key="once").schedule("other")


def test_an_editable_task_is_encrypted_again() -> None:
    first = echo.using(key="k").schedule("before")
    echo.using(key="k").schedule(SECRET)
    assert Task.objects.get(pk=first.pk).args == [SECRET]
    assert_nowhere()


def test_a_dead_letter_and_a_replay_with_other_arguments_are_encrypted() -> None:
    task = failing_once.schedule(SECRET)
    with pytest.raises(Exception, match="4111"):
        deliver(queued(task))
    letter = DeadLetter.objects.get()
    assert (letter.args, letter.encryption_key) == ([SECRET], "first")
    assert "$encrypted" in raw("durable_tasks_dead_letter")
    Task.objects.filter(pk=task.pk).replay(by="ada", args=[f"new {SECRET}"])
    assert Task.objects.get(pk=task.pk).args == [f"new {SECRET}"]
    entry = AuditEntry.objects.get()
    assert entry.after["args"].startswith("(encrypted)")
    assert entry.after["args"] != entry.before["args"]


def test_a_schedule_and_its_tasks_are_encrypted() -> None:
    row = a_schedule("encrypted", task=echo, args=[SECRET], kwargs={"card": SECRET}, interval=60)
    assert_nowhere()
    assert fire(at(60)) == 1
    assert Task.objects.get().args == [SECRET]
    RecurringTask.objects.upsert(name="encrypted", task=echo, args=["new", SECRET])
    row.pause("a test")
    assert RecurringTask.objects.get().args == ["new", SECRET]
    assert_nowhere()


def test_a_declared_schedule_is_encrypted(settings: Any) -> None:
    schedules = {"one": {"task": echo.name, "args": [SECRET], "interval": 60}}
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "SCHEDULES": schedules}
    assert durable("sync").code == 0
    assert_nowhere()
    assert durable("sync", "--check").code == 0


def test_the_api_shows_plain_values_and_stores_none(settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, **SETTINGS}
    client = a_client(a_tenant("acme"))
    body = {
        "name": "nightly",
        "target_type": "CELERY_TASK",
        "target_config": {"task": echo.name, "args": [], "kwargs": {"number": SECRET}},
        "interval_seconds": 60,
    }
    for _ in range(2):
        made = client.post("/recurring-tasks", body, Idempotency_Key="once")
        assert made.status_code == 201, made.content
        assert SECRET in made.content.decode()
    task = client.post("/tasks", call()).json()["task_id"]
    assert client.get(f"/tasks/{task}").json()["target_config"]["args"]
    assert_nowhere()


@pytest.mark.parametrize("column", ["args", "kwargs"])
def test_a_ciphertext_that_was_copied_to_another_row_is_refused(column: str) -> None:
    first, second = echo.schedule(SECRET, a=1), echo.schedule("other", a=2)
    stored = Task.objects.values_list(column, flat=True).get(pk=first.pk)
    Task.objects.unguarded().filter(pk=second.pk).update(**{column: stored})
    row = Task.objects.get(pk=second.pk)
    with pytest.raises(DecryptionFailed, match=column):
        getattr(row, column)


def test_a_ciphertext_that_was_copied_to_another_column_or_tenant_is_refused() -> None:
    task = echo.schedule(SECRET, a=1)
    tenant = a_tenant("other")
    Task.objects.unguarded().filter(pk=task.pk).update(
        kwargs=Task.objects.values_list("args", flat=True).get(pk=task.pk)
    )
    with pytest.raises(DecryptionFailed):
        _ = Task.objects.get(pk=task.pk).kwargs
    Task.objects.unguarded().filter(pk=task.pk).update(tenant=tenant)
    with pytest.raises(DecryptionFailed):
        _ = Task.objects.get(pk=task.pk).args


def test_a_row_that_is_saved_unread_keeps_its_ciphertext() -> None:
    task = echo.schedule(SECRET)
    row = Task.objects.get(pk=task.pk)
    before = raw("durable_tasks_task")
    row.save_base()
    assert raw("durable_tasks_task") == before
    assert row.args == [SECRET]
    row.save_base()
    assert_nowhere()
    assert Task.objects.get(pk=task.pk).args == [SECRET]


def test_a_run_without_its_key_waits_and_uses_no_budget(settings: Any) -> None:
    task = echo.schedule(SECRET)
    row = queued(task)
    use(settings, "other")
    with pytest.raises(CeleryRetry):
        deliver(row)
    row = Task.objects.get(pk=task.pk)
    assert (row.status, row.failures, row.crashes) == ("PENDING", 0, 0)
    assert "'first'" in row.last_error
    assert "ENCRYPTION_KEYS" in row.last_error
    assert row.executions.get().status == "RETRY"
    use(settings, "other", "first")
    deliver(queued(row))
    assert Task.objects.get(pk=task.pk).status == "SUCCESS"


def test_a_scheduler_without_the_key_postpones_a_schedule(settings: Any) -> None:
    row = a_schedule("encrypted", task=echo, args=[SECRET], interval=60)
    use(settings, "other")
    assert fire(at(60)) == 0
    found = RecurringTask.objects.get()
    assert (found.status, found.watermark_at < at(60)) == ("ACTIVE", True)
    found.pause("it has no key")
    assert RecurringTask.objects.get().encryption_key == "first"
    use(settings, "first")
    assert RecurringTask.objects.get(pk=row.pk).args == [SECRET]


def test_a_task_fails_for_good_although_the_key_is_missing(settings: Any) -> None:
    task = echo.schedule(SECRET)
    use(settings, "other")
    fail(task)
    Task.objects.unguarded().filter(pk=task.pk, status="PENDING").update(max_attempts=1)
    if Task.objects.get(pk=task.pk).status == "PENDING":
        fail(task)
    assert DeadLetter.objects.count() == 1
    use(settings, "first")
    assert DeadLetter.objects.get().args == [SECRET]


def test_a_result_without_its_key_raises_when_it_is_read(settings: Any) -> None:
    task = echo.schedule(SECRET)
    deliver(queued(task))
    use(settings, "other")
    with pytest.raises(EncryptionKeyMissing, match="'first'"):
        DurableResult(str(task.pk)).get(timeout=1)


def test_plain_rows_stay_readable_and_a_value_in_the_stored_form_is_refused(settings: Any) -> None:
    plain = a_task(name=echo.name, args=["plain"])
    assert Task.objects.get(pk=plain.pk).args == ["plain"]
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "ENCRYPTION_KEYS": []}
    assert current_key_id() is None
    task = echo.schedule("plain")
    assert Task.objects.get(pk=task.pk).encryption_key is None
    form = {"$encrypted": 1, "key": "first", "data": "AAAA"}
    with pytest.raises(InvalidArguments, match="reserved"):
        echo.schedule(**form)


@pytest.mark.parametrize("entry", ["first", "first:short", "a b:" + "A" * 44, key_of("x") + "!"])
def test_an_invalid_key_is_refused_without_showing_it(settings: Any, entry: str) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "ENCRYPTION_KEYS": [entry]}
    with pytest.raises(InvalidSetting, match="entry 1") as refused:
        current_key_id()
    assert entry not in str(refused.value)
    (finding,) = [one for one in check_settings() if one.id == "durable_tasks.E001"]
    assert "entry 1" in finding.msg


def keys_from_a_service() -> list[str]:
    """Return keys as a key management service does."""
    return [key_of("service")]


def test_keys_come_from_a_function(settings: Any) -> None:
    path = f"{__name__}.keys_from_a_service"
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "ENCRYPTION_KEYS": path}
    task = echo.schedule(SECRET)
    assert Task.objects.get(pk=task.pk).encryption_key == "service"


def test_nothing_is_encrypted_without_keys(settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "ENCRYPTION_KEYS": []}
    task = add.schedule(1, 2)
    succeed(task, result="3")
    row = Task.objects.get(pk=task.pk)
    assert (row.args, row.result, row.encryption_key) == ([1, 2], 3, None)
    assert "$encrypted" not in raw("durable_tasks_task")
    answer = durable("rotate-keys")
    assert (answer.code, "ENCRYPTION_KEYS" in answer.err) == (2, True)


@pytest.mark.parametrize("result", [SECRET, [SECRET], {"a": {"b": SECRET}}, SECRET * 200, None])
def test_results_are_neither_in_the_log_nor_in_events(
    result: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        trace(queued(echo.schedule(result)))
    lines = [record.getMessage() for record in caplog.records]
    assert any("succeeded" in line for line in lines)
    assert SECRET not in "".join(lines)
    # Celery sends this text as `result` of the event task-succeeded.
    value = {"values": [result], "named": {}}
    assert SECRET not in saferepr(value, current_app.tasks[echo.name].resultrepr_maxsize)


_CHANGES: dict[str, Any] = {
    "another member": {"more": 1},
    "another version": {"$encrypted": 2},
    "a version of another type": {"$encrypted": "1"},
    "no data": {"data": None},
    "another key": {"key": "none"},
}


@pytest.mark.parametrize("column", ["args", "kwargs"])
@pytest.mark.parametrize("change", _CHANGES)
def test_a_changed_envelope_never_becomes_an_argument(column: str, change: str) -> None:
    task = queued(echo.schedule(SECRET, card=SECRET))
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {column} FROM durable_tasks_task")
        envelope = cursor.fetchone()[0]
        envelope = json.loads(envelope) if isinstance(envelope, str) else envelope
        changed = {**envelope, **_CHANGES[change]}
        changed = {name: value for name, value in changed.items() if value is not None}
        sql = f"UPDATE durable_tasks_task SET {column} = %s"
        cursor.execute(sql, [json.dumps(changed)])
    row = Task.objects.get(pk=task.pk)
    with pytest.raises((DecryptionFailed, EncryptionKeyMissing)):
        getattr(row, column)
    with pytest.raises(CeleryRetry):
        deliver(row)

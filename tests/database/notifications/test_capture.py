"""Events are recorded with the transition that they are about, for the settings that select them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_durable_tasks import process_state
from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.contrib.notifications.apps import NotificationsConfig
from django_durable_tasks.contrib.notifications.capture import RecentSubscriptions
from django_durable_tasks.contrib.notifications.models import NotificationEvent
from django_durable_tasks.models import Task
from django_durable_tasks.registry import NOTIFICATION_TASK
from django_durable_tasks.states.guarded_update import RECORDERS, watching
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.tasks import attempts
from tests.database.notifications.sending import a_setting, events, types
from tests.factories import a_run, a_task, a_tenant

pytestmark = pytest.mark.django_db(transaction=True)
ALL: dict[str, Any] = dict.fromkeys(
    ("on_success", "on_failure", "on_retry", "on_dead_letter"), True
)


def _succeed(**fields: Any) -> Task:
    task = a_task("RUNNING", **fields)
    assert attempts.succeed(a_run(task), None, "worker")
    return task


def _fail(error: str = "broken", **fields: Any) -> Task:
    task = a_task("RUNNING", **fields)
    outcome = Outcome(kind=EndingKind.FAILED, error=error, error_type="Broken")
    assert attempts.fail(a_run(task), outcome, "worker") is not None
    task.refresh_from_db()
    return task


def test_each_ending_is_recorded_for_the_flags_of_a_setting() -> None:
    a_setting(**ALL)
    done, again, dead = _succeed(), _fail(), _fail(max_attempts=1)
    assert types() == ["task.succeeded", "task.retrying", "task.dead"]
    assert [event.data["task_id"] for event in events()] == [
        str(task.pk) for task in (done, again, dead)
    ]
    assert events()[1].data["error"] == "broken"
    assert "next_attempt_at" in events()[1].data
    assert "error" not in events()[0].data


def test_a_setting_without_dead_letters_gets_the_failure() -> None:
    a_setting("failures", on_failure=True)
    a_setting("letters", on_failure=False, on_dead_letter=True)
    _fail(max_attempts=1)
    assert sorted(types()) == ["task.dead", "task.failed"]


@pytest.mark.parametrize(
    "filters",
    [
        {"task_name": "tests.project.tasks.other"},
        {"task_name": "billing.*"},
        {"queue": "mail"},
        {"schedule": "nightly"},
        {"enabled": False},
        {"on_failure": False},
    ],
)
def test_events_outside_of_the_filters_are_not_recorded(filters: dict[str, Any]) -> None:
    a_setting(**filters)
    _fail(max_attempts=1)
    assert types() == []


def test_patterns_select_names_and_queues() -> None:
    a_setting(task_name="tests.*.noop", queue="t?st")
    _fail(max_attempts=1)
    assert types() == ["task.failed"]


def test_a_setting_gets_no_event_of_another_tenant() -> None:
    other = a_tenant()
    a_setting(tenant=other)
    _fail(max_attempts=1)
    assert types() == []
    _fail(max_attempts=1, tenant=other)
    assert types() == ["task.failed"]


def test_notification_tasks_cause_no_events() -> None:
    a_setting(**ALL)
    _fail(max_attempts=1, name=NOTIFICATION_TASK)
    _fail(name=NOTIFICATION_TASK)
    assert types() == []


def test_secrets_in_errors_are_masked() -> None:
    a_setting()
    _fail("login failed: password=hunter2", max_attempts=1)
    assert "hunter2" not in str(events()[0].data)


def test_an_ending_that_no_setting_selects_costs_no_statement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_setting(on_failure=True)
    recent = process_state.of(RecentSubscriptions)
    recent.in_background = True
    recent.get()
    statements = _statements_of_a_success()
    monkeypatch.delitem(RECORDERS, NotificationsConfig.label)
    assert len(statements) == len(_statements_of_a_success())


def _statements_of_a_success() -> list[str]:
    run = a_run(a_task("RUNNING"))
    with CaptureQueriesContext(connection) as captured:
        assert attempts.succeed(run, None, "worker")
    return [query["sql"] for query in captured]


def test_a_selected_success_costs_one_insert(monkeypatch: pytest.MonkeyPatch) -> None:
    a_setting(on_success=True)
    recent = process_state.of(RecentSubscriptions)
    recent.in_background = True
    recent.get()
    _statements_of_a_success()  # measures the clock
    statements = _statements_of_a_success()
    own = [sql for sql in statements if "notification" in sql]
    assert [sql.split()[0] for sql in own] == ["INSERT"]
    assert types() == ["task.succeeded"] * 2
    monkeypatch.delitem(RECORDERS, NotificationsConfig.label)
    markers = ("SAVEPOINT", "RELEASE", "BEGIN", "COMMIT")
    without = [sql for sql in _statements_of_a_success() if not sql.startswith(markers)]
    with_it = [sql for sql in statements if not sql.startswith(markers)]
    assert len(with_it) == len(without) + 1


def test_a_success_of_another_task_than_the_selected_ones_costs_no_statement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_setting(on_success=True, task_name="another.*")
    recent = process_state.of(RecentSubscriptions)
    recent.in_background = True
    recent.get()
    statements = _statements_of_a_success()
    monkeypatch.delitem(RECORDERS, NotificationsConfig.label)
    assert len(statements) == len(_statements_of_a_success())


def test_an_ending_that_is_rolled_back_leaves_no_event() -> None:
    a_setting(**ALL)
    task = a_task("RUNNING")
    with transaction.atomic():
        assert attempts.succeed(a_run(task), None, "worker")
        assert types() == ["task.succeeded"]
        transaction.set_rollback(True)
    assert types() == []
    task.refresh_from_db()
    assert task.status == "RUNNING"


def test_a_preview_records_nothing() -> None:
    a_setting(**ALL)
    task = a_task("FAILED")
    with watching(preview=True):
        Task.objects.filter(pk=task.pk).force_complete(by="anna", reason="done")
    assert types() == []


def test_an_error_of_the_capture_fails_no_ending_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    a_setting(**ALL)
    with connection.schema_editor() as editor:
        editor.delete_model(NotificationEvent)
    try:
        with caplog.at_level(logging.ERROR, "django_durable_tasks.contrib.notifications"):
            tasks = [_succeed(), _fail(), _fail(max_attempts=1)]
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(NotificationEvent)
    for task, status in zip(tasks, ("SUCCESS", "PENDING", "FAILED"), strict=True):
        task.refresh_from_db()
        assert task.status == status
    assert task.dead_letters.count() == 1
    assert len([one for one in caplog.records if "could not be recorded" in one.message]) == 1
    with caplog.at_level(logging.WARNING, "django_durable_tasks.contrib.notifications"):
        _succeed()
    assert "recorded again after 3 failures" in caplog.text


def test_a_changed_setting_is_effective_at_once_in_this_process() -> None:
    row = a_setting()
    _fail(max_attempts=1)
    deliveries.change_setting(row, enabled=False)
    _fail(max_attempts=1)
    assert types() == ["task.failed"]

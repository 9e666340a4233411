"""Each action performs one operation, asks for confirmation if it is destructive, and reports which
tasks changed and which did not.
"""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from django_durable_tasks.choices import Resolution, Status
from django_durable_tasks.models import DeadLetter, QueueControl, Task
from django_durable_tasks.store.clock import database_now
from tests.database.admin.site import act, list_of, messages_of, opened, page_of, text
from tests.factories import a_dead_letter, a_paused_queue, a_task, many_tasks

pytestmark = pytest.mark.django_db

PAUSE = "admin:django_durable_tasks_queuecontrol_pause"
RESUME = "admin:django_durable_tasks_queuecontrol_resume"
REPLAY = "admin:django_durable_tasks_task_replay"


def _reloaded(row: Any) -> Any:
    return type(row).objects.get(pk=row.pk)


def test_cancel_asks_for_confirmation_then_ends_waiting_tasks_and_requests_cancellation_of_running_ones(
    ann: Client,
) -> None:
    waiting, running, ended = a_task(), a_task(Status.RUNNING), a_task(Status.SUCCESS)
    asked = act(ann, "cancel", waiting, running, ended, confirm=False)
    assert "This changes 2 rows" in text(asked)
    assert "The status of 1 row does not allow it." in text(asked)
    assert _reloaded(waiting).status == Status.PENDING
    done = act(ann, "cancel", waiting, running, ended, reason="wrong tariff")
    assert messages_of(done) == [
        "Cancelled 1 task. Requested 1 running task to stop. The status of 1 row does not allow it."
    ]
    assert _reloaded(waiting).status == Status.CANCELLED
    assert _reloaded(waiting).reason == "CANCELLED by ann: wrong tariff"
    assert _reloaded(running).cancel_requested_at is not None
    assert _reloaded(ended).status == Status.SUCCESS


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("replay", "Replayed 1 task."),
        ("retry", "Made 1 retry due now."),
        ("force_complete", "Force-completed 3 tasks."),
    ],
)
def test_an_action_reports_the_rows_whose_status_does_not_allow_it(
    ann: Client, action: str, message: str
) -> None:
    rows = [a_task(Status.FAILED), a_task(failures=1, due=500), a_task(due=500)]
    before = {row.pk: _reloaded(row).epoch for row in rows}
    left = 0 if action == "force_complete" else 2
    refused = " The status of 2 rows does not allow it." if left else ""
    assert messages_of(act(ann, action, *rows, reason="why")) == [f"{message}{refused}"]
    changed = Task.objects.filter(reason__contains="by ann: why").values_list("pk", flat=True)
    assert len(changed) == 3 - left
    assert all(_reloaded(row).epoch == before[row.pk] for row in rows if row.pk not in changed)


def test_a_refused_replay_shows_the_reason_and_changes_nothing(ann: Client) -> None:
    failed = a_task(Status.FAILED, key="invoice-7")
    a_task(key="invoice-7")
    (message,) = messages_of(act(ann, "replay", failed))
    assert message.startswith("Nothing was changed. ")
    assert _reloaded(failed).status == Status.FAILED


def test_dead_letters_are_replayed_in_bulk(ann: Client) -> None:
    many_tasks(3, Status.FAILED)
    closed = a_dead_letter(a_task(Status.CANCELLED), open=False)
    done = act(ann, "replay", *DeadLetter.objects.filter(open_task__isnull=False), closed)
    assert messages_of(done) == ["Replayed 3 tasks."]
    assert Task.objects.filter(status=Status.PENDING).count() == 3
    assert not DeadLetter.objects.open().exists()


def test_an_action_from_a_change_page_returns_to_that_page(ann: Client) -> None:
    task = a_task(Status.FAILED)
    answer = act(ann, "replay", task, durable_from_page="1")
    assert answer.headers["Location"] == page_of(task)
    assert "Replayed 1 task." in text(ann.get(page_of(task)))


def test_the_change_page_offers_only_actions_that_the_status_allows(ann: Client) -> None:
    offered = {
        status: {
            button.get("action", button["title"])
            for button in ann.get(page_of(a_task(status))).context["buttons"]
        }
        for status in (Status.PENDING, Status.RUNNING, Status.SUCCESS, Status.FAILED)
    }
    assert offered == {
        Status.PENDING: {"cancel", "force_complete", "Hold…", "Add a dependency…"},
        Status.RUNNING: {"cancel", "force_complete"},
        Status.SUCCESS: set(),
        Status.FAILED: {
            "replay",
            "force_complete",
            "Replay with edited arguments…",
            "Its dead letters",
        },
    }


def test_the_history_of_an_object_shows_user_and_action(ann: Client) -> None:
    task = a_task()
    act(ann, "cancel", task, reason="wrong tariff")
    entry = LogEntry.objects.get()
    assert (entry.user.get_username(), entry.object_id) == ("ann", str(task.pk))
    assert "wrong tariff" in text(
        ann.get(reverse("admin:django_durable_tasks_task_history", args=[task.pk]))
    )


# Queues -------------------------------------------------------------------------------------------


def test_a_queue_without_a_stored_state_is_paused_with_a_reason_and_resumed(ann: Client) -> None:
    many_tasks(2, queue="mail")
    assert "2 tasks wait." in text(ann.get(reverse(PAUSE), {"queue": "mail"}))
    assert "This field is required." in text(
        ann.post(reverse(PAUSE), {"queue": "mail", "reason": ""})
    )
    assert not QueueControl.objects.exists()
    ann.post(reverse(PAUSE), {"queue": "mail", "reason": "the printer burns"})
    mark = QueueControl.objects.get()
    assert (mark.name, mark.paused_by, mark.reason) == ("mail", "ann", "the printer burns")
    assert mark.paused_at is not None
    assert "by ann: the printer burns" in text(ann.get(list_of("queuecontrol")))
    assert messages_of(ann.post(reverse(RESUME), {"queue": "mail"})) == ["Resumed queue mail."]
    assert QueueControl.objects.get().paused_at is None
    assert (
        messages_of(ann.post(reverse(RESUME), {"queue": "mail"}))[-1]
        == "Queue mail was not paused."
    )


@pytest.mark.parametrize("name", ["maill", "", "a b", "\x00"])
def test_a_queue_that_does_not_exist_is_not_paused(ann: Client, name: str) -> None:
    a_task(queue="mail")
    (message,) = messages_of(ann.post(reverse(PAUSE), {"queue": name, "reason": "typo"}))
    assert message.endswith("is in use. Nothing was paused.")
    assert not QueueControl.objects.exists()


def test_a_get_request_does_not_resume_a_queue(ann: Client) -> None:
    a_paused_queue("mail")
    assert ann.get(reverse(RESUME), {"queue": "mail"}).status_code == 405


# Edited arguments ---------------------------------------------------------------------------------

ADD = "tests.project.tasks.add"


def _edit(ann: Client, task: Task, args: str, kwargs: str = "{}") -> Any:
    address = reverse(REPLAY, args=[task.pk])
    given = {"args": args, "kwargs": kwargs, "reason": "typo", "opened": opened(ann, address)}
    return ann.post(address, given)


def test_one_dead_letter_is_replayed_with_edited_arguments(ann: Client) -> None:
    task = a_task(Status.FAILED, name=ADD, args=[1, "x"])
    letter = DeadLetter.objects.get()
    page = act(ann, "replay_edited", letter, confirm=False)
    assert page.headers["Location"] == reverse(REPLAY, args=[task.pk])
    assert _edit(ann, task, "[1]", '{"right": 2}').status_code == 302
    task, letter = _reloaded(task), _reloaded(letter)
    assert (task.status, task.args, task.kwargs) == (Status.PENDING, [1], {"right": 2})
    assert (letter.resolution, letter.resolved_by, letter.comment) == (
        Resolution.REPLAYED,
        "ann",
        "typo",
    )


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ("[1", "{}", "This is not JSON"),
        ("{}", "{}", "Give a list: [1, 2]"),
        ("[1, 2]", "[]", 'Give an object: {"name": 1}'),
        ("[1, 2, 3]", "{}", "too many positional arguments"),
        ("[1, NaN]", "{}", "which is not JSON"),
        (f"[1, {'9' * 5000}]", "{}", "This is not JSON"),
        (f"[1, {'[' * 100_000}{']' * 100_000}]", "{}", "nested too deep"),
        (f'[1, "{"x" * 70_000}"]', "{}", "at most 65,536 are allowed"),
        ('[1, "\\u0000"]', "{}", "NUL"),
    ],
)
def test_invalid_arguments_are_refused_on_the_page_and_change_nothing(
    ann: Client, args: str, kwargs: str, expected: str
) -> None:
    task = a_task(Status.FAILED, name=ADD, args=[1, "x"])
    answer = _edit(ann, task, args, kwargs)
    assert answer.status_code == 200
    assert expected in text(answer)
    task = _reloaded(task)
    assert (task.status, task.args) == (Status.FAILED, [1, "x"])


def test_unchanged_arguments_replay_also_a_task_whose_code_was_removed(ann: Client) -> None:
    task = a_task(Status.FAILED, name="gone.task", args=[1])
    assert "gone.task" in text(_edit(ann, task, "[2]"))
    assert _edit(ann, task, "[1]").status_code == 302
    assert _reloaded(task).status == Status.PENDING


def test_arguments_of_a_task_that_has_not_ended_are_not_edited(ann: Client) -> None:
    assert ann.get(reverse(REPLAY, args=[a_task().pk])).status_code == 404


def test_several_dead_letters_are_not_edited_at_once(ann: Client) -> None:
    many_tasks(2, Status.FAILED)
    answer = act(ann, "replay_edited", *DeadLetter.objects.all(), confirm=False)
    assert messages_of(answer) == ["Select exactly one open dead letter to edit its arguments."]


def test_cancellation_of_an_overdue_run_is_requested_only_once(ann: Client) -> None:
    asked_at = database_now() - timedelta(seconds=9)
    task = a_task(Status.RUNNING, cancel_requested_at=asked_at)
    assert "Nothing would change" in text(act(ann, "cancel", task))
    assert _reloaded(task).cancel_requested_at == asked_at

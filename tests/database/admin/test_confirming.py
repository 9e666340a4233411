"""A confirmed action moves the rows that its page showed, no others, and runs nothing again without
having asked.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from django_durable_tasks.admin import actions
from django_durable_tasks.models import DeadLetter, RecurringTask, Task
from django_durable_tasks.rules.states import Status
from tests.database.admin.site import act, confirmed, list_of, operator, page_of, said, text
from tests.database.recurring.schedules import a_schedule
from tests.factories import a_task, many_tasks

pytestmark = pytest.mark.django_db


@pytest.fixture
def ann() -> Client:
    """Give the browser of somebody who may do everything."""
    return operator("ann")


def _all(
    client: Client, action: str, model: str = "task", query: str = "", **fields: str
) -> tuple[str, Any]:
    """Choose the whole list and run an action on it; return where, and the page that asks."""
    some = {"task": Task, "deadletter": DeadLetter, "recurringtask": RecurringTask}[model]
    first: Any = some._default_manager.first()
    address = list_of(model) + query
    data = {"action": action, "select_across": "1", "_selected_action": [str(first.pk)], **fields}
    return address, client.post(address, data)


def _statuses() -> dict[str, int]:
    found = list(Task.objects.values_list("status", flat=True))
    return {status: found.count(status) for status in sorted(set(found))}


def test_a_row_that_matches_only_after_the_page_asked_is_left_alone(ann: Client) -> None:
    many_tasks(3, queue="mail")
    address, asked = _all(ann, "cancel", query="?queue=mail")
    assert "This changes 3 rows" in text(asked)
    late = a_task(queue="mail")
    assert said(confirmed(ann, address, asked)) == ["Cancelled 3 tasks."]
    assert Task.objects.get(pk=late.pk).status == Status.PENDING


def test_of_more_rows_than_one_action_moves_those_that_were_shown_are_moved(
    ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "AT_MOST", 2)
    many_tasks(3)
    address, asked = _all(ann, "cancel")
    shown = set(asked.context["shown"].values_list("pk", flat=True))
    many_tasks(2)
    confirmed(ann, address, asked)
    assert set(Task.objects.filter(status=Status.CANCELLED).values_list("pk", flat=True)) == shown


def test_rows_that_have_left_their_state_are_reported(ann: Client) -> None:
    rows = many_tasks(3)
    asked = act(ann, "cancel", *rows, confirm=False)
    Task.objects.unguarded().filter(pk=rows[0].pk).update(status=Status.SUCCESS, due_at=None)
    done = confirmed(ann, list_of("task"), asked)
    assert said(done) == [
        "Cancelled 2 tasks. 1 row has changed in the meantime and was left unchanged."
    ]


def test_a_thousand_rows_fit_in_one_confirmation(ann: Client) -> None:
    many_tasks(actions.AT_MOST)
    address, asked = _all(ann, "cancel")
    assert said(confirmed(ann, address, asked)) == ["Cancelled 1000 tasks."]


@pytest.mark.parametrize("rows", ["", "forged"])
def test_a_confirmation_that_carries_no_rows_of_ours_asks_again(ann: Client, rows: str) -> None:
    task = a_task()
    asked = act(ann, "cancel", task, confirm=False, durable_confirmed="1", durable_rows=rows)
    assert "This changes 1 row" in text(asked)
    assert Task.objects.get().status == Status.PENDING


def test_the_confirmation_of_one_action_confirms_no_other(ann: Client) -> None:
    task = a_task(Status.FAILED)
    asked = act(ann, "replay", task, confirm=False)
    again = confirmed(ann, list_of("task"), asked, action="force_complete", reason="x")
    assert "This changes 1 row" in text(again)
    assert confirmed(operator("bert"), list_of("task"), asked).status_code == 200
    assert Task.objects.get().status == Status.FAILED


# What runs again asks -----------------------------------------------------------------------------


def test_running_a_whole_list_again_asks_with_counts_and_leaves_cancelled_tasks_out(
    ann: Client,
) -> None:
    many_tasks(2, Status.FAILED, name="shop.charge")
    many_tasks(3, Status.CANCELLED)
    address, asked = _all(ann, "replay")
    assert (
        "This changes 2 rows . Failed, cancelled, skipped and expired tasks run again now"
        in text(asked)
    )
    assert "2 × FAILED shop.charge" in text(asked)
    assert "3 CANCELLED tasks are left out: select them one by one to replay them." in text(asked)
    assert _statuses() == {"CANCELLED": 3, "FAILED": 2}
    done = confirmed(ann, address, asked)
    assert said(done) == [
        ("Replayed 2 tasks. 3 CANCELLED tasks are left out: select them one by one to replay them.")
    ]
    assert _statuses() == {"CANCELLED": 3, "PENDING": 2}


def test_cancelled_tasks_that_are_chosen_one_by_one_run_again(ann: Client) -> None:
    rows = many_tasks(2, Status.CANCELLED)
    asked = act(ann, "replay", *rows, confirm=False)
    assert "2 × CANCELLED" in text(asked)
    assert said(confirmed(ann, list_of("task"), asked)) == ["Replayed 2 tasks."]


@pytest.mark.parametrize("across", ["0", "1"])
def test_a_task_that_was_cancelled_after_the_page_asked_stays_cancelled(
    ann: Client, across: str
) -> None:
    rows = many_tasks(2, Status.FAILED)
    asked = act(ann, "replay", *rows, confirm=False, select_across=across)
    Task.objects.unguarded().filter(pk=rows[0].pk).update(status=Status.CANCELLED)
    done = confirmed(ann, list_of("task"), asked)
    assert said(done) == [
        "Replayed 1 task. 1 row has changed in the meantime and was left unchanged."
    ]
    assert _statuses() == {"CANCELLED": 1, "PENDING": 1}


def test_a_replay_of_dead_letters_asks_with_counts(ann: Client) -> None:
    many_tasks(3, Status.FAILED, name="shop.charge")
    address, asked = _all(ann, "replay", "deadletter")
    assert "This changes 3 rows" in text(asked)
    assert "3 × EXHAUSTED shop.charge" in text(asked)
    assert _statuses() == {"FAILED": 3}
    DeadLetter.objects.unguarded().filter(pk=DeadLetter.objects.first().pk).update(open_task=None)  # type: ignore[union-attr]
    done = confirmed(ann, address, asked)
    assert said(done) == [
        "Replayed 2 tasks. 1 row has changed in the meantime and was left unchanged."
    ]


def test_one_task_is_run_again_from_its_page_after_the_question(ann: Client) -> None:
    task = a_task(Status.FAILED)
    asked = act(ann, "replay", task, confirm=False, durable_from_page="1")
    assert "This changes 1 row" in text(asked)
    assert confirmed(ann, list_of("task"), asked)["Location"] == page_of(task)


def test_a_resume_of_several_schedules_asks(ann: Client) -> None:
    rows = [a_schedule(f"s{number}") for number in range(2)]
    for row in rows:
        row.pause("x")
    assert "This changes 2 rows . It fires again from now on." in text(
        act(ann, "resume", *rows, confirm=False)
    )
    assert RecurringTask.objects.paused().count() == 2

"""A confirmed action changes exactly the objects that the confirmation page showed."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from django_durable_tasks.admin import actions
from django_durable_tasks.choices import Status
from django_durable_tasks.models import DeadLetter, RecurringTask, Task
from django_durable_tasks.operations import OPERATIONS
from tests.database.admin.site import act, confirmed, list_of, messages_of, operator, page_of, text
from tests.database.recurring.schedules import a_schedule
from tests.factories import a_task, many_tasks
from tests.repetitions import repetitions

pytestmark = pytest.mark.django_db


def _all(
    client: Client, action: str, model: str = "task", query: str = "", **fields: str
) -> tuple[str, Any]:
    """Select the whole list and run an action on it. Returns the URL and the confirmation page."""
    some = {"task": Task, "deadletter": DeadLetter, "recurringtask": RecurringTask}[model]
    first: Any = some._default_manager.first()
    address = list_of(model) + query
    data = {"action": action, "select_across": "1", "_selected_action": [str(first.pk)], **fields}
    return address, client.post(address, data)


def _statuses() -> dict[str, int]:
    found = list(Task.objects.values_list("status", flat=True))
    return {status: found.count(status) for status in sorted(set(found))}


def test_a_task_that_does_not_match_the_list_or_does_only_later_is_left_unchanged(
    ann: Client,
) -> None:
    a_task(queue="other")
    many_tasks(3, queue="mail")
    address, asked = _all(ann, "cancel", query="?queue=mail")
    assert "This changes 3 rows" in text(asked)
    a_task(queue="mail")
    assert messages_of(confirmed(ann, address, asked)) == ["Cancelled 3 tasks."]
    assert _statuses() == {"CANCELLED": 3, "PENDING": 2}


def test_of_more_tasks_than_one_action_handles_those_shown_are_changed(
    ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "AT_MOST", 2)
    many_tasks(3)
    address, asked = _all(ann, "cancel")
    shown = set(asked.context["shown"].values_list("pk", flat=True))
    many_tasks(2)
    confirmed(ann, address, asked)
    assert set(Task.objects.filter(status=Status.CANCELLED).values_list("pk", flat=True)) == shown


def test_tasks_that_changed_their_status_meanwhile_are_reported(ann: Client) -> None:
    rows = many_tasks(3)
    asked = act(ann, "cancel", *rows, confirm=False)
    Task.objects.unguarded().filter(pk=rows[0].pk).update(status=Status.SUCCESS, due_at=None)
    done = confirmed(ann, list_of("task"), asked)
    assert messages_of(done) == [
        "Cancelled 2 tasks. 1 row has changed in the meantime and was left unchanged."
    ]


def test_a_thousand_tasks_fit_into_one_confirmation(ann: Client) -> None:
    many_tasks(actions.AT_MOST)
    address, asked = _all(ann, "cancel")
    assert messages_of(confirmed(ann, address, asked)) == ["Cancelled 1000 tasks."]


@pytest.mark.parametrize("rows", ["", "forged"])
def test_a_confirmation_with_forged_ids_asks_again(ann: Client, rows: str) -> None:
    task = a_task()
    asked = act(ann, "cancel", task, confirm=False, durable_confirmed="1", durable_rows=rows)
    assert "This changes 1 row" in text(asked)
    assert Task.objects.get().status == Status.PENDING


def test_the_confirmation_of_one_action_does_not_confirm_another(ann: Client) -> None:
    task = a_task(Status.FAILED)
    asked = act(ann, "replay", task, confirm=False)
    again = confirmed(ann, list_of("task"), asked, action="force_complete", reason="x")
    assert "This changes 1 row" in text(again)
    assert confirmed(operator("bert"), list_of("task"), asked).status_code == 200
    assert Task.objects.get().status == Status.FAILED


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    ("model", "action"),
    [
        *(("task", name) for name in ("replay", "cancel", "force_complete")),
        *(("deadletter", name) for name in ("replay", "discard")),
    ],
)
def test_a_confirmation_names_one_object_or_several(
    ann: Client, model: str, action: str, number: int
) -> None:
    status = Status.PENDING if action == "cancel" else Status.FAILED
    tasks = many_tasks(number, status, name="shop.charge")
    rows = tasks if model == "task" else list(DeadLetter.objects.all())
    operation = OPERATIONS[f"{'tasks' if model == 'task' else 'dead_letters'}.{action}"]
    asked = text(act(ann, action, *rows, confirm=False))
    title = operation.title_of_one if number == 1 else operation.title
    assert f"{title} " in asked
    assert asked.count("shop.charge") >= number
    if number == 1:
        titles = [str(one["title"]) for one in ann.get(page_of(rows[0])).context["buttons"]]
        assert f"{operation.title_of_one}…" in titles
        assert "shop.charge" in text(ann.get(page_of(rows[0])))


@given(alone=st.integers(0, 5), left_out=st.integers(0, 5))
@examples(
    max_examples=repetitions(10),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_number_of_rows_at_which_counting_stopped_is_marked(
    ann: Client, monkeypatch: pytest.MonkeyPatch, alone: int, left_out: int
) -> None:
    monkeypatch.setattr(actions, "AT_MOST", 3)
    Task.objects.unguarded().delete()
    many_tasks(1, Status.EXPIRED)
    many_tasks(alone, Status.SUCCESS)
    many_tasks(left_out, Status.CANCELLED)
    address, asked = _all(ann, "replay")

    def shown(number: int) -> str:
        return f"{number}" if number <= 3 else "3+"

    for page in (text(asked), messages_of(confirmed(ann, address, asked))[-1]):
        rows = f"{shown(alone)} row{'s' if alone != 1 else ''}"
        # A page signs plain numbers, so that one at the bound may be marked too.
        said = (f"The status of {rows} ", f"The status of {rows.replace('3 ', '3+ ')} ")
        assert any(one in page for one in said) == bool(alone)
        cancelled = (f"{shown(left_out)} CANCELLED", f"{shown(left_out)}+ CANCELLED")
        assert any(one in page for one in cancelled) == bool(left_out)


# Confirmation of replays --------------------------------------------------------------------------


def test_replaying_a_whole_list_asks_with_counts_and_leaves_cancelled_tasks_out(
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
    assert messages_of(done) == [
        ("Replayed 2 tasks. 3 CANCELLED tasks are left out: select them one by one to replay them.")
    ]
    assert _statuses() == {"CANCELLED": 3, "PENDING": 2}


def test_cancelled_tasks_that_are_selected_individually_are_replayed(ann: Client) -> None:
    rows = many_tasks(2, Status.CANCELLED)
    asked = act(ann, "replay", *rows, confirm=False)
    assert "2 × CANCELLED" in text(asked)
    assert messages_of(confirmed(ann, list_of("task"), asked)) == ["Replayed 2 tasks."]


@pytest.mark.parametrize("across", ["0", "1"])
def test_a_task_that_is_cancelled_after_the_confirmation_page_was_shown_stays_cancelled(
    ann: Client, across: str
) -> None:
    rows = many_tasks(2, Status.FAILED)
    asked = act(ann, "replay", *rows, confirm=False, select_across=across)
    Task.objects.unguarded().filter(pk=rows[0].pk).update(status=Status.CANCELLED)
    done = confirmed(ann, list_of("task"), asked)
    assert messages_of(done) == [
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
    assert messages_of(done) == [
        "Replayed 2 tasks. 1 row has changed in the meantime and was left unchanged."
    ]


def test_a_single_task_is_replayed_from_its_page_after_confirmation(ann: Client) -> None:
    task = a_task(Status.FAILED)
    asked = act(ann, "replay", task, confirm=False, durable_from_page="1")
    assert "This changes 1 row" in text(asked)
    assert confirmed(ann, list_of("task"), asked)["Location"] == page_of(task)


def test_resuming_several_schedules_asks_for_confirmation(ann: Client) -> None:
    rows = [a_schedule(f"s{number}") for number in range(2)]
    for row in rows:
        row.pause("x")
    assert "This changes 2 rows . It fires again from now on." in text(
        act(ann, "resume", *rows, confirm=False)
    )
    assert RecurringTask.objects.paused().count() == 2

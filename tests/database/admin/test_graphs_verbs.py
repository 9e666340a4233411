"""What an operator says to a graph is shown row by row before it is done, is done once, and is remembered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import strip_tags

from django_durable_tasks import Workflow
from django_durable_tasks.admin import actions, previews
from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from django_durable_tasks.rules.states import Status
from tests.database.admin.site import act, operator, page_of, said, text
from tests.database.admin.test_graphs import a_diamond
from tests.database.graphs.playing import begin, fail, of, recount, stands, succeed, tell
from tests.factories import a_task
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db

STEPS = ("top", "left", "right", "bottom")


@pytest.fixture
def ann() -> Client:
    """Give the browser of somebody who may do everything."""
    return operator("ann")


def address(row: Any, name: str) -> str:
    """Return the address of the page of a verb."""
    return reverse(f"admin:django_durable_tasks_graph_{'run' if isinstance(row, WorkflowRun) else 'task'}",
                   args=[row.pk, name])  # fmt: skip


def do(client: Client, row: Any, name: str, mode: str = "", **given: str) -> Any:
    """Say a verb as its page does: what was shown is sent with it."""
    here = address(row, name) + (f"?mode={mode}" if mode else "")
    seen = (client.post(here).context or {}).get("seen", "")
    return client.post(here, {"_do": "1", "seen": seen, "reason": "", **given})


def choose(client: Client, name: str, *tasks: Task, **given: str) -> Any:
    """Choose tasks, and ask for a verb of them."""
    here = reverse("admin:django_durable_tasks_graph_chosen", args=[name])
    return client.post(here, {"_selected_action": [str(task.pk) for task in tasks], **given})


def moves(answer: Any) -> set[str]:
    """Return the rows of a preview or of an answer, as a person reads them."""
    return {" ".join(strip_tags(f"{line['link']} {line['before']} {line['after']}").split())
            for line in answer.context["lines"]}  # fmt: skip


def of_all(run: WorkflowRun) -> list[str]:
    """Return where the four tasks stand."""
    return stands(*(of(run, step) for step in STEPS))


def a_failed_diamond() -> WorkflowRun:
    """Return a diamond whose left failed: its bottom was skipped."""
    run = a_diamond()
    succeed(of(run, "top"))
    tell()
    succeed(of(run, "right"))
    fail(of(run, "left"))
    tell()
    return run


# Runs -------------------------------------------------------------------------------------------------------------


def test_a_cancel_shows_exactly_what_it_does_and_then_does_it(ann: Client) -> None:
    run = a_diamond()
    begin(of(run, "top"))
    before = of_all(run)
    looked = ann.post(address(run, "cancel"))
    expected = {f"{step} BLOCKED CANCELLED" for step in STEPS[1:]} | {"top RUNNING asked to stop"}
    assert moves(looked) == expected
    assert "This changes 4 rows" in text(looked)
    assert "Nothing was written yet." in text(looked)
    assert of_all(run) == before
    assert not WorkflowRun.objects.get(pk=run.pk).cancel_requested_at
    done = do(ann, run, "cancel", reason="wrong tariff")
    assert moves(done) == expected
    assert "Done. These are the 4 rows that changed." in text(done)
    assert "wrong tariff" in text(done)
    assert "The rows had moved" not in text(done)
    assert of_all(run) == ["RUNNING", "CANCELLED", "CANCELLED", "CANCELLED"]
    assert of(run, "top").cancel_requested_at is not None
    assert "It was asked to stop" in text(ann.get(page_of(run)))


def test_who_when_and_why_are_remembered_with_the_run(ann: Client) -> None:
    run = a_diamond()
    do(ann, run, "cancel", reason="wrong tariff")
    entry = LogEntry.objects.get()
    assert (entry.user.get_username(), entry.object_id) == ("ann", str(run.pk))
    assert entry.change_message.startswith(f"Cancel the workflow: diamond {str(run.pk)[-8:]}. 4 rows changed: ")
    assert "3 BLOCKED → CANCELLED" in entry.change_message
    assert entry.change_message.endswith("wrong tariff")
    history = reverse("admin:django_durable_tasks_workflowrun_history", args=[run.pk])
    assert "wrong tariff" in text(ann.get(history))


def test_a_second_cancel_finds_nothing_to_do(ann: Client) -> None:
    run = a_diamond()
    do(ann, run, "cancel")
    assert "No row would change: there is nothing to do." in text(ann.post(address(run, "cancel")))
    assert "Nothing was to be done: no row changed." in text(do(ann, run, "cancel"))
    assert LogEntry.objects.count() == 1


def test_an_answer_says_when_the_rows_moved_since_they_were_shown(ann: Client) -> None:
    run = a_diamond()
    seen = ann.post(address(run, "cancel")).context["seen"]
    succeed(of(run, "top"))
    tell()
    done = ann.post(address(run, "cancel"), {"_do": "1", "seen": seen, "reason": ""})
    assert "The rows had moved since you looked" in text(done)
    assert "top" not in " ".join(moves(done))


@pytest.mark.parametrize(
    ("mode", "back"),
    [("FAILED", {"left", "bottom"}), ("FAILED_AND_DOWNSTREAM", {"left", "bottom"}), ("ALL", set(STEPS))],
)
def test_a_workflow_is_retried_in_three_ways(ann: Client, mode: str, back: set[str]) -> None:
    run = a_failed_diamond()
    before = of_all(run)
    looked = ann.post(address(run, "retry") + f"?mode={mode}")
    assert [tab["here"] for tab in looked.context["deed"].tabs].count(True) == 1
    assert {move.split()[0] for move in moves(looked)} == back
    assert of_all(run) == before
    done = do(ann, run, "retry", mode, reason="mended")
    assert moves(done) == moves(looked)
    assert {step for step in STEPS if stands(of(run, step)) != [before[STEPS.index(step)]]} == back
    tell()
    assert not recount()


def test_a_retry_without_a_way_is_the_gentlest_one(ann: Client) -> None:
    run = a_failed_diamond()
    shown = [ann.post(address(run, "retry") + ask).context["deed"].tabs[0]["here"] for ask in ("", "?mode=nonsense")]
    assert shown == [True, True]


def test_a_verb_that_is_refused_says_why_and_changes_nothing(ann: Client) -> None:
    run = a_diamond()
    told = text(ann.post(address(of(run, "top"), "approve")))
    assert "waits for no APPROVAL" in told
    assert "Yes: Approve" not in told
    answer = do(ann, of(run, "top"), "approve")
    assert "waits for no APPROVAL" in text(answer)
    assert "Done." not in text(answer)
    assert not LogEntry.objects.exists()


def test_a_page_offers_only_the_verbs_that_fit(ann: Client) -> None:
    def offered(row: Any) -> set[str]:
        titles = (button["title"] for button in ann.get(page_of(row)).context["buttons"])
        return {str(title) for title in titles}

    run = a_diamond()
    assert offered(run) == {"Cancel the workflow…"}
    waiting = offered(of(run, "bottom"))
    assert {"Hold…", "Force-run…", "Add a dependency…"} <= waiting
    assert not {"Approve…", "End the hold…", "Retry from here…", "Cancel this branch…"} & waiting
    assert "Cancel this branch…" in offered(of(run, "top"))
    failed = a_failed_diamond()
    assert offered(failed) == {"Retry the workflow…"}
    assert "Retry from here…" in offered(of(failed, "left"))
    assert not {"Hold…", "Force-run…", "Retry from here…"} & offered(a_task(Status.RUNNING))


# One task ---------------------------------------------------------------------------------------------------------


def a_gated() -> WorkflowRun:
    """Start a workflow whose first task waits for an approval."""
    wf = Workflow("gated")
    pay = wf.add(noop, approval="ask the controller", step="pay")
    wf.add(noop, after=pay, step="ship")
    return wf.start()


def test_a_gate_is_approved_with_a_note(ann: Client) -> None:
    run = a_gated()
    task = of(run, "pay")
    titles = {str(button["title"]) for button in ann.get(page_of(task)).context["buttons"]}
    assert {"Approve…", "Reject…", "Hold…"} <= titles
    looked = ann.post(address(task, "approve"))
    assert [move.split()[:2] for move in moves(looked)] == [["pay", "BLOCKED"]]
    assert stands(task) == ["BLOCKED"]
    do(ann, task, "approve", reason="budget is there")
    assert stands(task) in (["PENDING"], ["QUEUED"])
    gate = TaskDependency.objects.get(gate="APPROVAL")
    assert (gate.outcome, gate.resolved_by, gate.note) == ("APPROVED", "ann", "budget is there")
    assert "opened by ann: budget is there" in text(ann.get(page_of(task)))
    assert LogEntry.objects.get().object_id == str(task.pk)


def test_a_rejection_needs_a_note_and_ends_what_comes_after(ann: Client) -> None:
    run = a_gated()
    task = of(run, "pay")
    assert "This field is required." in text(do(ann, task, "reject", reason=" "))
    assert stands(task) == ["BLOCKED"]
    done = do(ann, task, "reject", reason="no budget")
    assert "pay BLOCKED CANCELLED" in moves(done)
    assert stands(task, of(run, "ship")) == ["CANCELLED", "SKIPPED"]


def test_a_task_is_held_and_let_go(ann: Client) -> None:
    task = a_task()
    do(ann, task, "hold", reason="wait for the price list")
    assert stands(task) == ["BLOCKED"]
    page = ann.get(page_of(task))
    assert "It is on hold, asked for by ann: wait for the price list" in text(page)
    assert "End the hold…" in {str(button["title"]) for button in page.context["buttons"]}
    do(ann, task, "unhold")
    assert stands(task)[0] in ("PENDING", "QUEUED")


def test_a_branch_is_cancelled_and_retried_from_its_head(ann: Client) -> None:
    run = a_diamond()
    succeed(of(run, "top"))
    tell()
    left = of(run, "left")
    assert {move.split()[0] for move in moves(ann.post(address(left, "cancel-branch")))} == {"left", "bottom"}
    do(ann, left, "cancel-branch")
    assert stands(left, of(run, "bottom"), of(run, "right"))[:2] == ["CANCELLED", "CANCELLED"]
    tell()
    do(ann, left, "retry-from")
    assert stands(left)[0] in ("PENDING", "QUEUED")
    assert stands(of(run, "bottom")) == ["BLOCKED"]
    tell()
    assert not recount()


# Chosen tasks -----------------------------------------------------------------------------------------------------


def test_chosen_tasks_of_a_run_are_forced_after_they_were_shown(ann: Client) -> None:
    run = a_failed_diamond()
    bottom = of(run, "bottom")
    assert "Force-run" in text(ann.get(page_of(run)))
    looked = choose(ann, "force-run", bottom, run=str(run.pk))
    assert [move.split()[:2] for move in moves(looked)] == [["bottom", "SKIPPED"]]
    assert stands(bottom) == ["SKIPPED"]
    hidden = dict(looked.context["deed"].hidden)
    assert hidden == {"_selected_action": str(bottom.pk), "run": str(run.pk)}
    assert "This field is required." in text(choose(ann, "force-run", bottom, _do="1", reason=""))
    assert stands(bottom) == ["SKIPPED"]
    done = choose(ann, "force-run", bottom, _do="1", reason="the left side does not matter", run=str(run.pk))
    assert done.context["deed"].back == page_of(run)
    assert stands(bottom)[0] in ("PENDING", "QUEUED")
    assert LogEntry.objects.get().object_id == str(bottom.pk)


def test_chosen_tasks_are_called_done(ann: Client) -> None:
    run = a_failed_diamond()
    left = of(run, "left")
    looked = moves(choose(ann, "force-complete", left))
    assert "left FAILED SUCCESS" in looked
    assert any(move.startswith("bottom SKIPPED ") for move in looked)
    choose(ann, "force-complete", left, _do="1", reason="done by hand")
    assert stands(left) == ["SUCCESS"]
    tell()
    assert not recount()


def test_a_verb_for_chosen_tasks_without_any_asks_for_them(ann: Client) -> None:
    run = a_diamond()
    for given in ({}, {"run": str(run.pk)}, {"run": "nonsense"}):
        answer = choose(ann, "force-run", **given)
        assert answer.status_code == 302
        assert said(answer)[-1] == "Choose the tasks first."
    assert choose(ann, "force-run", run=str(run.pk))["Location"] == page_of(run)
    here = reverse("admin:django_durable_tasks_graph_chosen", args=["force-run"])
    assert ann.post(here, {"_selected_action": ["nonsense"]}).status_code == 302


def test_tasks_are_forced_from_their_list(ann: Client) -> None:
    run = a_diamond()
    looked = act(ann, "force_run", of(run, "left"), confirm=False)
    assert [move.split()[:2] for move in moves(looked)] == [["left", "BLOCKED"]]
    assert stands(of(run, "left")) == ["BLOCKED"]


# Many rows --------------------------------------------------------------------------------------------------------


def test_more_rows_than_a_page_shows_are_counted_and_handed_out_as_a_file(
    ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(previews, "SHOWN", 2)
    run = a_diamond()
    looked = ann.post(address(run, "cancel"))
    assert (looked.context["number"], len(looked.context["lines"]), looked.context["unshown"]) == (4, 2, 2)
    assert "and 2 more" in text(looked)
    assert sum(entry["number"] for entry in looked.context["sums"]) == 4
    answer = ann.post(address(run, "cancel"), {"_file": "1"})
    assert answer["Content-Disposition"] == 'attachment; filename="changes.json"'
    rows = json.loads(answer.content)["changes"]
    assert {row["step"] for row in rows} == set(STEPS)
    assert {row["after"] for row in rows} == {"CANCELLED"}
    assert "CANCELLED" not in of_all(run)


def test_no_more_tasks_are_forced_at_once_than_the_bound(ann: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "AT_MOST", 1)
    run = a_diamond()
    both = of(run, "left"), of(run, "right")
    for looked in (choose(ann, "force-run", *both), act(ann, "force_run", *both, confirm=False)):
        assert looked.context["number"] == 1
        assert "More were chosen: do it again for the rest." in text(looked)
    assert "More were chosen" not in text(choose(ann, "force-run", both[0]))


def test_all_chosen_tasks_are_carried_by_one_field_of_the_form(ann: Client) -> None:
    run = a_diamond()
    both = of(run, "left"), of(run, "right")
    looked = choose(ann, "force-run", *both)
    assert looked.content.decode().count('name="_selected_action"') == 1
    carried = dict(looked.context["deed"].hidden)
    here = reverse("admin:django_durable_tasks_graph_chosen", args=["force-run"])
    done = ann.post(here, {**carried, "_do": "1", "reason": "rates are known", "seen": looked.context["seen"]})
    assert {move.split()[0] for move in moves(done)} == {"left", "right"}


def test_a_step_that_was_skipped_because_of_a_failure_is_not_offered_to_run_again_alone(ann: Client) -> None:
    run = a_failed_diamond()
    offered = {step: {button.get("action") for button in ann.get(page_of(of(run, step))).context["buttons"]}
               for step in ("left", "bottom")}  # fmt: skip
    assert ("retry" in offered["left"], "retry" in offered["bottom"]) == (True, False)


def test_a_verb_or_row_that_does_not_exist_is_not_found(ann: Client) -> None:
    run = a_diamond()
    assert ann.post(address(run, "explode")).status_code == 404
    assert ann.post(address(of(run, "top"), "explode")).status_code == 404
    for kind, other in (("run", of(run, "top")), ("task", run)):
        here = reverse(
            f"admin:django_durable_tasks_graph_{kind}", args=[other.pk, "cancel" if kind == "run" else "hold"]
        )
        assert ann.get(here).status_code == 404


# Opening an address ---------------------------------------------------------------------------------------------------

WRITES = ("UPDATE", "INSERT", "DELETE", "SAVEPOINT", "LOCK")


def _opened(client: Client, here: str) -> tuple[Any, list[str]]:
    with CaptureQueriesContext(connection) as captured:
        page = client.get(here)
    said_to_it = [str(query["sql"]).upper() for query in captured]
    return page, [sql for sql in said_to_it if sql.startswith(WRITES) or "FOR UPDATE" in sql or "FOR NO KEY" in sql]


@pytest.mark.parametrize("mode", ["", "FAILED", "FAILED_AND_DOWNSTREAM", "ALL"])
def test_opening_the_page_of_a_verb_writes_and_locks_nothing(ann: Client, mode: str) -> None:
    run = a_failed_diamond()
    ann.get(address(run, "retry"))  # the session is read once
    addresses = [f"{address(run, 'retry')}?mode={mode}", address(run, "cancel"), address(of(run, "left"), "retry-from"),
                 address(of(run, "left"), "force-run")]  # fmt: skip
    for here in addresses:
        page, writes = _opened(ann, here)
        assert writes == [], here
        assert "Show what it would change" in page.content.decode()
        assert "lines" not in page.context
        assert "_do" not in page.content.decode()

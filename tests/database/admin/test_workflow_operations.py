"""An operation on a graph is previewed task by task, performed once, and recorded."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from django_durable_tasks.choices import Status
from django_durable_tasks.models import TaskDependency, WorkflowRun
from tests.database.admin.site import page_of, text
from tests.database.admin.workflow_actions import (
    STEPS,
    a_failed_diamond,
    a_workflow_with_approval,
    address,
    changes,
    do,
    statuses_of,
)
from tests.database.admin.workflow_runs import a_diamond
from tests.database.dependencies.worker_and_leader import (
    begin,
    of,
    recount,
    resolve_all,
    statuses,
    succeed,
)
from tests.factories import a_task

pytestmark = pytest.mark.django_db


def test_a_cancel_preview_shows_exactly_what_the_cancel_does(ann: Client) -> None:
    run = a_diamond()
    begin(of(run, "top"))
    before = statuses_of(run)
    looked = ann.post(address(run, "cancel"))
    expected = {f"{step} BLOCKED CANCELLED" for step in STEPS[1:]} | {"top RUNNING stop requested"}
    assert changes(looked) == expected
    assert "This changes 4 rows" in text(looked)
    assert "Nothing is changed yet." in text(looked)
    assert statuses_of(run) == before
    assert not WorkflowRun.objects.get(pk=run.pk).cancel_requested_at
    done = do(ann, run, "cancel", reason="wrong tariff")
    assert changes(done) == expected
    assert "Done. These are the 4 rows that changed." in text(done)
    assert "wrong tariff" in text(done)
    assert "The rows had moved" not in text(done)
    assert statuses_of(run) == ["RUNNING", "CANCELLED", "CANCELLED", "CANCELLED"]
    assert of(run, "top").cancel_requested_at is not None
    assert "Its cancellation was requested" in text(ann.get(page_of(run)))


def test_user_time_and_reason_are_kept_with_the_run(ann: Client) -> None:
    run = a_diamond()
    do(ann, run, "cancel", reason="wrong tariff")
    entry = LogEntry.objects.get()
    assert (entry.user.get_username(), entry.object_id) == ("ann", str(run.pk))
    assert entry.change_message.startswith(
        f"Cancel the workflow: diamond {str(run.pk)[-8:]}. 4 rows changed: "
    )
    assert "3 BLOCKED → CANCELLED" in entry.change_message
    assert entry.change_message.endswith("wrong tariff")
    history = reverse("admin:django_durable_tasks_workflowrun_history", args=[run.pk])
    assert "wrong tariff" in text(ann.get(history))


def test_a_second_cancel_finds_nothing_to_do(ann: Client) -> None:
    run = a_diamond()
    do(ann, run, "cancel")
    assert "No row would change." in text(ann.post(address(run, "cancel")))
    assert "Nothing was changed." in text(do(ann, run, "cancel"))
    assert LogEntry.objects.count() == 1


def test_the_result_says_if_tasks_changed_since_the_preview(ann: Client) -> None:
    run = a_diamond()
    seen = ann.post(address(run, "cancel")).context["seen"]
    succeed(of(run, "top"))
    resolve_all()
    done = ann.post(address(run, "cancel"), {"_do": "1", "seen": seen, "reason": ""})
    assert "The rows have changed since they were shown" in text(done)
    assert "top" not in " ".join(changes(done))


@pytest.mark.parametrize(
    ("mode", "back"),
    [
        ("FAILED", {"left", "bottom"}),
        ("FAILED_AND_DOWNSTREAM", {"left", "bottom"}),
        ("ALL", set(STEPS)),
    ],
)
def test_a_workflow_is_retried_in_three_modes(ann: Client, mode: str, back: set[str]) -> None:
    run = a_failed_diamond()
    before = statuses_of(run)
    looked = ann.post(address(run, "replay") + f"?mode={mode}")
    assert [tab["here"] for tab in looked.context["pending"].tabs].count(True) == 1
    assert {move.split()[0] for move in changes(looked)} == back
    assert statuses_of(run) == before
    done = do(ann, run, "replay", mode, reason="mended")
    assert changes(done) == changes(looked)
    assert {
        step for step in STEPS if statuses(of(run, step)) != [before[STEPS.index(step)]]
    } == back
    resolve_all()
    assert not recount()


def test_a_retry_without_a_mode_uses_the_default_one(ann: Client) -> None:
    run = a_failed_diamond()
    shown = [
        ann.post(address(run, "replay") + ask).context["pending"].tabs[0]["here"]
        for ask in ("", "?mode=nonsense")
    ]
    assert shown == [True, True]


def test_a_refused_operation_shows_the_reason_and_changes_nothing(ann: Client) -> None:
    run = a_diamond()
    content = text(ann.post(address(of(run, "top"), "approve")))
    assert "waits for no APPROVAL" in content
    assert "Yes: Approve" not in content
    answer = do(ann, of(run, "top"), "approve")
    assert "waits for no APPROVAL" in text(answer)
    assert "Done." not in text(answer)
    assert not LogEntry.objects.exists()


def test_a_page_offers_only_operations_that_apply(ann: Client) -> None:
    def offered(row: Any) -> set[str]:
        titles = (button["title"] for button in ann.get(page_of(row)).context["buttons"])
        return {str(title) for title in titles}

    run = a_diamond()
    assert offered(run) == {"Cancel the workflow…"}
    waiting = offered(of(run, "bottom"))
    assert {"Hold…", "Force-run tasks…", "Add a dependency…"} <= waiting
    assert not {"Approve…", "End the hold…", "Replay from here…", "Cancel this branch…"} & waiting
    assert "Cancel this branch…" in offered(of(run, "top"))
    failed = a_failed_diamond()
    assert offered(failed) == {"Replay the workflow…"}
    assert "Replay from here…" in offered(of(failed, "left"))
    assert not {"Hold…", "Force-run tasks…", "Replay from here…"} & offered(a_task(Status.RUNNING))


def test_a_gate_is_approved_with_a_comment(ann: Client) -> None:
    run = a_workflow_with_approval()
    task = of(run, "pay")
    titles = {str(button["title"]) for button in ann.get(page_of(task)).context["buttons"]}
    assert {"Approve…", "Reject…", "Hold…"} <= titles
    looked = ann.post(address(task, "approve"))
    assert [move.split()[:2] for move in changes(looked)] == [["pay", "BLOCKED"]]
    assert statuses(task) == ["BLOCKED"]
    do(ann, task, "approve", reason="budget is there")
    assert statuses(task) in (["PENDING"], ["QUEUED"])
    gate = TaskDependency.objects.get(gate="APPROVAL")
    assert (gate.outcome, gate.resolved_by, gate.comment) == ("APPROVED", "ann", "budget is there")
    assert "opened by ann: budget is there" in text(ann.get(page_of(task)))
    assert LogEntry.objects.get().object_id == str(task.pk)


def test_a_rejection_needs_a_comment_and_ends_downstream_tasks(ann: Client) -> None:
    run = a_workflow_with_approval()
    task = of(run, "pay")
    assert "This field is required." in text(do(ann, task, "reject", reason=" "))
    assert statuses(task) == ["BLOCKED"]
    done = do(ann, task, "reject", reason="no budget")
    assert "pay BLOCKED CANCELLED" in changes(done)
    assert statuses(task, of(run, "ship")) == ["CANCELLED", "SKIPPED"]

"""Operations on selected tasks of workflows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_durable_tasks.admin import actions
from tests.database.admin.site import act, messages_of, page_of, text
from tests.database.admin.workflow_actions import (
    STEPS,
    a_failed_diamond,
    address,
    changes,
    choose,
    statuses_of,
)
from tests.database.admin.workflow_runs import a_diamond
from tests.database.dependencies.worker_and_leader import of, recount, resolve_all, statuses

pytestmark = pytest.mark.django_db


def test_selected_tasks_of_a_run_are_force_run_after_confirmation(ann: Client) -> None:
    run = a_failed_diamond()
    bottom = of(run, "bottom")
    assert "Force-run" in text(ann.get(page_of(run)))
    looked = choose(ann, "force_run", bottom, run=str(run.pk))
    assert [move.split()[:2] for move in changes(looked)] == [["bottom", "SKIPPED"]]
    assert statuses(bottom) == ["SKIPPED"]
    hidden = dict(looked.context["pending"].hidden)
    assert hidden == {"_selected_action": str(bottom.pk), "run": str(run.pk)}
    assert "This field is required." in text(choose(ann, "force_run", bottom, _do="1", reason=""))
    assert statuses(bottom) == ["SKIPPED"]
    done = choose(
        ann, "force_run", bottom, _do="1", reason="the left side does not matter", run=str(run.pk)
    )
    assert done.context["pending"].back == page_of(run)
    assert statuses(bottom)[0] in ("PENDING", "QUEUED")
    assert LogEntry.objects.get().object_id == str(bottom.pk)


def test_selected_tasks_are_force_completed(ann: Client) -> None:
    run = a_failed_diamond()
    left = of(run, "left")
    looked = changes(choose(ann, "force_complete_in_graph", left))
    assert "left FAILED SUCCESS" in looked
    assert any(move.startswith("bottom SKIPPED ") for move in looked)
    choose(ann, "force_complete_in_graph", left, _do="1", reason="done by hand")
    assert statuses(left) == ["SUCCESS"]
    resolve_all()
    assert not recount()


def test_an_operation_on_selected_tasks_without_a_selection_asks_for_one(ann: Client) -> None:
    run = a_diamond()
    for given in ({}, {"run": str(run.pk)}, {"run": "nonsense"}):
        answer = choose(ann, "force_run", **given)
        assert answer.status_code == 302
        assert messages_of(answer)[-1] == "Select the tasks first."
    assert choose(ann, "force_run", run=str(run.pk))["Location"] == page_of(run)
    here = reverse("admin:django_durable_tasks_graph_chosen", args=["force_run"])
    assert ann.post(here, {"_selected_action": ["nonsense"]}).status_code == 302


def test_tasks_are_force_run_from_their_list(ann: Client) -> None:
    run = a_diamond()
    looked = act(ann, "force_run", of(run, "left"), confirm=False)
    assert [move.split()[:2] for move in changes(looked)] == [["left", "BLOCKED"]]
    assert statuses(of(run, "left")) == ["BLOCKED"]


def test_more_changes_than_a_page_shows_are_counted_and_downloadable(
    ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "SHOWN", 2)
    run = a_diamond()
    looked = ann.post(address(run, "cancel"))
    assert (looked.context["number"], len(looked.context["lines"]), looked.context["unshown"]) == (
        4,
        2,
        2,
    )
    assert "and 2 more" in text(looked)
    assert sum(entry["number"] for entry in looked.context["sums"]) == 4
    answer = ann.post(address(run, "cancel"), {"_file": "1"})
    assert answer["Content-Disposition"] == 'attachment; filename="changes.json"'
    rows = json.loads(answer.content)["changes"]
    assert {row["step"] for row in rows} == set(STEPS)
    assert {row["after"] for row in rows} == {"CANCELLED"}
    assert "CANCELLED" not in statuses_of(run)


def test_the_number_of_tasks_forced_at_once_is_bounded(
    ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "AT_MOST", 1)
    run = a_diamond()
    both = of(run, "left"), of(run, "right")
    for looked in (choose(ann, "force_run", *both), act(ann, "force_run", *both, confirm=False)):
        assert looked.context["number"] == 1
        assert "More tasks were selected: run the operation again for the rest." in text(looked)
    assert "More were chosen" not in text(choose(ann, "force_run", both[0]))


def test_all_selected_tasks_are_sent_in_one_form_field(ann: Client) -> None:
    run = a_diamond()
    both = of(run, "left"), of(run, "right")
    looked = choose(ann, "force_run", *both)
    assert looked.content.decode().count('name="_selected_action"') == 1
    carried = dict(looked.context["pending"].hidden)
    here = reverse("admin:django_durable_tasks_graph_chosen", args=["force_run"])
    done = ann.post(
        here, {**carried, "_do": "1", "reason": "rates are known", "seen": looked.context["seen"]}
    )
    assert {move.split()[0] for move in changes(done)} == {"left", "right"}


def test_a_step_skipped_because_of_a_failure_is_not_offered_to_run_alone(ann: Client) -> None:
    run = a_failed_diamond()
    offered = {
        step: {
            button.get("action") for button in ann.get(page_of(of(run, step))).context["buttons"]
        }
        for step in ("left", "bottom")
    }
    assert ("replay" in offered["left"], "replay" in offered["bottom"]) == (True, False)


WRITES = ("UPDATE", "INSERT", "DELETE", "SAVEPOINT", "LOCK")


def _opened(client: Client, here: str) -> tuple[Any, list[str]]:
    with CaptureQueriesContext(connection) as captured:
        page = client.get(here)
    said_to_it = [str(query["sql"]).upper() for query in captured]
    return page, [
        sql
        for sql in said_to_it
        if sql.startswith(WRITES) or "FOR UPDATE" in sql or "FOR NO KEY" in sql
    ]


@pytest.mark.parametrize("mode", ["", "FAILED", "FAILED_AND_DOWNSTREAM", "ALL"])
def test_opening_the_page_of_an_operation_writes_and_locks_nothing(ann: Client, mode: str) -> None:
    run = a_failed_diamond()
    ann.get(address(run, "replay"))  # the session is read once
    addresses = [
        f"{address(run, 'replay')}?mode={mode}",
        address(run, "cancel"),
        address(of(run, "left"), "replay_from"),
        address(of(run, "left"), "force_run"),
    ]
    for here in addresses:
        page, writes = _opened(ann, here)
        assert writes == [], here
        assert "Show the changes" in page.content.decode()
        assert "lines" not in page.context
        assert "_do" not in page.content.decode()

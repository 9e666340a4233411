"""``durable graph, force-run, approve, hold, depend``, ``cancel`` and ``retry`` of whole workflows,
and their lists.
"""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest

from django_durable_tasks import Workflow
from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from django_durable_tasks.workflows import diagrams
from django_durable_tasks.workflows.diagrams import FILE_FORMATS
from tests.database.commands.durable_command import durable, json_of
from tests.database.dependencies.worker_and_leader import (
    begin,
    fail,
    of,
    recount,
    resolve_all,
    statuses,
    succeed,
)
from tests.factories import a_task
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db
ME = getpass.getuser()
WAITS = ("PENDING", "QUEUED")


def _chain(*steps: str, **gates: str) -> WorkflowRun:
    wf, before = Workflow("nightly"), None
    for step in steps:
        before = wf.add(noop, step=step, after=before, **(gates if step == steps[-1] else {}))
    return wf.start(key="nightly-1")


def _failed() -> WorkflowRun:
    run = _chain("first", "second", "third")
    succeed(of(run, "first"))
    resolve_all()
    fail(of(run, "second"))
    resolve_all()
    return run


def _dump() -> list[object]:
    return [
        list(table.objects.order_by("pk").values()) for table in (Task, TaskDependency, WorkflowRun)
    ]


# Diagrams -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FILE_FORMATS)
def test_a_run_and_a_task_are_drawn_in_every_format(kind: str) -> None:
    run = _failed()
    for key in (run.pk, of(run, "second").pk):
        answer = durable("graph", key, "--format", kind)
        assert answer.code == 0, answer
        assert all(step in answer.out for step in ("first", "second", "third"))


def test_a_diagram_is_text_by_default_and_is_written_to_a_file_on_request(tmp_path: Path) -> None:
    run, target = _failed(), tmp_path / "run.svg"
    assert durable("graph", run.pk).out == durable("graph", run.pk, "--format", "text").out
    answer = durable("graph", run.pk, "--format", "svg", "--output", target)
    assert (answer.code, answer.out) == (0, "")
    assert "3 tasks, 2 dependencies" in answer.err
    assert target.read_text().startswith("<svg")
    refused = durable("graph", run.pk, "--output", tmp_path / "nowhere" / "run.txt")
    assert refused.code == 2
    assert "cannot be written" in refused.err


def test_a_diagram_shows_sub_workflows_as_groups_and_closed_gates_as_reasons() -> None:
    inner = Workflow("in/ner")
    inner.add(noop, step="leaf", approval="four eyes")
    outer = Workflow("outer")
    outer.add_workflow(inner, step="inner")
    run = outer.start()
    nodes = {
        node["label"]: node
        for node in json.loads(durable("graph", run.pk, "--format", "json").out)["nodes"]
    }
    assert (nodes["leaf"]["group"], nodes["inner"]["group"]) == ("in-ner", "")
    assert nodes["leaf"]["reason"] == "waits for APPROVAL: four eyes"


def test_of_a_large_graph_the_nearest_tasks_are_drawn() -> None:
    run = _chain("first", "second", "third", "fourth")
    drawn = json.loads(durable("graph", of(run, "first").pk, "--limit", 2, "--format", "json").out)
    assert {node["label"] for node in drawn["nodes"]} == {"first", "second"}


def test_without_the_app_of_diagrams_a_drawing_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(diagrams.FORMATS, "svg")
    answer = durable("graph", _chain("first", "second").pk, "--format", "svg")
    assert answer.code == 2
    assert "django_durable_tasks.contrib.diagrams" in answer.err


# Whole workflows ----------------------------------------------------------------------------------


def test_a_workflow_is_cancelled_after_dry_run_or_confirmation() -> None:
    run = _chain("first", "second", "third")
    begin(of(run, "first"))
    before = _dump()
    seen = json_of("cancel", "--workflow", run.pk, "--dry-run")
    assert {row["step"] for row in seen["would_change"]} == {"second", "third"}
    assert seen["would_request_stop"] == [str(of(run, "first").pk)]
    refused = durable("cancel", "--workflow", run.pk)
    assert refused.code == 2
    assert "cancel would change 3 rows: show them with --dry-run, confirm with --yes" in refused.err
    assert _dump() == before
    done = json_of("cancel", "--workflow", run.pk, "--yes", "--reason", "no use", "--by", "ann")
    assert done["changed"] == [
        {**row, "reason": "CANCELLED by ann: no use"} for row in seen["would_change"]
    ]
    assert done["stop_requested"] == seen["would_request_stop"]
    assert durable("cancel", "--workflow", run.pk, "--yes").code == 2


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ((), ["second", "third"]),
        (("--mode", "FAILED_AND_DOWNSTREAM"), ["second", "third"]),
        (("--mode", "ALL"), ["first", "second", "third"]),
    ],
)
def test_a_workflow_is_retried(words: tuple[str, ...], steps: list[str]) -> None:
    run = _failed()
    seen = json_of("replay", "--workflow", run.pk, "--dry-run", "--reason", "disk", *words)
    assert sorted(row["step"] for row in seen["would_change"]) == steps
    done = json_of("replay", "--workflow", run.pk, "--yes", "--reason", "disk", *words)
    assert done["changed"] == seen["would_change"]
    resolve_all()
    assert WorkflowRun.objects.get().status == "RUNNING"
    assert not recount()


# Single tasks -------------------------------------------------------------------------------------


def test_a_skipped_task_is_forced_to_run_and_others_are_left_unchanged() -> None:
    run, other = _failed(), a_task()
    seen = json_of("force-run", of(run, "third").pk, other.pk, "--dry-run")
    assert [(row["step"], row["before"], row["after"]) for row in seen["would_change"]] == [
        ("third", "SKIPPED", "PENDING")
    ]
    assert statuses(of(run, "third")) == ["SKIPPED"]
    done = json_of("force-run", of(run, "third").pk, other.pk, "--reason", "by mail")
    assert (done["forced"], done["left_alone"]) == (
        1,
        [{"id": str(other.pk), "why": "it is PENDING"}],
    )
    assert of(run, "third").reason == f"forced by {ME}: by mail"
    assert durable("force-run", other.pk).code == 2
    assert "Name the tasks by their ids" in durable("force-run").err


def test_a_dry_run_of_force_complete_shows_the_consequences() -> None:
    run = _failed()
    seen = json_of("force-complete", of(run, "second").pk, "--dry-run")
    assert {row["step"]: row["after"] for row in seen["would_change"]}["second"] == "SUCCESS"
    assert {row["step"] for row in seen["would_change"]} == {"second", "third"}
    done = json_of("force-complete", of(run, "second").pk)
    assert (done["completed"], done["changed"]) == (1, seen["would_change"])


def test_a_dependency_is_added_shown_refused_and_removed() -> None:
    run, row = _chain("first", "second"), a_task()
    seen = json_of(
        "depend", row.pk, "--on", of(run, "second").pk, "--type", "MUST_FINISH", "--dry-run"
    )
    assert not TaskDependency.objects.filter(task=row).exists()
    done = json_of(
        "depend", row.pk, "--on", of(run, "second").pk, "--type", "MUST_FINISH", "--policy", "FAIL"
    )
    assert done["changed"] == seen["would_change"]
    assert TaskDependency.objects.get(task=row).on_upstream_failure == "FAIL"
    circle = durable("depend", of(run, "first").pk, "--on", row.pk)
    assert circle.code == 2
    assert "would wait for each other: first" in circle.err
    assert (
        durable(
            "depend", row.pk, "--on", of(run, "second").pk, "--remove", "--type", "MUST_FAIL"
        ).code
        == 2
    )
    json_of("depend", row.pk, "--on", of(run, "second").pk, "--remove")
    assert statuses(row)[0] in WAITS


# Lists --------------------------------------------------------------------------------------------


def test_workflows_are_listed_with_their_progress() -> None:
    run = _failed()
    other = Workflow("other")
    other.add(noop)
    other.start()
    (row,) = json_of("list", "workflows", "--name", "nightly")
    assert (row["id"], row["status"], row["ended"], row["total"], row["failed"]) == (
        str(run.pk),
        "FAILED",
        3,
        3,
        1,
    )
    assert len(json_of("list", "workflows")) == 2
    assert [
        row["name"] for row in json_of("list", "workflows", "--status", "RUNNING", "--limit", 5)
    ] == ["other"]
    assert "NAME" in durable("list", "workflows").out


def test_a_run_is_shown_with_its_progress_and_its_failures() -> None:
    run = _failed()
    shown = json_of("show", run.pk)
    assert (shown["name"], shown["statuses"]) == (
        "nightly",
        {"SUCCESS": 1, "FAILED": 1, "SKIPPED": 1},
    )
    assert [step["step"] for step in shown["failed_tasks"]] == ["second"]
    text = durable("show", run.pk).out
    assert "nightly: FAILED, 3 of 3 tasks have ended" in text
    assert "second" in text


def test_a_task_is_shown_with_what_it_waits_for_and_why_it_was_skipped() -> None:
    run = _failed()
    third = json_of("show", of(run, "third").pk)["graph"]
    assert third["cause"]["step"] == "second"
    assert [(edge["step"], edge["outcome"], edge["met"]) for edge in third["waits_for"]] == [
        ("second", "FAILED", False)
    ]
    text = durable("show", of(run, "third").pk).out
    assert "cause  second" in text
    assert "upstream second ended FAILED" in text
    assert "waited for by: 1 SKIPPED" in durable("show", of(run, "second").pk).out


def test_a_closed_gate_and_a_deleted_upstream_are_shown() -> None:
    run = _chain("first", "second", hold="month end")
    Task.objects.unguarded().filter(step="first").delete()
    edges = json_of("show", of(run, "second").pk)["graph"]["waits_for"]
    assert {edge["gate"] or edge["status"]: edge["comment"] for edge in edges} == {
        "HOLD": "month end",
        "DELETED": "",
    }
    assert "month end" in durable("show", of(run, "second").pk).out

"""Pages of workflow runs and dependencies: progress, diagram, dependencies and the reason of each
status.
"""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_durable_tasks import Workflow
from django_durable_tasks.admin import graphs, workflow_runs
from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.workflows import operations
from tests.database.admin.site import list_of, page_of, staff, text
from tests.database.admin.workflow_runs import a_diamond, a_diamond_that_failed
from tests.database.dependencies.worker_and_leader import fail, of, resolve_all
from tests.factories import a_task, a_tenant
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db


def _found(ann: Client, model: str, **asked: str) -> set[Any]:
    return {row.pk for row in ann.get(list_of(model), asked).context["cl"].result_list}


def test_the_list_of_runs_shows_progress_in_words_beside_the_bar(ann: Client) -> None:
    a_diamond_that_failed(key="nightly-7", tenant=a_tenant(name="Acme"))
    page = ann.get(list_of("workflowrun"))
    content = text(page)
    assert "diamond" in content
    assert "RUNNING" in content
    assert "3 of 4 ended: 1 SUCCESS, 1 FAILED, 1 SKIPPED" in content
    assert "nightly-7" in content
    assert "Acme" in content
    widths = re.findall(
        r'<rect class="durable-part-(\w+)" x="([\d.]+)" y="0" width="([\d.]+)"',
        page.content.decode(),
    )
    assert widths == [
        ("success", "0.00", "25.00"),
        ("failed", "25.00", "25.00"),
        ("skipped", "50.00", "25.00"),
    ]


def test_runs_are_filtered_and_searched(ann: Client) -> None:
    tenant = a_tenant()
    a_tenant()
    wanted, other = a_diamond("wanted", key="k-1", tenant=tenant), a_diamond("other")
    WorkflowRun.objects.unguarded().filter(pk=wanted.pk).update(
        status="FAILED",
        completed_at=database_now(),
        deadline_at=database_now() - timedelta(hours=1),
    )
    WorkflowRun.objects.unguarded().filter(pk=other.pk).update(
        deadline_at=database_now() - timedelta(hours=1)
    )
    asked = {"status__exact": "FAILED", "name": "wanted", "tenant": str(tenant.pk), "q": "k-1"}
    for name, value in asked.items():
        assert _found(ann, "workflowrun", **{name: value}) == {wanted.pk}, name
    for term in (str(wanted.pk), "WANT", " k-1 "):
        assert _found(ann, "workflowrun", q=term) == {wanted.pk}, term
    assert _found(ann, "workflowrun", condition="open") == {other.pk}
    assert _found(ann, "workflowrun", condition="late") == {other.pk}
    assert _found(ann, "workflowrun", condition="stopping") == set()
    assert _found(ann, "workflowrun", condition="nonsense") == set()
    assert _found(ann, "workflowrun", root__exact=str(other.pk)) == {other.pk}
    assert "late" in text(ann.get(list_of("workflowrun"), {"condition": "late"}))


def test_whole_runs_and_sub_workflows_are_distinguished(ann: Client) -> None:
    run = _nested()
    parts = set(WorkflowRun.objects.exclude(pk=run.pk).values_list("pk", flat=True))
    assert _found(ann, "workflowrun", condition="whole") == {run.pk}
    assert _found(ann, "workflowrun", condition="part") == parts


def test_dependencies_are_listed_with_their_resolution(ann: Client) -> None:
    run = a_diamond_that_failed(tenant=a_tenant(name="Acme"))
    content = text(ann.get(list_of("taskdependency")))
    for word in (
        "top",
        "left",
        "right",
        "bottom",
        "MUST_SUCCEED",
        "met",
        "not met",
        "SKIPPED",
        "Acme",
    ):
        assert word in content
    bottom = of(run, "bottom")
    unmet = TaskDependency.objects.get(task=bottom, depends_on=of(run, "left"))
    waits = TaskDependency.objects.get(task=bottom, depends_on=of(run, "right"))
    assert _found(ann, "taskdependency", standing="unmet") == {unmet.pk}
    assert _found(ann, "taskdependency", standing="waits") == {waits.pk}
    assert len(_found(ann, "taskdependency", standing="met")) == 2
    assert len(_found(ann, "taskdependency", kind="MUST_SUCCEED")) == 4
    assert _found(ann, "taskdependency", kind="APPROVAL") == set()
    assert _found(ann, "taskdependency", standing="nonsense") == set()
    assert _found(ann, "taskdependency", q=str(bottom.pk)) == {unmet.pk, waits.pk}
    assert len(_found(ann, "taskdependency", q=str(run.pk))) == 4
    assert _found(ann, "taskdependency", q="bottom") == set()
    assert _found(ann, "taskdependency", depends_on__id__exact=str(of(run, "left").pk)) == {
        unmet.pk
    }


def test_dependencies_are_filtered_by_the_tenant_of_their_task(ann: Client) -> None:
    tenant = a_tenant()
    a_diamond(tenant=tenant)
    a_diamond()
    assert len(_found(ann, "taskdependency", tenant=str(tenant.pk))) == 4
    assert len(_found(ann, "taskdependency")) == 8


def test_the_page_of_a_dependency_opens_also_if_its_upstream_was_deleted(ann: Client) -> None:
    run = a_diamond()
    edge = TaskDependency.objects.get(task=of(run, "left"))
    Task.objects.unguarded().filter(pk=edge.depends_on_id).delete()
    for address in (
        page_of(edge),
        page_of(of(run, "left")),
        list_of("taskdependency"),
        page_of(run),
    ):
        page = ann.get(address)
        assert page.status_code == 200, address
        assert "deleted" in text(page), address


def _nested() -> WorkflowRun:
    inmost = Workflow("inmost")
    inmost.add(noop, step="leaf")
    inner = Workflow("inner")
    inner.add_workflow(inmost, step="inmost")
    outer = Workflow("outer")
    outer.add_workflow(inner, step="inner")
    return outer.start()


def test_the_page_of_a_run_draws_its_graph_with_links_to_the_tasks(ann: Client) -> None:
    run = a_diamond()
    page = ann.get(page_of(run)).content.decode()
    drawn = page[page.index('<div class="durable-drawing"') :].partition("</svg>")[0]
    for step in ("top", "left", "right", "bottom"):
        assert f'href="{page_of(of(run, step))}"' in drawn
        assert step in drawn


def test_the_tasks_of_a_run_show_what_they_wait_for_and_why_they_ended(ann: Client) -> None:
    run = a_diamond_that_failed()
    page = ann.get(page_of(run))
    lines = {line["task"].step: line for line in page.context["tasks"]}
    assert list(lines) == ["top", "left", "right", "bottom"]
    assert page_of(of(run, "left")) in lines["bottom"]["cause"]
    assert lines["bottom"]["why"] == "upstream left ended FAILED"
    fresh = ann.get(page_of(a_diamond()))
    waits = {line["task"].step: line["waits"] for line in fresh.context["tasks"]}
    assert waits["top"] == "-"
    assert "left" in waits["bottom"]
    assert "right" in waits["bottom"]


def test_a_fan_in_shows_its_first_upstreams_and_their_number(ann: Client) -> None:
    wf = Workflow("wide")
    wf.add(noop, after=[wf.add(noop) for _ in range(60)], step="end")
    run = wf.start()
    last = ann.get(page_of(run), {"p": "2"}).context
    assert (last["page"], last["pages"], last["number"]) == (2, 2, 61)
    assert "and 55 more" in last["tasks"][-1]["waits"]
    assert last["tasks"][-1]["waits"].count("<div>") == 5
    assert ann.get(page_of(run), {"p": "99"}).context["page"] == 2
    assert ann.get(page_of(run), {"p": "x"}).context["page"] == 1


def test_the_tasks_of_a_run_are_filtered_by_status(ann: Client) -> None:
    run = a_diamond()
    context = ann.get(page_of(run), {"state": "BLOCKED"}).context
    assert {line["task"].step for line in context["tasks"]} == {"left", "right", "bottom"}
    assert [
        (status, number) for _mark, status, number in context["states"] if status == "BLOCKED"
    ] == [("BLOCKED", 3)]
    assert len(ann.get(page_of(run), {"state": "nonsense"}).context["tasks"]) == 4


def test_the_tasks_of_a_run_are_found_by_its_id(ann: Client) -> None:
    run = a_diamond()
    a_diamond()
    assert len(_found(ann, "task", workflow__id__exact=str(run.pk))) == 4


def test_a_run_shows_its_callbacks_and_the_tasks_created_by_them(ann: Client) -> None:
    run = a_diamond()
    assert "on_failure tests.project.tasks.echo -" in text(ann.get(page_of(run)))
    fail(of(run, "top"))
    resolve_all()
    created = Task.objects.get(idempotency_key=f"workflow-{run.pk}-on_failure")
    page = ann.get(page_of(run))
    assert page_of(created) in page.content.decode()
    assert "It failed." in text(page)


def test_a_sub_workflow_shows_the_whole_and_its_other_parts(ann: Client) -> None:
    run = _nested()
    leaf = WorkflowRun.objects.get(name="inmost")
    page = ann.get(page_of(leaf))
    assert [(row["run"].name, row["depth"], row["here"]) for row in page.context["family"]] == [
        ("outer", 0, False),
        ("inner", 1, False),
        ("inmost", 2, True),
    ]
    assert page_of(run) in page.content.decode()
    assert ann.get(page_of(a_diamond())).context["family"] == []


def test_a_large_graph_is_drawn_only_on_request(
    ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "AT_ONCE", 3)
    run = a_diamond()
    page = ann.get(page_of(run)).content.decode()
    assert "durable-drawing" not in page
    assert "?draw=1#graph" in page
    monkeypatch.setattr(workflow_runs, "TASKS", 3)
    numbers = [len(ann.get(page_of(run), {"p": page}).context["tasks"]) for page in ("1", "2")]
    assert numbers == [3, 1]
    assert "durable-drawing" in ann.get(page_of(run), {"draw": "1"}).content.decode()


@pytest.mark.parametrize(
    ("ending", "kind", "begins"),
    [
        ("svg", "image/svg+xml", "<svg"),
        ("json", "application/json", "{"),
        ("mmd", "text/plain", ""),
        ("txt", "text/plain", ""),
    ],
)
def test_a_diagram_can_be_downloaded(ann: Client, ending: str, kind: str, begins: str) -> None:
    run = a_diamond()
    for name, row in (("workflowrun", run), ("task", of(run, "left"))):
        answer = ann.get(reverse(f"admin:django_durable_tasks_{name}_graph", args=[row.pk, ending]))
        assert answer.status_code == 200
        assert answer["Content-Type"].startswith(kind)
        assert answer["Content-Disposition"] == f'attachment; filename="{name}-{row.pk}.{ending}"'
        body = answer.content.decode()
        assert begins in body
        assert "bottom" in body
        if ending == "json":
            json.loads(body)


def test_the_page_of_a_task_shows_its_workflow_its_neighbours_and_its_cause(ann: Client) -> None:
    run = a_diamond_that_failed()
    page = ann.get(page_of(of(run, "bottom")))
    body, content = page.content.decode(), text(page)
    assert page_of(run) in body
    assert "step bottom" in content
    assert "It ended because of left" in content
    assert f"{page_of(of(run, 'left'))}" in body
    assert len(page.context["above"]) == 2
    left = ann.get(page_of(of(run, "left")))
    assert [str(line["task"]).count("bottom") for line in left.context["below"]] == [1]
    assert "durable-drawing" in body


def test_a_task_without_dependencies_shows_no_graph(ann: Client) -> None:
    page = ann.get(page_of(a_task()))
    assert "Upstream tasks" not in text(page)
    assert "durable-drawing" not in page.content.decode()


def test_a_closed_gate_shows_who_asked_for_it_and_why(ann: Client) -> None:
    wf = Workflow("gated")
    wf.add(noop, approval="ask the controller", step="pay")
    run = wf.start()
    task = of(run, "pay")
    assert "It waits for an approval: ask the controller" in text(ann.get(page_of(task)))
    operations.hold(task, by="bob", reason="token=abc123 is wrong")
    content = text(ann.get(page_of(task)))
    assert "It is on hold, requested by bob: " in content
    assert "abc123" not in content
    assert _found(ann, "taskdependency", kind="HOLD") == {
        TaskDependency.objects.get(gate="HOLD").pk
    }
    assert "a person" in text(ann.get(list_of("taskdependency")))


def test_a_user_who_may_view_runs_but_no_tasks_sees_numbers_and_no_names() -> None:
    run = a_diamond()
    page = staff("view_workflowrun").get(page_of(run))
    assert "0 of 4 ended" in text(page)
    assert "bottom" not in page.content.decode()
    assert "drawing" not in page.context
    diagram = reverse("admin:django_durable_tasks_workflowrun_graph", args=[run.pk, "svg"])
    assert staff("view_workflowrun").get(diagram).status_code == 403


def test_without_the_app_of_diagrams_a_page_says_so_and_offers_text_and_json(
    ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "FORMATS", {"text": str, "json": str})
    run = a_diamond()
    for address in (page_of(run), page_of(of(run, "left"))):
        page = ann.get(address)
        assert "contrib.diagrams" in text(page)
        assert "durable-drawing" not in page.content.decode()
        assert [kind for kind, _ in page.context["files"]] == ["text", "json"]
    drawing = reverse("admin:django_durable_tasks_workflowrun_graph", args=[run.pk, "svg"])
    assert ann.get(drawing).status_code == 404

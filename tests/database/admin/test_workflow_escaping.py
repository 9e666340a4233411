"""User input is escaped on the pages of graphs, in diagrams and previews; no page needs a script or
style.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_durable_tasks import Workflow
from django_durable_tasks.choices import Status
from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from django_durable_tasks.workflows import operations
from tests.database.admin.site import list_of, operator, page_of
from tests.database.admin.test_escaping import EVIL, MARK, _refused
from tests.database.admin.workflow_actions import address, choose, do
from tests.database.dependencies.worker_and_leader import fail, of, resolve_all
from tests.factories import a_task, a_tenant
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db


def _hostile() -> WorkflowRun:
    """Return a workflow with EVIL in every field that users can write."""
    inner = Workflow("inner")
    inner.add(noop, step=EVIL)
    wf = Workflow("outer")
    first = wf.add(noop, step=EVIL, approval=EVIL)
    failing = wf.add(noop, step="failing")
    nested = wf.add_workflow(inner, after=first, step="inner")
    wf.add(noop, after=[nested, failing], step=f"last {EVIL}")
    run = wf.start(key=EVIL, tenant=a_tenant(name=EVIL))
    fail(of(run, "failing"))
    resolve_all()
    WorkflowRun.objects.unguarded().update(name=EVIL, reason=EVIL, callbacks={"on_success": EVIL})
    Task.objects.unguarded().update(name=EVIL, reason=EVIL, last_error=EVIL)
    TaskDependency.objects.unguarded().update(placed_by=EVIL, resolved_by=EVIL, comment=EVIL)
    return run


def _visits(ann: Client, run: WorkflowRun) -> list[tuple[str, Any]]:
    tasks, edges = list(Task.objects.all()), list(TaskDependency.objects.all())
    last = Task.objects.get(workflow=run, step__startswith="last")
    first = Task.objects.get(workflow=run, step=EVIL)
    pages = [
        list_of("workflowrun"),
        list_of("taskdependency"),
        list_of("task"),
        *(page_of(row) for row in (*WorkflowRun.objects.all(), *tasks, *edges)),
        reverse("admin:django_durable_tasks_taskdependency_add") + f"?task={EVIL}&upstream={EVIL}",
        f"{page_of(run)}?state={EVIL}&p={EVIL}",
        f"{list_of('workflowrun')}?name={EVIL}&q={EVIL}",
    ]
    operation_pages = [
        *(address(run, name) for name in ("cancel", "replay")),
        address(last, "force_run"),
        *(address(first, name) for name in ("approve", "reject", "hold", "cancel_branch")),
        *(
            reverse("admin:django_durable_tasks_graph_unlink", args=[edge.pk])
            for edge in edges
            if edge.depends_on_id
        ),
    ]
    found = [(page, ann.get(page)) for page in (*pages, *operation_pages)] + [
        (page, ann.post(page)) for page in operation_pages
    ]
    found.append(("chosen", choose(ann, "force_run", last, run=EVIL)))
    ids = {"task": str(first.pk), "upstream": str(last.pk)}
    circle = ann.post(
        reverse("admin:django_durable_tasks_taskdependency_add"), {**ids, "kind": "MUST_SUCCEED"}
    )
    found.append(("circle", circle))
    found.append(("done", do(ann, run, "cancel", reason=EVIL)))
    found.append(
        (
            "history",
            ann.get(reverse("admin:django_durable_tasks_workflowrun_history", args=[run.pk])),
        )
    )
    return found


def test_user_input_is_escaped_on_every_page_of_graphs() -> None:
    run = _hostile()
    seen = 0
    for name, answer in _visits(operator(EVIL[:100]), run):
        assert answer.status_code == 200, name
        page = answer.content.decode()
        assert "<script>alert" not in page, name
        assert "<img src=x" not in page, name
        assert not _refused(page), name
        seen += MARK in page
    assert seen > 15
    assert User.objects.count() == 1


def test_a_downloaded_diagram_is_not_served_as_a_page() -> None:
    run, ann = _hostile(), operator()
    for ending in ("svg", "json", "mmd", "txt"):
        answer = ann.get(
            reverse("admin:django_durable_tasks_workflowrun_graph", args=[run.pk, ending])
        )
        assert answer["Content-Disposition"].startswith("attachment")
        assert answer["X-Content-Type-Options"] == "nosniff"
        if ending == "svg":
            assert "<script>" not in answer.content.decode()


def test_secrets_in_comments_and_reasons_are_masked() -> None:
    wf = Workflow("secret")
    wf.add(noop, approval="password=hunter2", step="pay")
    run = wf.start()
    task = of(run, "pay")
    Task.objects.unguarded().filter(pk=task.pk).update(reason="password=hunter2")
    ann = operator()
    operations.hold(task, by="bob", reason="password=hunter2")
    gate = TaskDependency.objects.filter(gate="APPROVAL").get()
    ended = a_task(Status.CANCELLED, reason="password=hunter2")
    pages = (page_of(run), page_of(task), page_of(ended), page_of(gate), list_of("taskdependency"))
    for page in pages:
        assert "hunter2" not in ann.get(page).content.decode(), page
    assert "hunter2" not in ann.post(address(run, "cancel")).content.decode()

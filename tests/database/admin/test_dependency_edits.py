"""An operator adds and removes dependencies: validated for cycles, previewed, executed by the
engine and recorded.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from django_durable_tasks import Workflow
from django_durable_tasks.choices import Status
from django_durable_tasks.models import Task, TaskDependency
from tests.database.admin.site import messages_of, page_of, text
from tests.database.admin.workflow_runs import a_diamond
from tests.database.dependencies.worker_and_leader import (
    fail,
    of,
    recount,
    resolve_all,
    statuses,
    succeed,
)
from tests.factories import a_task, a_tenant
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db

ADD = "admin:django_durable_tasks_taskdependency_add"
REMOVE = "admin:django_durable_tasks_graph_unlink"


def add(client: Client, task: Any, upstream: Any, *, look: bool = False, **given: str) -> Any:
    """Submit the form. With ``look`` it only shows what would change."""
    keys = {
        "task": str(getattr(task, "pk", task)),
        "upstream": str(getattr(upstream, "pk", upstream)),
    }
    sent = {"type": "MUST_SUCCEED", "policy": "", "reason": "", **keys, **given}
    return client.post(reverse(ADD), {**sent, ("_look" if look else "_do"): "1"})


def remove(client: Client, task: Any, upstream: Any, **given: str) -> Any:
    """Remove a dependency, or show what that would change."""
    edge = TaskDependency.objects.get(task=task.pk, depends_on=upstream.pk)
    return client.post(reverse(REMOVE, args=[edge.pk]), given)


def test_a_dependency_is_previewed_and_then_added_with_a_comment(ann: Client) -> None:
    task, upstream = a_task(name="load"), a_task(name="extract")
    looked = add(ann, task, upstream, look=True)
    assert "1 PENDING → becomes BLOCKED" in text(looked)
    assert "Nothing is changed yet." in text(looked)
    assert "Add the dependency" in looked.content.decode()
    assert statuses(task) == ["PENDING"]
    assert not TaskDependency.objects.exists()
    done = add(ann, task, upstream, type="MUST_FINISH", policy="RUN", reason="rates first")
    assert done["Location"] == page_of(task)
    assert messages_of(done) == [
        "Now load waits for extract (MUST_FINISH). 1 row changed: 1 PENDING → BLOCKED."
    ]
    edge = TaskDependency.objects.get()
    assert (edge.task_id, edge.depends_on_id, edge.dependency_type) == (
        task.pk,
        upstream.pk,
        "MUST_FINISH",
    )
    assert (edge.on_upstream_failure, edge.placed_by) == ("RUN", "ann")
    assert statuses(task) == ["BLOCKED"]
    entry = LogEntry.objects.get()
    assert entry.object_id == str(task.pk)
    assert entry.change_message.endswith("rates first")
    assert "placed by ann" in text(ann.get(page_of(task)))


def test_a_dependency_that_closes_a_cycle_is_refused_with_its_path(ann: Client) -> None:
    run = a_diamond()
    top, bottom = of(run, "top"), of(run, "bottom")
    for look in (True, False):
        answer = add(ann, top, bottom, look=look)
        (error,) = answer.context["form"].errors["upstream"]
        path = [step for step in ("top", "left", "right", "bottom") if step in error]
        assert error.startswith("The tasks would wait for each other: ")
        assert path in (["top", "left", "bottom"], ["top", "right", "bottom"])
        assert str(top.pk) in error
        assert "Add the dependency" not in answer.content.decode()
    assert TaskDependency.objects.count() == 4


def test_a_task_cannot_depend_on_itself(ann: Client) -> None:
    task = a_task()
    assert add(ann, task, task).context["form"].errors
    assert not TaskDependency.objects.exists()


@pytest.mark.parametrize("field", ["task", "upstream"])
@pytest.mark.parametrize("value", ["", "nonsense", "\x00", str(uuid.UUID(int=7))])
def test_an_id_of_no_task_is_refused_at_its_field(ann: Client, field: str, value: str) -> None:
    keys = {"task": a_task().pk, "upstream": a_task().pk, field: value}
    answer = add(ann, keys["task"], keys["upstream"])
    assert set(answer.context["form"].errors) == {field}
    assert not TaskDependency.objects.exists()


def test_another_tenants_task_a_started_task_and_a_duplicate_dependency_are_refused(
    ann: Client,
) -> None:
    task, upstream = a_task(), a_task()
    assert "there is none for this tenant" in text(add(ann, task, a_task(tenant=a_tenant())))
    assert "only a task that has not started" in text(add(ann, a_task(Status.RUNNING), upstream))
    add(ann, task, upstream)
    assert "waits for" in str(add(ann, task, upstream).context["form"].errors)
    assert "already" in str(add(ann, task, upstream, type="MUST_FAIL").context["form"].errors)
    assert TaskDependency.objects.count() == 1


@pytest.mark.parametrize(
    ("field", "value"), [("type", "MUST_WIN"), ("policy", "PANIC"), ("reason", "x" * 151)]
)
def test_an_invalid_choice_is_refused(ann: Client, field: str, value: str) -> None:
    given: dict[str, Any] = {field: value}
    assert set(add(ann, a_task(), a_task(), **given).context["form"].errors) == {field}


def test_a_dependency_on_a_succeeded_task_is_met_and_changes_no_status(ann: Client) -> None:
    task, upstream = a_task(), a_task(Status.SUCCESS)
    assert "stays" in text(add(ann, task, upstream, look=True))
    add(ann, task, upstream)
    assert statuses(task) == ["PENDING"]
    assert TaskDependency.objects.get().met


def test_a_link_on_the_page_of_a_task_prefills_the_form(ann: Client) -> None:
    task = a_task()
    (link,) = [
        b["url"]
        for b in ann.get(page_of(task)).context["buttons"]
        if "dependency" in str(b["title"])
    ]
    assert f'value="{task.pk}"' in ann.get(link).content.decode()


def test_a_dependency_is_removed_after_preview_and_the_task_runs(ann: Client) -> None:
    run = a_diamond()
    left, top = of(run, "left"), of(run, "top")
    page = ann.get(page_of(left)).content.decode()
    assert reverse(REMOVE, args=[TaskDependency.objects.get(task=left.pk).pk]) in page
    looked = remove(ann, left, top)
    assert "1 BLOCKED → becomes" in text(looked)
    assert statuses(left) == ["BLOCKED"]
    assert TaskDependency.objects.count() == 4
    done = remove(ann, left, top, _do="1", reason="top is not needed")
    assert "Done. This is the row that changed." in text(done)
    assert TaskDependency.objects.count() == 3
    assert statuses(left)[0] in ("PENDING", "QUEUED")
    entry = LogEntry.objects.get()
    assert entry.object_id == str(left.pk)
    assert str(top.pk) in entry.change_message
    assert entry.change_message.endswith("top is not needed")
    assert not recount()


def test_a_dependency_whose_upstream_was_deleted_can_be_removed(ann: Client) -> None:
    run = a_diamond()
    left, top = of(run, "left"), of(run, "top")
    Task.objects.unguarded().filter(pk=top.pk).delete()
    assert statuses(left) == ["BLOCKED"]
    remove(ann, left, top, _do="1", reason="")
    assert statuses(left)[0] in ("PENDING", "QUEUED")


def test_a_dependency_of_a_task_that_no_longer_waits_is_not_removed(ann: Client) -> None:
    run = a_diamond()
    succeed(of(run, "top"))
    resolve_all()
    left = of(run, "left")
    assert "Remove the dependency…" not in text(ann.get(page_of(left)))
    answer = remove(ann, left, of(run, "top"), _do="1", reason="")
    assert "does not wait for anything" in text(answer)
    assert TaskDependency.objects.count() == 4


def test_a_gate_is_opened_and_not_removed(ann: Client) -> None:
    wf = Workflow("gated")
    wf.add(noop, approval="ask", step="pay")
    wf.start()
    gate = TaskDependency.objects.get()
    assert ann.post(reverse(REMOVE, args=[gate.pk]), {"_do": "1"}).status_code == 404
    titles = [str(button["title"]) for button in ann.get(page_of(gate)).context["buttons"]]
    assert titles == ["Approve…", "Reject…"]


def test_the_page_of_a_dependency_offers_removal_while_its_task_waits(ann: Client) -> None:
    run = a_diamond()
    edge = TaskDependency.objects.get(task=of(run, "left").pk)
    assert [str(button["title"]) for button in ann.get(page_of(edge)).context["buttons"]] == [
        "Remove the dependency…"
    ]
    fail(of(run, "top"))
    resolve_all()
    assert ann.get(page_of(edge)).context["buttons"] == []

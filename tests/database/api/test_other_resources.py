"""Dead letters, workflows, dependencies, queues, calendars, health and status through the API."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_durable_tasks import Workflow, process_state
from django_durable_tasks.contrib.api.installation import RecentHealth
from django_durable_tasks.contrib.notifications.models import Alert
from django_durable_tasks.models import Calendar, QueueControl, SchedulerLease, Task
from django_durable_tasks.workflows import diagrams
from django_durable_tasks.workflows.diagrams import FILE_FORMATS, FORMATS
from tests.database.api.client import ApiClient, call, pointers
from tests.database.commands.durable_command import durable
from tests.factories import a_node, a_task, many_tasks
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db


def test_dead_letters_are_listed_replayed_and_discarded(acme: ApiClient) -> None:
    first, second = many_tasks(2, "FAILED", tenant=acme.tenant)
    found = acme.get("/dead-letters").json()["data"]
    assert {row["task_id"] for row in found} == {str(first.pk), str(second.pk)}
    replayed = acme.post(f"/dead-letters/{first.dead_letters.get().pk}/replay", {"reason": "x"})
    assert replayed.json()["resolution"] == "REPLAYED"
    path = f"/dead-letters/{second.dead_letters.get().pk}/discard"
    assert pointers(acme.post(path)) == ["#/reason"]
    discarded = acme.post(path, {"reason": "paid by hand"}).json()
    assert (discarded["resolution"], discarded["comment"]) == ("DISCARDED", "paid by hand")
    assert acme.post(path, {"reason": "again"}).status_code == 409
    assert acme.get("/dead-letters").json()["data"] == []
    assert len(acme.get("/dead-letters?state=all").json()["data"]) == 2
    assert Task.objects.get(pk=first.pk).status == "PENDING"


def test_a_workflow_is_listed_drawn_and_cancelled(acme: ApiClient) -> None:
    flow = Workflow("flow")
    flow.add(noop, step="second", after=flow.add(noop, step="first"))
    run = flow.start(tenant=acme.tenant)
    assert [row["workflow_id"] for row in acme.get("/workflows").json()["data"]] == [str(run.pk)]
    graph = acme.get(f"/workflows/{run.pk}/graph").json()
    assert len(graph["nodes"]) == 2
    image = acme.get(f"/workflows/{run.pk}/graph.svg", Accept="image/svg+xml")
    assert image.headers["Content-Type"] == "image/svg+xml"
    assert image.content.startswith(b"<svg")
    asked = acme.post(f"/workflows/{run.pk}/cancel?dry_run=1").json()
    assert asked["would_return"]["changed_tasks"] == 2
    assert not Task.objects.filter(status="CANCELLED").exists()
    assert acme.post(f"/workflows/{run.pk}/cancel").json()["changed_tasks"] == 2
    assert Task.objects.filter(status="CANCELLED").count() == 2


def test_drawings_do_not_exist_without_the_app_that_draws(
    acme: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Workflow("flow")
    flow.add(noop, step="first")
    run = flow.start(tenant=acme.tenant)
    task = Task.objects.get()
    for name in FILE_FORMATS:
        monkeypatch.delitem(FORMATS, name, raising=False)
    for path in (f"/workflows/{run.pk}/graph.svg", f"/tasks/{task.pk}/dependencies.svg"):
        answer = acme.get(path, Accept="image/svg+xml")
        assert answer.status_code == 404
        assert "django_durable_tasks.contrib.diagrams" in answer.json()["detail"]


def test_dependencies_are_added_shown_and_removed(acme: ApiClient, globex: ApiClient) -> None:
    later = (timezone.now() + timedelta(days=1)).isoformat()
    first, second = (acme.post("/tasks", call(run_at=later)).json()["task_id"] for _ in range(2))
    path = f"/tasks/{second}/dependencies"
    added = acme.post(path, {"upstream": first})
    assert added.status_code == 200, added.content
    assert (len(added.json()["nodes"]), len(added.json()["edges"])) == (2, 1)
    assert Task.objects.get(pk=second).status == "BLOCKED"
    cycle = acme.post(f"/tasks/{first}/dependencies", {"upstream": second})
    assert cycle.status_code == 422
    foreign = a_task(tenant=globex.tenant)
    assert pointers(acme.post(path, {"upstream": str(foreign.pk)})) == ["#/upstream"]
    assert pointers(acme.delete(path)) == ["upstream"]
    assert acme.delete(f"{path}?upstream={first}").status_code == 200
    assert Task.objects.get(pk=second).status == "PENDING"
    assert acme.get(f"{path}.svg", Accept="image/svg+xml").content.startswith(b"<svg")


def test_a_long_chain_of_dependencies_costs_a_bounded_number_of_statements(
    acme: ApiClient,
) -> None:
    wf, before, far = Workflow("long"), None, diagrams.FAR
    for _number in range(far + 20):
        before = wf.add(noop, after=before)
    run = wf.start(tenant=acme.tenant)
    first = Task.objects.filter(workflow=run).filter(dependencies=None).get()
    with CaptureQueriesContext(connection) as statements:
        answer = acme.get(f"/tasks/{first.pk}/dependencies").json()
    assert len(answer["nodes"]) == far + 1, "the task and those at most this far away"
    assert len(statements) < 2 * far + 30


def test_dense_dependencies_are_read_once_and_drawn_up_to_a_limit(
    acme: ApiClient, monkeypatch: Any
) -> None:
    monkeypatch.setattr(diagrams, "EDGES_NEAR", 100)
    wf, before = Workflow("dense"), None
    for _layer in range(6):
        before = [wf.add(noop, after=before) for _number in range(8)]
    run = wf.start(tenant=acme.tenant)
    task = Task.objects.filter(workflow=run).latest("pk")
    answer = acme.get(f"/tasks/{task.pk}/dependencies").json()
    assert (len(answer["nodes"]), len(answer["edges"])) == (6 * 8, 100)


def test_queues_are_listed_by_names_that_a_queue_can_have(acme: ApiClient) -> None:
    QueueControl.objects.pause("mail")
    assert [row["queue"] for row in acme.get("/queues").json()["data"]] == ["mail"]
    assert acme.post("/queues/a queue/pause").status_code == 404


def test_calendars_are_created_changed_and_deleted(acme: ApiClient) -> None:
    christmas = {"date": "2030-12-25", "name": "Christmas"}
    made = acme.post("/calendars", {"name": "office", "working_days": [1, 2], "days": [christmas]})
    assert made.status_code == 201, made.content
    path = made.headers["Location"]
    assert made.json()["days"][0]["kind"] == "CLOSED"
    assert acme.post("/calendars", {"name": "office"}).status_code == 409
    (found,) = acme.get("/calendars").json()["data"]
    assert (found["name"], found["working_days"]) == ("office", [1, 2])
    tag = acme.get(path).headers["ETag"]
    assert acme.patch(path, {"working_days": [3]}, If_Match=tag).json()["working_days"] == [3]
    assert acme.patch(path, {"working_days": [4]}, If_Match=tag).status_code == 412
    for change, pointer in (
        ({"working_days": [8]}, "#/working_days/0"),
        ({"working_days": []}, "#"),
        ({"days": [{"date": "2030-02-30"}]}, "#/days/0/date"),
        ({"days": [{"date": 5}]}, "#/days/0/date"),
    ):
        response = acme.patch(path, change, If_Match="*")
        assert response.status_code == 422, response.content
        assert pointers(response) == [pointer]
    assert acme.delete(f"{path}?dry_run=1").status_code == 200
    assert Calendar.objects.get().updated_by.startswith("API key")
    assert acme.delete(path).status_code == 200
    assert acme.get(path).status_code == 404


def _next_health(probe: ApiClient) -> Any:
    """Return the answer after the second for which a process keeps one."""
    process_state.of(RecentHealth).forget()
    return probe.get("/health")


def test_the_answer_of_health_is_kept_for_a_second(acme: ApiClient) -> None:
    probe = ApiClient(acme.tenant, "")
    first = probe.get("/health")
    with CaptureQueriesContext(connection) as statements:
        again = [probe.get("/health") for _ in range(3)]
    assert not statements.captured_queries
    assert {answer.content for answer in again} == {first.content}
    _next_health(probe)


@pytest.mark.parametrize("in_batch", [False, True])
def test_health_reports_whether_tasks_start(in_batch: bool, acme: ApiClient) -> None:
    leases = SchedulerLease.objects.filter(name="leader")
    leases.update(expires_at=timezone.now() + timedelta(hours=1))
    probe = ApiClient(acme.tenant, "")
    healthy = probe.get("/health")
    assert (healthy.status_code, healthy.json()["firing"]) == (200, True)
    a_task(due=-3_600, queue="stuck", in_batch=in_batch)
    late = _next_health(probe)
    assert (late.status_code, late.json()["firing"]) == (503, False)
    assert late.json()["oldest_due_age"] > 3_000
    QueueControl.objects.pause("stuck")
    assert _next_health(probe).status_code == 200
    leases.update(expires_at=timezone.now() - timedelta(hours=1))
    assert _next_health(probe).json() == {
        "alive": True,
        "ready": True,
        "leader": False,
        "oldest_due_age": 0.0,
        "firing": False,
    }


def test_the_status_of_the_scheduler_counts_endings_and_names_nodes(acme: ApiClient) -> None:
    node = a_node()
    many_tasks(2, "SUCCESS")
    many_tasks(1, "FAILED")
    many_tasks(1, "RUNNING")
    found = acme.get("/scheduler/status").json()
    assert (found["completed_24h"], found["failed_24h"], found["running"]) == (2, 1, 1)
    assert [one["name"] for one in found["nodes"]] == [node.name]


def test_the_open_alerts_are_in_the_status(acme: ApiClient) -> None:
    Alert.objects.unguarded().create(kind="queue_without_worker", subject="mail", detail="3 tasks")
    (alert,) = acme.get("/scheduler/status").json()["alerts"]
    assert (alert["kind"], alert["subject"]) == ("queue_without_worker", "mail")
    assert alert["since"].endswith("Z")
    shown = durable("status", "--format", "json").data["alerts"]
    assert [(one["kind"], one["detail"]) for one in shown] == [("queue_without_worker", "3 tasks")]
    assert "queue_without_worker" in durable("status").out


def test_the_history_of_a_task_has_node_time_and_status(acme: ApiClient) -> None:
    row = a_task("FAILED", tenant=acme.tenant)
    (entry,) = acme.get(f"/scheduler/tasks/{row.pk}/history").json()["data"]
    assert (entry["status"], entry["duration"]) == ("FAILED", pytest.approx(1, abs=0.5))
    assert "node" in entry

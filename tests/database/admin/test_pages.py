"""Every page opens, without and with data, and shows the state of each object and its reason."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_durable_tasks.choices import Resolution, Status
from django_durable_tasks.models import (
    NodeKind,
    QueueControl,
    SchedulerLease,
    Task,
    TaskExecutionLog,
)
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim
from tests.celery_settings import celery_configured
from tests.database.admin.site import list_of, page_of, staff, text
from tests.factories import a_dead_letter, a_node, a_paused_queue, a_task, a_tenant, many_tasks

pytestmark = pytest.mark.django_db

OVERVIEW = "admin:django_durable_tasks_overview"


@pytest.mark.parametrize("status", list(Status))
def test_the_page_of_a_task_in_every_status_opens_and_shows_the_reason(
    ann: Client, status: Status
) -> None:
    task = a_task(status)
    answer = ann.get(page_of(task))
    assert answer.status_code == 200
    assert answer.context["sentences"]
    assert answer.context["sentences"][0].text in text(answer)


@pytest.mark.parametrize("address", [OVERVIEW, "admin:app_list"])
def test_a_user_without_permission_sees_no_overview(address: str) -> None:
    arguments = ["django_durable_tasks"] if address.endswith("app_list") else []
    assert staff().get(reverse(address, args=arguments)).status_code in (403, 404)


def test_tenants_are_created_and_renamed_but_never_deleted(ann: Client) -> None:
    answer = ann.post(
        reverse("admin:django_durable_tasks_tenant_add"), {"slug": "acme", "name": "Acme"}
    )
    assert answer.status_code == 302
    tenant = a_tenant()
    assert (
        ann.get(reverse("admin:django_durable_tasks_tenant_delete", args=[tenant.pk])).status_code
        == 403
    )


def test_a_paused_queue_without_nodes_is_the_reason_why_a_task_does_not_run(ann: Client) -> None:
    a_paused_queue("test", reason="the printer burns")
    content = text(ann.get(page_of(a_task(due=-60))))
    assert "Queue test was paused by anna (the printer burns)" in content
    assert "No live worker listens on queue test" in content
    assert "No scheduler is alive" in content


def test_labels_are_predicates_of_the_object(ann: Client) -> None:
    past = database_now() - timedelta(minutes=5)
    a_task(failures=2, due=500)
    a_task(
        Status.RUNNING,
        expected_duration=timedelta(seconds=1),
        started_at=past,
        cancel_requested_at=past,
    )
    a_task(Status.RUNNING, due=-60)
    a_task(Status.QUEUED, publish_count=4)
    content = ann.get(list_of("task")).content.decode()
    for label in ("retrying", "overdue", "stop requested", "lease expired", "republished"):
        assert f">{label}</span>" in content
    assert 'durable-failed">' not in content


def test_the_overview_shows_waiting_tasks_the_leader_and_problems(ann: Client) -> None:
    many_tasks(3, queue="mail", due=-600)
    a_task(Status.FAILED)
    content = text(ann.get(reverse(OVERVIEW)))
    assert "No scheduler is alive" in content
    assert "Queue mail has 3 tasks to start and no live worker." in content
    assert "1 dead letter is open." in content
    assert "No scheduler is the leader" in content
    leader = a_node(NodeKind.SCHEDULER, name="scheduler-1")
    a_node(queues=["mail"], concurrency=4)
    SchedulerLease.objects.update(
        holder=leader.pk, term=7, expires_at=database_now() + timedelta(minutes=1)
    )
    content = text(ann.get(reverse(OVERVIEW)))
    assert "scheduler-1 leads in term 7" in content
    assert "Queue mail is late: its oldest task could have started" in content
    assert "concurrency 4" in content
    assert "scheduler-1 leads in term 7" in text(ann.get(list_of("node")))


def test_the_page_of_a_scheduler_shows_its_due_index_and_its_notifications(ann: Client) -> None:
    states: dict[str, Any] = {
        "index_state": "redis",
        "wakeups_state": "Redis (self-test passed 3 s ago)",
    }
    page = text(ann.get(page_of(a_node(NodeKind.SCHEDULER, **states))))
    assert all(state in page for state in states.values())


def test_the_overview_of_a_healthy_cluster_shows_no_problems(ann: Client) -> None:
    leader = a_node(NodeKind.SCHEDULER)
    SchedulerLease.objects.update(
        holder=leader.pk, expires_at=database_now() + timedelta(minutes=1)
    )
    assert "There are no problems." in text(ann.get(reverse(OVERVIEW)))


def test_a_broker_that_does_not_answer_is_shown_without_its_password(ann: Client) -> None:
    task = a_task(due=-5)
    with celery_configured(broker_url="redis://:swordfish@127.0.0.1:1/0"):
        for address in (reverse(OVERVIEW), page_of(task)):
            page = ann.get(address)
            assert "The broker does not answer from here" in text(page)
            assert "swordfish" not in page.content.decode()


def test_a_page_shows_the_last_fifty_attempts_and_links_to_all(ann: Client) -> None:
    task = a_task(Status.FAILED)
    TaskExecutionLog.objects.unguarded().bulk_create(
        TaskExecutionLog(
            task_id=task.pk, attempt_number=number, status="RETRY", completed_at=database_now()
        )
        for number in range(60)
    )
    answer = ann.get(page_of(task))
    shown = answer.context["inline_admin_formsets"][0].formset.queryset
    assert [row.attempt_number for row in shown] == list(range(59, 9, -1))
    assert f"?task__id__exact={task.pk}" in answer.content.decode()
    assert (
        ann.get(list_of("taskexecutionlog"), {"task__id__exact": str(task.pk)})
        .context["cl"]
        .result_count
        == 61
    )


def test_a_failed_task_and_its_dead_letter_link_to_each_other(ann: Client) -> None:
    many_tasks(2, Status.FAILED)
    task = Task.objects.first()
    assert task is not None
    (case,) = (
        button
        for button in ann.get(page_of(task)).context["buttons"]
        if button["title"] == "Its dead letters"
    )
    (letter,) = ann.get(case["url"]).context["cl"].result_list
    assert letter.task_id == task.pk
    assert page_of(task) in ann.get(page_of(letter)).content.decode()


def test_closed_dead_letters_are_listed_only_on_request(ann: Client) -> None:
    failed = a_task(Status.FAILED)
    a_dead_letter(failed, open=False, resolution=Resolution.REPLAYED)
    counts = {
        asked: ann.get(list_of("deadletter"), {"case": asked} if asked else {})
        .context["cl"]
        .result_count
        for asked in ("", "all", "REPLAYED", "DISCARDED")
    }
    assert counts == {"": 1, "all": 2, "REPLAYED": 1, "DISCARDED": 0}


def test_a_queue_that_is_rejected_or_whose_messages_are_misrouted_is_named_on_both_pages(
    ann: Client,
) -> None:
    a_task(queue="cards")
    leader = a_node(
        NodeKind.SCHEDULER, rejected_queues={"cards": "PreconditionFailed: <b>quorum</b>"}
    )
    SchedulerLease.objects.update(
        holder=leader.pk, expires_at=database_now() + timedelta(minutes=1)
    )
    claim.count_misrouted("mails", "cards")
    for address in (reverse(OVERVIEW), list_of("queuecontrol")):
        page = ann.get(address)
        assert "PreconditionFailed: &lt;b&gt;quorum" in page.content.decode()
        assert "rejected" in text(page)
        assert "1 message consumed from another queue, from cards" in text(page)
    assert "Queue mails: messages for its tasks were consumed from queue cards" in text(
        ann.get(reverse(OVERVIEW))
    )


def test_queues_without_a_problem_are_listed_too(ann: Client) -> None:
    a_task(queue="never-paused")
    content = text(ann.get(list_of("queuecontrol")))
    assert "never-paused" in content
    assert not QueueControl.objects.exists()
    assert Task.objects.count() == 1


@pytest.mark.parametrize(
    ("progress", "shown", "has_bar"),
    [
        ({"done": 1200, "total": 5000, "note": "rows"}, "1,200 of 5,000, rows", True),
        ({"done": 3, "total": None, "note": ""}, "3", False),
        ({"done": 0.5, "total": 2, "note": "password=hunter2"}, "0.5 of 2, password=", True),
        (["of", "others"], "others", False),
    ],
)
def test_the_page_of_a_task_shows_its_progress(
    ann: Client, progress: Any, shown: str, has_bar: bool
) -> None:
    task = a_task(Status.RUNNING, progress=progress, position={"charge": {"result": 1}})
    answer = ann.get(page_of(task))
    content = text(answer)
    assert shown in content
    assert "hunter2" not in content
    assert "charge" in content
    assert ("durable-progress" in answer.content.decode()) == has_bar

"""Numbers of tasks per queue and status, as admin and command line show them."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import queues
from django_durable_tasks.store.clock import database_now
from tests.factories import QUEUE, a_node, a_paused_queue, a_task, many_tasks

pytestmark = pytest.mark.django_db


def _depth(queue: str) -> queues.Depth:
    return {depth.queue: depth for depth in queues.depths(database_now())}[queue]


def test_open_tasks_are_counted_by_queue_and_status_and_ended_ones_are_not() -> None:
    many_tasks(3, queue="mail", due=-90)
    many_tasks(2, queue="mail", due=900)
    many_tasks(2, Status.QUEUED, queue="mail", publish_count=1)
    a_task(Status.QUEUED, queue="mail", publish_count=3)
    a_task(Status.RUNNING, queue="mail")
    a_task(
        Status.RUNNING,
        queue="mail",
        expected_duration=timedelta(seconds=1),
        started_at=database_now() - timedelta(minutes=1),
    )
    a_task(Status.SUCCESS, queue="mail")
    a_task(Status.FAILED, queue="other")
    mail = _depth("mail")
    assert (mail.pending, mail.due, mail.queued, mail.unanswered, mail.running, mail.late) == (
        5,
        3,
        3,
        1,
        2,
        1,
    )
    assert [depth.queue for depth in queues.depths(database_now())] == ["mail"]


def test_the_oldest_task_that_could_have_started_is_reported() -> None:
    a_task(queue="mail", due=-90)
    a_task(queue="mail", due=-30)
    a_task(queue="later", due=500)
    a_task(Status.QUEUED, queue="published", updated_at=database_now() - timedelta(seconds=50))
    now = database_now()
    ages = {
        depth.queue: depth.oldest_due_at and (now - depth.oldest_due_at).total_seconds()
        for depth in queues.depths(now)
    }
    assert ages["mail"] == pytest.approx(90, abs=30)
    assert ages["published"] == pytest.approx(50, abs=30)
    assert ages["later"] is None


def test_a_queue_shows_its_workers_and_its_pause_even_if_it_is_empty() -> None:
    a_node(queues=["mail", "reports"], concurrency=4)
    a_node(queues=["mail"], concurrency=2)
    a_node(queues=["mail"], concurrency=8, stopped=1)
    a_paused_queue("reports", reason="the printer burns")
    mail, reports = _depth("mail"), _depth("reports")
    assert (mail.workers, mail.concurrency, mail.paused_at) == (2, 6, None)
    assert (reports.workers, reports.paused_by, reports.reason) == (
        1,
        "anna",
        "the printer burns",
    )
    assert reports.paused_at is not None
    queues.resume("reports", by="bob")
    assert (_depth("reports").paused_by, _depth("reports").reason) == ("", "")


def test_a_requested_queue_without_any_tasks_is_listed() -> None:
    assert queues.depths(database_now(), named=["unheard-of"]) == [queues.Depth(queue="unheard-of")]


def test_queue_depths_need_as_many_statements_for_one_task_as_for_fifty() -> None:
    counts = []
    for number in (1, 50):
        many_tasks(number, queue=f"mail{number}")
        a_node(queues=[f"mail{number}"])
        now = database_now()
        with CaptureQueriesContext(connection) as captured:
            queues.depths(now)
        counts.append(len(captured))
    assert counts[0] == counts[1] <= 8


def test_waiting_tasks_are_counted_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "COUNTED", 5)
    many_tasks(9, queue="mail", due=-90)
    many_tasks(9, queue="later", due=900, priority=3)
    many_tasks(4, queue="few", due=-90)
    counts = {depth.queue: (depth.pending, depth.due) for depth in queues.depths(database_now())}
    assert counts == {"mail": (5, 5), "later": (5, 0), "few": (4, 4)}
    texts = {queue: tuple(map(str, numbers)) for queue, numbers in counts.items()}
    assert texts == {"mail": ("5+", "5+"), "later": ("5+", "0"), "few": ("4", "4")}


def test_tasks_that_wait_for_a_batch_are_counted_with_those_of_their_queue() -> None:
    now = database_now()
    a_task(due=-5)
    first = a_task(due=-9, in_batch=True)
    a_task(due=60, in_batch=True, name="another.name")
    a_task(due=-3, in_batch=True, queue="other")
    found = {queue: rest for queue, *rest in queues.waiting(now)}
    assert found[QUEUE] == [3, 2, first.due_at]
    assert found["other"][:2] == [1, 1]

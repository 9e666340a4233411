"""Tasks are republished if messages are missing, however old the others are, and at once after an
outage of the broker.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import current_app
from kombu import Producer

from django_durable_tasks.celery import publisher
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import nodes
from django_durable_tasks.cluster.nodes import NodeReport
from django_durable_tasks.exceptions import BrokerUnavailable
from django_durable_tasks.limits import backpressure, config
from django_durable_tasks.limits.backpressure import SMALLEST_WINDOW
from django_durable_tasks.models import Node, Task
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.scheduler import republishing
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.scheduler.republishing import Republishing
from django_durable_tasks.states import claims, endings
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import operator_actions
from tests.factories import QUEUE, a_node, a_task
from tests.messages import take_messages, take_task_messages
from tests.republishing import Leader

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def empty_queues() -> Iterator[None]:
    yield
    for queue in (QUEUE, "dead", "other"):
        take_messages(queue)


def _published(number: int, age: float = 60.0, **fields: Any) -> list[Task]:
    """Create QUEUED tasks with messages in the broker, published ``age`` seconds ago."""
    rows = [a_task(Status.QUEUED, due=15 - age, **fields) for _ in range(number)]
    _publish(rows)
    return rows


def _publish(rows: list[Task]) -> None:
    claimed = claims.claimed_tasks(Task.objects.filter(pk__in=[row.pk for row in rows]))
    claimed.sort(key=lambda task: task.order)
    publisher.publish_claimed(claims.messages_for(claimed))


def _foreign(number: int) -> None:
    with current_app.connection_for_write() as connection:
        for _ in range(number):
            Producer(connection).publish([[], {}, {}], routing_key=QUEUE, headers={"task": "x"})


def _counts() -> dict[Any, int]:
    return dict(Task.objects.values_list("pk", "publish_count"))


def _worker(queues: tuple[str, ...] = (QUEUE,), busy: int = 2, **report: Any) -> None:
    active = {"number": busy, "ids": [], **report}
    a_node(queues=list(queues), concurrency=2, active=active)


def test_a_backlog_whose_messages_wait_is_not_republished_however_old_it_is() -> None:
    _published(30, age=3_600)
    _worker()
    leader = Leader()
    assert [leader.compare() for _ in range(5)] == [0] * 5
    assert set(_counts().values()) == {1}


@pytest.mark.parametrize("seed", range(10))
def test_as_many_tasks_as_messages_are_missing_are_republished_the_oldest_first(seed: int) -> None:
    dice = random.Random(seed)
    number, lost, held = dice.randint(1, 30), dice.randint(0, 30), dice.randint(0, 3)
    rows = [a_task(Status.QUEUED, due=-number + place) for place in range(number)]
    _publish(rows[lost:])
    if dice.random() < 0.5:
        _worker(held={QUEUE: held})
    else:
        held = 0
    leader = Leader()
    expected = max(0, min(number, lost) - held)
    assert leader.compare() == expected
    counts = _counts()
    assert [counts[row.pk] for row in rows] == [2] * expected + [1] * (number - expected)
    assert leader.compare() == 0, "each task is republished at most once per REPUBLISH_AFTER"


def test_a_difference_that_only_one_comparison_shows_is_no_loss() -> None:
    rows = [a_task(Status.QUEUED, due=-1) for _ in range(3)]
    leader = Leader()
    assert leader.look() == 0
    _publish(rows)
    assert leader.compare() == 0


@pytest.mark.parametrize("seed", range(5))
def test_tasks_that_were_being_published_are_compared_soon(seed: int, settings: Any) -> None:
    """They were lost right before the outage that started the comparison."""
    settings.DURABLE_TASKS = {"NODE_HEARTBEAT": 1, "REPUBLISH_AFTER": 600, "PUBLISH_TIMEOUT": 4}
    dice = random.Random(seed)
    _worker()
    waits = a_task(Status.QUEUED, due=600 - dice.uniform(5, 500))
    _publish([waits])
    lost = [a_task(Status.QUEUED, due=600 - dice.uniform(0, 3)) for _ in range(dice.randint(1, 5))]
    leader = Leader()
    leader.comparison.restart()
    assert [leader.look(), leader.look()] == [0, 0]
    Task.objects.unguarded().filter(pk__in=[row.pk for row in lost]).update(
        due_at=database_now() + timedelta(seconds=600 - 5)
    )
    leader.at += 5
    leader.look()
    leader.at += 2
    assert leader.look() == len(lost)


@pytest.mark.parametrize("event", ["first worker", "free process", "new leader"])
def test_an_event_starts_the_comparison_before_the_wait_is_over(event: str) -> None:
    leader = Leader()
    if event == "new leader":
        _worker()
        leader.compare()
    for _ in range(3):
        a_task(Status.QUEUED, due=8)
    leader.compare()
    assert set(_counts().values()) == {1}
    if event == "new leader":
        leader.comparison.restart()
    else:
        _worker(busy=2 if event == "first worker" else 0)
    assert leader.compare() == 3


def test_what_a_busy_worker_holds_is_published_for_free_processes() -> None:
    for _ in range(4):
        a_task(Status.QUEUED, due=-1)
    _worker(held={QUEUE: 4})
    assert Leader().compare() == 0
    a_node(queues=[QUEUE], concurrency=3, active={"number": 2, "ids": [], "held": {}})
    assert Leader().compare() == 1


@pytest.mark.parametrize("event", ["too few messages", "overtaken"])
def test_what_workers_hold_of_other_queues_hides_no_loss(event: str) -> None:
    rows = [a_task(Status.QUEUED, due=-40 + place) for place in range(3)]
    _worker((QUEUE, "other"), held={"other": 8, "": 5})
    if event == "overtaken":
        _foreign(50)
        queued_at = database_now() - timedelta(seconds=30)
        a_task(Status.RUNNING, publish_count=1, queued_at=queued_at)
    assert Leader().compare() == 3
    assert [_counts()[row.pk] for row in rows] == [2] * 3


def test_a_task_that_was_overtaken_is_republished_although_foreign_messages_hide_the_loss() -> None:
    _foreign(50)
    lost = [a_task(Status.QUEUED, due=-40 + place, priority=3) for place in range(3)]
    waiting = _published(5, age=20, priority=3)
    leader = Leader()
    assert leader.compare() == 0
    queued_at = database_now() - timedelta(seconds=30)
    a_task(Status.RUNNING, publish_count=1, priority=3, queued_at=queued_at)
    assert leader.compare() == 3
    counts = _counts()
    assert [counts[row.pk] for row in (*lost, *waiting)] == [2] * 3 + [1] * 5


def test_a_more_urgent_task_that_started_overtakes_nothing() -> None:
    _foreign(50)
    a_task(Status.QUEUED, due=-40, priority=3)
    a_task(Status.RUNNING, publish_count=1, queued_at=database_now(), priority=4)
    assert Leader().compare() == 0


@pytest.mark.parametrize("seen_before", [False, True])
def test_a_start_by_a_clock_that_was_ahead_overtakes_nothing(
    seen_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _published(5)
    _worker()
    ahead = database_now() + timedelta(hours=1)
    running = a_task(Status.RUNNING, publish_count=1, queued_at=ahead)
    leader = Leader()
    if seen_before:
        with monkeypatch.context() as clock:
            clock.setattr(republishing, "database_now", lambda: ahead)
            leader.comparison.read_starts(leader.comparison.read())
        Task.objects.unguarded().filter(pk=running.pk).delete()
    assert [leader.compare() for _ in range(3)] == [0] * 3
    assert set(_counts().values()) <= {0, 1}


def test_one_task_is_republished_after_the_longest_wait_if_foreign_messages_hide_all_losses(
    settings: Any,
) -> None:
    settings.DURABLE_TASKS = {"REPUBLISH_AFTER": 6}
    _foreign(50)
    rows = [a_task(Status.QUEUED, due=-200 + place) for place in range(3)]
    leader = Leader()
    assert leader.compare() == 1
    assert _counts()[rows[0].pk] == 2
    assert leader.compare() == 0
    leader.at += 120
    assert leader.compare() == 1


def test_a_broker_that_cannot_count_gets_messages_at_growing_intervals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "count", lambda queue: None)
    row = a_task(Status.QUEUED, due=-1)
    leader = Leader()
    assert leader.compare() == 1
    row.refresh_from_db()
    assert row.due_at is not None
    assert (row.due_at - database_now()).total_seconds() == pytest.approx(30, abs=5)


def test_a_queue_that_cannot_be_counted_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    a_task(Status.QUEUED, queue="other", due=-1)
    row = a_task(Status.QUEUED, due=-1)
    scheduler, real = Scheduler("one"), publisher.count

    def failing(queue: str) -> int | None:
        if queue == "other":
            raise ValueError("no count")
        return real(queue)

    monkeypatch.setattr(publisher, "count", failing)
    scheduler.leader.step()
    leader = Leader()
    scheduler.republishing._comparison = leader.comparison
    for _ in range(3):
        scheduler.republishing._compare_at = 0.0
        scheduler.republishing.round()
        leader.at += 8
    scheduler.leader.resign()
    assert _counts()[row.pk] == 2
    assert scheduler.steps.is_failing("Republishing queue 'other'")


def test_nothing_is_compared_while_the_broker_is_away() -> None:
    a_task(Status.QUEUED, due=-1)
    publisher.breaker.failed()
    with pytest.raises(BrokerUnavailable):
        publisher.count(QUEUE)
    assert Leader().compare() == 0
    publisher.breaker.succeeded()


def test_published_tasks_that_expired_end_although_their_messages_wait() -> None:
    (row,) = _published(1, expires_at=database_now() - timedelta(seconds=1))
    Leader().compare()
    row.refresh_from_db()
    assert row.status == Status.EXPIRED


# Queues without a worker --------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["global", "tenant:1", "task:tests.project.tasks.noop"])
def test_a_queue_without_a_worker_gives_the_places_of_shared_limits_back(
    scope: str, settings: Any
) -> None:
    settings.DURABLE_TASKS = {"LIMITS": {scope: {"max_concurrency": 5}}}
    rows = _published(3, queue="dead", name="tests.project.tasks.noop")
    ready = database_now() - timedelta(hours=1)
    Task.objects.unguarded().update(ready_at=ready)
    leader = Leader()
    leader.compare()
    assert Task.objects.queued().count() == 3, "while there is no worker at all, nothing waits"
    _worker()
    leader.compare()
    returned = Task.objects.pending().values_list("epoch", "due_at")
    assert set(returned) == {(rows[0].epoch + 1, ready)}
    config.limits_in_force()
    assert not backpressure.snapshot().capacity("dead")
    assert backpressure.snapshot().capacity(QUEUE) == SMALLEST_WINDOW
    _worker(("dead",))
    assert backpressure.snapshot().capacity("dead") == SMALLEST_WINDOW


@pytest.mark.parametrize("since", [60.0, 5.0])
@pytest.mark.parametrize("other_is_free", [True, False])
def test_a_queue_whose_processes_are_all_busy_for_long_gives_the_places_back_to_free_ones(
    since: float, other_is_free: bool, settings: Any
) -> None:
    settings.DURABLE_TASKS = {"LIMITS": {"tenant:1": {"max_concurrency": 5}}}
    _published(5, queue="dead")
    started = database_now() - timedelta(seconds=since)
    active = {"number": 2, "ids": [], "held": {}}
    a_node(queues=["dead"], concurrency=2, active=active, last_start_at=started)
    _worker(busy=0 if other_is_free else 2)
    Leader().compare()
    gives_back = other_is_free and since == 60.0
    assert Task.objects.queued().count() == (0 if gives_back else 5)
    config.limits_in_force()
    snapshot = backpressure.snapshot()
    assert (snapshot.capacity("dead") == 0) == gives_back
    Node.objects.filter(queues=["dead"]).update(active={**active, "number": 1})
    assert backpressure.snapshot().capacity("dead") > 0


def test_tasks_without_a_shared_limit_do_not_hide_those_that_give_places_back(
    settings: Any,
) -> None:
    limits = {"task:tests.project.tasks.noop": {"max_concurrency": 5}}
    settings.DURABLE_TASKS = {"LIMITS": limits, "BATCH_SIZE": 3}
    _published(7, queue="dead", name="tests.project.tasks.add")
    _published(5, age=30, queue="dead", name="tests.project.tasks.noop")
    _worker()
    Leader().compare()
    names = Task.objects.queued().values_list("name", flat=True)
    assert list(names) == ["tests.project.tasks.add"] * 7


def test_a_limit_of_the_queue_itself_leaves_its_tasks_published(settings: Any) -> None:
    settings.DURABLE_TASKS = {"LIMITS": {"queue:dead": {"max_concurrency": 5}}}
    _published(3, queue="dead")
    _worker()
    Leader().compare()
    assert Task.objects.queued().count() == 3


# Messages without a task use the window -----------------------------------------------------------


@pytest.fixture
def thread(scheduler: Scheduler) -> Republishing:
    return scheduler.republishing


def _capacity(thread: Republishing) -> int:
    """Count the messages, as three rounds do, and return the capacity at the next poll."""
    for _ in range(3):
        thread.round()
    thread._windows.refresh({}, database_now(), coming=True)
    return thread._windows.capacity(QUEUE)


@pytest.mark.parametrize(
    "leave",
    [
        lambda queued: operator_actions.cancel(queued, by="test", reason="test"),
        lambda queued: endings.expire(queued, 1_000),
        lambda queued: claims.return_to_pending(queued, 3_600),
    ],
    ids=["cancelled", "expired", "edited"],
)
def test_messages_of_tasks_that_left_queued_use_the_window_until_they_are_consumed(
    leave: Callable[[TaskQuerySet], object], thread: Republishing
) -> None:
    assert _capacity(thread) == SMALLEST_WINDOW
    thread._windows.record_sent(QUEUE, SMALLEST_WINDOW)
    _published(SMALLEST_WINDOW)
    leave(Task.objects.queued())
    assert _capacity(thread) == 0
    take_task_messages(QUEUE)
    assert _capacity(thread) == SMALLEST_WINDOW


def test_foreign_messages_in_a_mixed_queue_do_not_use_the_window(thread: Republishing) -> None:
    _worker(mixed=[QUEUE])
    _foreign(2 * SMALLEST_WINDOW)
    thread._windows.record_sent(QUEUE, SMALLEST_WINDOW)
    thread._windows.refresh({}, database_now(), coming=True)
    assert _capacity(thread) == SMALLEST_WINDOW


def test_queued_tasks_are_compared_once_if_nodes_report_an_outage() -> None:
    take_task_messages(QUEUE)
    leader = Leader()
    leader.at = time.monotonic()
    one, two = a_node(queues=[QUEUE]), a_node(queues=[QUEUE])
    nodes.beat(one.pk, NodeReport(broker_outages=4))

    def compare() -> int:
        leader.monitor.record_broker_outages(nodes.broker_outages(), leader.at)
        return leader.compare()

    assert compare() == 0, "outages before the first read are over"
    rows = [a_task(Status.QUEUED, due=9) for _ in range(3)]
    assert compare() == 0, "they do not wait for long enough"
    for node in (one, two):
        nodes.beat(node.pk, NodeReport(broker_outages=5))
    assert compare() == 3
    assert {message.task_id for message in take_task_messages(QUEUE)} == {row.pk for row in rows}
    leader.comparison._reports_from = leader.at + 3_600
    Task.objects.unguarded().update(due_at=rows[0].due_at)
    nodes.beat(a_node(queues=[QUEUE]).pk, NodeReport(broker_outages=1))
    leader.compare()
    assert take_task_messages(QUEUE) == [], "reports within 15 s are those of one outage"

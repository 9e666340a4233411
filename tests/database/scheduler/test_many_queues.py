"""One poll dispatches many queues with a constant number of statements, and each queue separately
if one fails.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.backends.signals import connection_created
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.choices import Status
from django_durable_tasks.limits import backpressure
from django_durable_tasks.models import DEFAULT_TENANT_ID, Limit, Task, Tenant
from django_durable_tasks.scheduler import dispatch_loop
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.states.demand import QueueDemand
from django_durable_tasks.store import connections
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim
from tests.factories import QUEUE, a_task, a_tenant, many_tasks
from tests.messages import take_task_messages
from tests.process_state import new_process_state
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("many_processes")]
NODE = uuid.uuid4()
QUEUES = [f"{QUEUE}-{number}" for number in range(30)]


@pytest.fixture(autouse=True)
def empty_queues() -> Iterator[None]:
    yield
    for queue in QUEUES:
        take_task_messages(queue)


@contextmanager
def _statements() -> Iterator[list[str]]:
    """Collect the statements that engine connections opened inside the block send."""
    said: list[str] = []

    def note(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        said.append(sql)
        return execute(sql, *rest)

    def connected(sender: Any, connection: Any, **_: Any) -> None:
        connection.execute_wrappers.append(note)

    connections.close_all()
    connection_created.connect(connected)
    try:
        yield said
    finally:
        connection_created.disconnect(connected)
        connections.close_all()


def _claimed(limits: dict[str, int], limit: int = 100) -> Counter[str]:
    """Claim at most ``limit`` tasks, of each queue as many as ``limits`` says; count them."""
    demands, now = [QueueDemand(*pair) for pair in limits.items()], database_now()
    return Counter(
        message.queue
        for part in claim.parted(demands)
        for message in claim.claim_of(part, now, limit, NODE).messages
    )


def test_each_queue_gives_its_most_urgent_tasks_up_to_its_limit() -> None:
    for queue in ("a", "b"):
        for priority in (3, 9, 0):
            a_task(queue=queue, priority=priority)
    a_task(queue="c", due=60)
    a_task(queue="not asked")
    demands = [
        QueueDemand("a", 2),
        QueueDemand("b", 5, 3),
        QueueDemand("c", 5),
        QueueDemand("empty", 5),
    ]
    (part,) = claim.parted(demands)
    messages = claim.claim_of(part, database_now(), 100, NODE).messages
    found = [(message.queue, message.priority) for message in messages]
    assert sorted(found) == [("a", 3), ("a", 9), ("b", 3), ("b", 9)]
    assert [priority for _, priority in found] == [9, 9, 3, 3]
    assert Task.objects.queued().count() == 4


def test_all_queues_together_give_no_more_than_the_whole_batch() -> None:
    for queue in ("a", "b", "c"):
        many_tasks(4, queue=queue)
    assert _claimed({"a": 3, "b": 3, "c": 3}, limit=5) == {"a": 3, "b": 2}
    assert Task.objects.queued().count() == 5


def test_a_claimed_task_is_not_claimed_again() -> None:
    many_tasks(3, queue="a")
    assert [_claimed({"a": 2}).total() for _ in range(3)] == [2, 1, 0]
    assert Task.objects.queued().count() == 3


def test_limits_of_single_queues_and_of_all_apply_to_a_claim_of_many() -> None:
    Limit.objects.create(scope="queue:a", max_concurrency=1)
    Limit.objects.create(scope="global", max_concurrency=4)
    for queue in ("a", "b", "c"):
        many_tasks(3, queue=queue)
    assert _claimed({"a": 3, "b": 3, "c": 3}) == {"a": 1, "b": 3}
    assert not _claimed({"a": 3, "c": 3})


def test_queues_without_a_limit_are_claimed_separately_from_those_with_one() -> None:
    Limit.objects.create(scope="queue:a", max_concurrency=1)
    a, b, c = (QueueDemand(queue, 1) for queue in "abc")
    assert claim.parted([a, b, c]) == [[b, c], [a]]


@pytest.fixture
def tenants(settings: Any) -> tuple[Tenant, Tenant]:
    """Two tenants, in an installation with small windows."""
    settings.DURABLE_TASKS = {"QUEUE_WINDOW": 40}
    return a_tenant(), a_tenant()


def test_tenants_share_each_of_many_queues(tenants: tuple[Tenant, Tenant]) -> None:
    one, two = tenants
    for queue in ("a", "b"):
        many_tasks(30, queue=queue, tenant=one)
        many_tasks(5, queue=queue, tenant=two, priority=1)
    backpressure.snapshot()
    assert _claimed({"a": 40, "b": 40}) == {"a": 25, "b": 25}
    assert Task.objects.waiting_for_limit().count() == 20


def test_a_queue_within_its_shares_is_admitted_beside_one_that_exceeds_them(
    tenants: tuple[Tenant, Tenant],
) -> None:
    one, two = tenants
    many_tasks(30, queue="a", tenant=one)
    for tenant in tenants:
        many_tasks(20, queue="b", tenant=tenant)
        many_tasks(5, Status.QUEUED, queue="c", tenant=tenant)
    many_tasks(15, queue="c", tenant=one)
    many_tasks(16, queue="c", tenant=two)
    backpressure.snapshot()
    assert _claimed(dict.fromkeys("abc", 40), limit=120) == {"a": 20, "b": 40, "c": 30}
    waiting = Task.objects.waiting_for_limit().values_list("waiting_for_limit", flat=True)
    assert Counter(waiting) == {f"share:a:{one.pk}": 10, f"share:c:{two.pk}": 1}


@pytest.mark.usefixtures("tenants")
def test_tasks_that_waited_for_a_share_do_not_use_it_again() -> None:
    """They were selected when the share had capacity, which newer tasks may have used since."""
    many_tasks(20, Status.QUEUED, queue="a")
    many_tasks(3, queue="a", waiting_for_limit=f"share:a:{DEFAULT_TENANT_ID}")
    backpressure.snapshot()
    assert _claimed({"a": 40}) == {"a": 3}
    many_tasks(1, queue="a")
    assert not _claimed({"a": 40})


def test_shares_are_checked_by_a_count_of_the_claimed_queues_only(
    tenants: tuple[Tenant, Tenant], vendor: str
) -> None:
    for queue in ("a", "b"):
        for tenant in tenants:
            many_tasks(2, queue=queue, tenant=tenant)
    many_tasks(3, Status.QUEUED, queue="c", tenant=tenants[0])
    with CaptureQueriesContext(connection) as context:
        assert _claimed({"a": 9, "b": 9}) == {"a": 4, "b": 4}
    (count,) = [query["sql"] for query in context if "count(" in query["sql"].lower()]
    assert vendor != "postgresql" or "unnest(" in count


def test_a_poll_publishes_each_due_priority_of_a_queue(scheduler: Scheduler) -> None:
    rows = [a_task(queue=QUEUES[0], priority=priority) for priority in (2, 7, 0)]
    a_task(queue=QUEUES[1], priority=9)
    late = a_task(queue=QUEUES[0], priority=5, due=60)
    assert scheduler.dispatching.poll() == 4
    found = [message.task_id for message in take_task_messages(QUEUES[0])]
    assert set(found) == {row.pk for row in rows}
    late.refresh_from_db()
    assert late.status == Status.PENDING


def test_a_poll_of_thirty_queues_needs_as_many_statements_as_one_of_three(
    scheduler: Scheduler, vendor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch_loop, "_READ_AHEAD_INTERVAL", 0.0)  # each poll reads ahead
    costs = []
    for tenants in (1, 3):
        owners = [DEFAULT_TENANT_ID, *(a_tenant().pk for _ in range(tenants - 1))]
        for number in (3, 3, 30):  # the first poll reads the limits
            for queue in QUEUES[:number]:
                for owner in owners:
                    many_tasks(2, queue=queue, tenant_id=owner)
            new_process_state()
            with _statements() as said:
                assert scheduler.dispatching.poll() == 2 * number * len(owners)
            costs.append(len(said))
            assert not Task.objects.pending().exists()
            Task.objects.unguarded().all().delete()
    if vendor == "postgresql":
        assert costs[1] == costs[2]
        assert costs[4] == costs[5]
    elif vendor == "mariadb":
        assert costs[2] <= costs[1] + 2 * 30  # without batching: more than twenty for each queue
        assert costs[5] <= costs[4] + 2 * 30


def test_a_long_queue_does_not_block_another(scheduler: Scheduler, settings: Any) -> None:
    settings.DURABLE_TASKS = {"BATCH_SIZE": 10}
    many_tasks(60, queue=QUEUES[0])
    for queue in QUEUES[1:]:
        a_task(queue=queue)
    scheduler.dispatching.poll()
    assert set(Task.objects.queued().values_list("queue", flat=True)) == set(QUEUES)
    assert Task.objects.queued().filter(queue=QUEUES[0]).count() == 10
    assert scheduler.dispatching.time_to_sleep() == 0.0


@pytest.mark.parametrize("limited", [False, True])
def test_each_of_many_busy_queues_makes_progress_in_one_poll(
    scheduler: Scheduler, settings: Any, limited: bool
) -> None:
    """A claim takes 100 tasks, at least 10 per queue: three claims serve 30 queues, including those
    with a limit.
    """
    settings.DURABLE_TASKS = {"BATCH_SIZE": 20}
    if limited:
        for queue in QUEUES[:3]:
            Limit.objects.create(scope=f"queue:{queue}", max_concurrency=100)
    new_process_state()
    for queue in QUEUES:
        many_tasks(20, queue=queue)
    scheduler.dispatching.poll()
    assert set(Task.objects.queued().values_list("queue", flat=True)) == set(QUEUES)
    assert scheduler.dispatching.time_to_sleep() == 0.0


@pytest.mark.parametrize("limited", [False, True])
def test_expired_tasks_of_a_backlog_are_cleared_without_a_pause(
    scheduler: Scheduler, settings: Any, limited: bool
) -> None:
    settings.DURABLE_TASKS = {"BATCH_SIZE": 10, "QUEUE_WINDOW": 5}
    if limited:
        Limit.objects.create(scope=f"queue:{QUEUE}", max_concurrency=100)
    new_process_state()
    many_tasks(23, expires_at=database_now() - timedelta(seconds=1))
    good = a_task(due=-0.5)
    assert scheduler.dispatching.poll() == 0
    assert Task.objects.filter(status=Status.EXPIRED).count() == 20
    assert scheduler.dispatching.time_to_sleep() == 0.0
    assert scheduler.dispatching.poll() == 1
    assert scheduler.dispatching.time_to_sleep() > 0.0
    assert Task.objects.queued().get() == good
    assert not Task.objects.pending().exists()


@contextmanager
def _refusing(bad: str) -> Iterator[None]:
    """Make the database refuse every update of the tasks of this queue."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refused() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'this queue cannot be claimed'; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER refused BEFORE UPDATE ON durable_tasks_task FOR EACH ROW "
            f"WHEN (OLD.queue = '{bad}') EXECUTE FUNCTION refused()"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION refused CASCADE")


@pytest.mark.postgresql
def test_a_queue_that_cannot_be_claimed_does_not_block_another(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    bad = QUEUES[7]
    with _refusing(bad):
        for queue in QUEUES:
            a_task(queue=queue)
        assert scheduler.dispatching.poll() == len(QUEUES) - 1
        assert Task.objects.pending().get().queue == bad
        assert f"Dispatching queue {bad!r} failed" in caplog.text


@pytest.mark.postgresql
def test_a_queue_that_failed_is_claimed_separately_until_it_succeeds(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "django_durable_tasks.scheduler")
    bad = QUEUES[7]
    with _refusing(bad):
        a_task(queue=bad)
        for _ in range(3):
            for queue in QUEUES[:7]:
                a_task(queue=queue)
            assert scheduler.dispatching.poll() == 7
            until(lambda: scheduler.dispatching.poll() == 0, within=30)
        assert caplog.text.count("Dispatching 8 queues together failed") == 1
    until(lambda: scheduler.dispatching.poll() == 1, within=30)
    caplog.clear()
    with _statements() as said:
        for queue in QUEUES[:8]:
            a_task(queue=queue)
        assert scheduler.dispatching.poll() == 8
    assert sum("SET status = 'QUEUED'" in sql for sql in said) == 1
    assert "failed" not in caplog.text


@pytest.mark.postgresql
def test_a_repeated_claim_does_not_overfill_a_window(scheduler: Scheduler, settings: Any) -> None:
    """The queue without a limit is published before the claim of those with one fails."""
    settings.DURABLE_TASKS = {"QUEUE_WINDOW": 3}
    sound, bad = QUEUES[:2]
    Limit.objects.create(scope=f"queue:{bad}", max_concurrency=100)
    new_process_state()
    with _refusing(bad):
        for queue in (sound, bad):
            many_tasks(10, queue=queue)
        assert scheduler.dispatching.poll() == 3
    assert Counter(Task.objects.queued().values_list("queue", flat=True)) == {sound: 3}


def test_a_task_with_unreadable_options_is_published_without_them_and_blocks_no_other(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = (
        a_task(queue=QUEUES[0], options=[1]),
        a_task(queue=QUEUES[1], options={"timeout": 3}),
    )
    assert scheduler.dispatching.poll() == 2
    assert str(bad.pk) in caplog.text
    assert [message.task_id for message in take_task_messages(QUEUES[1])] == [good.pk]

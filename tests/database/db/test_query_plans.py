"""With a million tasks scheduled for the future, the queries that the engine runs every second read
only due rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import Min

from django_durable_tasks.choices import Status
from django_durable_tasks.models import DEFAULT_TENANT_ID, Task
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.states.demand import ALL_LEVELS, UNSERVED_AFTER
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import Run
from tests.database.pages import Plan
from tests.factories import QUEUE, a_node, a_run, a_task
from tests.repetitions import rows

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(300),
]

MILLION, SOME = rows(1_000_000), 10_000
_ROWS = """
INSERT INTO durable_tasks_task
       (id, name, queue, priority, args, kwargs, status, run_at, due_at, lease_until, run_id, node, epoch,
        completed_at, unique_key, open_key, key, shard_key)
SELECT (lpad(to_hex(%(born)s + n), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid,
       'tests.project.tasks.noop', %(queue)s, n %% 10, '[]', '{}', %(status)s, at.moment,
       CASE WHEN %(status)s IN ('PENDING', 'QUEUED') THEN at.moment END,
       CASE WHEN %(status)s = 'RUNNING' THEN at.moment END,
       CASE WHEN %(status)s = 'RUNNING' THEN gen_random_uuid() END, %(node)s, 1,
       CASE WHEN %(status)s = 'SUCCESS' THEN at.moment END,
       CASE WHEN %(status)s = 'SUCCESS' THEN 'unique-' || n END,
       CASE WHEN %(status)s = 'QUEUED' THEN 'key-' || n END, CASE WHEN %(status)s = 'QUEUED' THEN 'key-' || n END, 0
  FROM generate_series(1, %(number)s) AS n
 CROSS JOIN LATERAL (SELECT clock_timestamp() + (%(from)s + n %% %(span)s) * interval '1 second' AS moment) AS at
"""


def _fill(status: Status, number: int, *, start: int, span: int = 86_400, **given: Any) -> None:
    values = {"queue": QUEUE, "node": None, "born": 1_700_000_000_000 + abs(start) * 1_000} | given
    with connection.cursor() as cursor:
        cursor.execute(
            _ROWS, {**values, "status": status, "number": number, "from": start, "span": span}
        )


@pytest.fixture
def crowd(request: pytest.FixtureRequest) -> Iterator[uuid.UUID]:
    """Insert this number of waiting tasks, and return the node that runs a few of them."""
    node = a_node().pk
    _fill(Status.PENDING, request.param, start=3_600)
    _fill(Status.PENDING, SOME, start=-SOME, span=SOME)
    _fill(Status.PENDING, SOME, start=4_000_000, queue="other")
    _fill(Status.QUEUED, 1_000, start=5)
    _fill(Status.RUNNING, 1_000, start=60, node=uuid.uuid4(), born=1_600_000_000_000)
    _fill(Status.RUNNING, 20, start=61, node=node, born=1_590_000_000_000)
    _fill(Status.SUCCESS, SOME, start=-90_000, born=1_500_000_000_000)
    with connection.cursor() as cursor:
        # Sets the visibility map, on which the pages of index-only scans depend. Otherwise
        # autovacuum would do so at any time.
        cursor.execute("VACUUM (ANALYZE) durable_tasks_task")
    yield node
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE durable_tasks_task CASCADE")


def _asked(now: datetime, shards: list[int] | None = None) -> dict[str, Any]:
    late = now - timedelta(seconds=UNSERVED_AFTER)
    return {
        "now": now,
        "limit": 100,
        "node": uuid.uuid4(),
        "wait": 15.0,
        "shards": shards,
        "late": late,
    }


def _of_queues(queues: list[str], levels: int = ALL_LEVELS) -> dict[str, Any]:
    number = len(queues)
    return {
        "queues": queues,
        "limits": [100] * number,
        "leasts": [0] * number,
        "levels": [levels] * number,
    }


@pytest.mark.parametrize("crowd", [MILLION], indirect=True)
def test_queries_that_run_every_second_read_only_due_rows(crowd: uuid.UUID) -> None:
    now = database_now()
    claim = Plan.of_statement("claim", **_of_queues([QUEUE]), **_asked(now))
    assert claim.root["Actual Rows"] == 100
    _by(claim, "durable_task_pending")
    assert claim.pages("CTE due") < 600, claim

    of_shards = Plan.of_statement("claim", **_of_queues([QUEUE]), **_asked(now, list(range(32))))
    _by(of_shards, "durable_task_pending")
    assert of_shards.pages("CTE due") < 600, of_shards

    ids = list(Task.objects.due(now).values_list("pk", flat=True)[:100])
    these = Plan.of_statement(
        "claim_these", ids=ids, node=uuid.uuid4(), wait=15.0, never=NEVER, waiting=False
    )
    assert these.root["Actual Rows"] == 100
    _by(these, "durable_tasks_task_pkey")
    # Limited by the number of rows and not by time: inserting a million takes longer on a busy machine.
    ahead = Task.objects.filter(
        queue=QUEUE, due_at__gt=now + timedelta(seconds=60), status=Status.PENDING
    )
    soon = ahead.aggregate(first=Min("due_at"))["first"] + timedelta(seconds=2)
    coming = Plan.of(Task.objects.coming(now, soon).filter(queue=QUEUE).values("pk")[:100])
    _by(coming, "durable_task_pending")
    assert coming.pages() < 300, coming

    _check_queries_without_due_tasks(now, crowd)
    _check_queries_of_many_queues(now, soon)


def _check_queries_without_due_tasks(now: datetime, crowd: uuid.UUID) -> None:
    """Check the queries of a queue without due tasks, of published tasks and of runs."""
    nothing_due = Plan.of_statement("claim", **_of_queues(["other"]), **_asked(now))
    assert nothing_due.root["Actual Rows"] == 0
    assert nothing_due.pages() < 100, nothing_due

    heads = Plan.of_statement("heads", until=now, everything=True)
    assert heads.root["Actual Rows"] == 2
    _by(heads, "durable_task_pending")
    assert heads.pages() < 400, heads

    overdue = Plan.of(Task.objects.republish_due(now + timedelta(seconds=10)).values("pk")[:100])
    _by(overdue, "durable_task_queued")
    assert overdue.pages() < 300, overdue

    _by(
        Plan.of(Task.objects.running().filter(node__in=[crowd]).values("pk")),
        "durable_task_running",
    )
    _by(Plan.of(Task.objects.lease_over(now).values("pk")[:100]), "durable_task_running")
    _by(Plan.of(Task.objects.queued().order_by().values("queue").distinct()), "durable_task_queued")


def _check_queries_of_many_queues(now: datetime, soon: datetime) -> None:
    """Check the queries of three hundred queues, one of which has due tasks."""
    queues = [QUEUE, "other", *(f"empty-{number}" for number in range(300))]
    of_many = Plan.of_statement("claim", **_of_queues(queues), **_asked(now))
    assert of_many.root["Actual Rows"] == 100
    _by(of_many, "durable_task_pending")
    assert of_many.pages("CTE due") < 600, of_many
    of_empty = Plan.of_statement("claim", **_of_queues(queues[1:]), **_asked(now))
    assert of_empty.pages("CTE due") < 5 * 10 * 301, of_empty
    late = Plan.of_statement("late", queues=queues, since=now)
    assert late.root["Actual Rows"] == 1
    _by(late, "durable_task_pending")

    coming_of_many = Plan.of(
        Task.objects.coming(now, soon).filter(queue__in=queues).values("pk")[:100]
    )
    _by(coming_of_many, "durable_task_pending")


@pytest.mark.parametrize("crowd", [50_000], indirect=True)
def test_the_cost_of_a_task_does_not_grow_with_the_table(crowd: uuid.UUID) -> None:
    queued, running = a_task(Status.QUEUED), a_task(Status.RUNNING)
    start = Plan.of_statement(
        "start",
        id=queued.pk,
        epoch=queued.epoch,
        run_id=uuid.uuid4(),
        node=crowd,
        lease=60.0,
        name=queued.name,
        queues=[queued.queue],
        alone=True,
    )
    assert start.root["Actual Rows"] == 1
    _by(start, "durable_tasks_task_pkey")
    assert start.pages() < 100, start

    _check_statements_of_a_run(a_run(running))
    _by(
        Plan.of(Task.objects.filter(tenant_id=DEFAULT_TENANT_ID, open_key="key-7")),
        "durable_task_one_open_key",
    )
    _by(
        Plan.of(Task.objects.filter(unique_key="unique-7", status=Status.SUCCESS)),
        "durable_task_unique_key",
    )


def _check_statements_of_a_run(run: Run) -> None:
    """Check the success and the heartbeat of a run."""
    succeed = Plan.of_statement(
        "succeed",
        id=run.task_id,
        epoch=run.epoch,
        run_id=run.run_id,
        result=None,
        encryption_key=None,
        worker="w",
        celery_id="",
    )
    assert succeed.root["Actual Rows"] == 0  # an INSERT without RETURNING
    _by(succeed, "durable_tasks_task_pkey")
    assert succeed.pages() < 120, succeed

    beat = Plan.of_statement(
        "heartbeat", ids=[run.task_id], epochs=[run.epoch], runs=[run.run_id], leases=[60.0]
    )
    assert beat.root["Actual Rows"] == 1
    assert "durable_tasks_task" not in beat.read_completely()


def _by(plan: Plan, index: str) -> None:
    assert "durable_tasks_task" not in plan.read_completely(), plan
    assert index in plan.indexes(), plan.indexes()

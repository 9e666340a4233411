"""Tasks whose name no worker of their queue has registered: they wait, take nothing from others, and
run when a worker has the name.
"""

from __future__ import annotations

import random

import pytest
from django.conf import settings

from django_durable_tasks.celery.inspect import sentences
from django_durable_tasks.models import Task
from tests.processes.cluster import Cluster
from tests.processes.rows import all_ended, ended, row
from tests.project.removable import batched, kept, single
from tests.waiting import until

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]

MANY = 1_500
WITHOUT = "single,batched"


def _waiting(name: str) -> int:
    return int(Task.objects.waiting_for_limit().filter(name=name).count())


def _all_succeeded(number: int) -> bool:
    return bool(Task.objects.filter(status="SUCCESS").count() == number)


def test_waiting_tasks_of_a_removed_name_take_nothing_from_others_and_run_when_it_is_back(
    cluster: Cluster,
) -> None:
    urgent = [
        task
        for half in (range(MANY // 2), range(MANY // 2, MANY))
        for task in single.using(priority=9).schedule_many([(number,) for number in half])
    ]
    in_batches = batched.using(priority=9).schedule_many([(number,) for number in range(50)])
    cluster.scheduler().ready()
    old = cluster.worker(TEST_REMOVED=WITHOUT).ready()
    others = [kept.delay(), *(kept.schedule() for _ in range(3))]
    for other in others:
        assert ended(other).status == "SUCCESS"
    until(lambda: _waiting(single.name) == MANY, within=60, message="all of the name wait")
    assert Task.objects.queued().count() == 0
    queue = settings.CELERY_TASK_DEFAULT_QUEUE
    text = " ".join(sentence.text for sentence in sentences(row(urgent[0])))
    assert f"No live worker of queue {queue} has the task {single.name}" in text
    text = " ".join(sentence.text for sentence in sentences(row(in_batches[0])))
    assert f"No live worker of queue {queue} has the task {batched.name}" in text
    assert old.output().count("KeyError") == 0
    # A call that its process published before it read the names is refused once, then it waits.
    late = single.delay(7)
    until(lambda: row(late).is_waiting, within=40, message="the refused task waits")

    old.terminate()
    cluster.worker().ready()
    until(lambda: _all_succeeded(MANY + 50 + 5), within=200, message="all ran")
    # The tasks of one call have the same age. Those that were published before the scheduler knew
    # the names were refused, which changed their epoch twice more, and may be later.
    of_name = Task.objects.filter(name=single.name, priority=9)
    least = min(of_name.values_list("epoch", flat=True))
    started = of_name.filter(epoch=least).order_by("started_at", "pk")
    order = [task.args[0] for task in started]
    assert len(order) > MANY - 200
    assert sum(number < MANY // 2 for number in order[:300]) > 290
    assert sum(number >= MANY // 2 for number in order[-300:]) > 290
    assert Task.objects.filter(attempts__gt=1).count() == 0


def test_a_mixed_deployment_runs_the_tasks_that_only_one_worker_has(cluster: Cluster) -> None:
    """The workers share a queue, and one of them consumes another queue too."""
    queue = settings.CELERY_TASK_DEFAULT_QUEUE
    other = f"{queue}-other"
    cluster.scheduler().ready()
    cluster.worker(queues=[queue, other], TEST_REMOVED=WITHOUT).ready()
    cluster.worker(queues=[queue], slots=1).ready()
    numbers = list(range(60))
    random.Random(7).shuffle(numbers)
    for number in numbers:
        single.using(priority=number % 10).schedule(number)
        batched.using(priority=number % 10).schedule(number)
        single.delay(number)
        kept.using(queue=other).schedule()
    stranded = single.using(queue=other).schedule(1)
    all_ended(4 * len(numbers), within=120)
    assert _all_succeeded(4 * len(numbers))
    # The other worker of the name's queue has the name, but none of this queue.
    until(lambda: row(stranded).is_waiting, within=40, message="it waits for a worker")
    ran = Task.objects.filter(name=single.name, status="SUCCESS")
    # Claim, start and ending change the epoch once each, a refusal changes it twice.
    refusals = [(task.epoch - 3) / 2 for task in ran]
    assert sum(refusals) / len(refusals) < 10

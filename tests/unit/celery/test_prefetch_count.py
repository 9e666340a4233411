"""A worker whose tasks run in threads does not change its prefetch count after a lost connection."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.concurrency.prefork import TaskPool as Prefork
from celery.concurrency.thread import TaskPool as Threads
from celery.worker.consumer import Consumer

from django_durable_tasks.celery import worker_repairs


@pytest.mark.parametrize(("pool", "is_kept"), [(Threads, True), (Prefork, False)])
def test_the_count_is_kept_in_workers_with_threads(pool: type, is_kept: bool) -> None:
    app = Celery("test", set_as_current=False)
    app.steps["consumer"].add(worker_repairs.KeepPrefetchCount)
    consumer = SimpleNamespace(app=app, pool=pool(limit=1))
    for step in app.steps["consumer"]:
        if (one := step(consumer)).include_if(consumer):
            one.start(consumer)
    assert app.conf.worker_enable_prefetch_count_reduction is not is_kept


def test_celery_restores_nothing_while_it_is_disabled() -> None:
    """The thread that acknowledges would call ``qos.set`` otherwise."""
    found = list[int]()
    app = Celery("test", set_as_current=False)
    consumer = SimpleNamespace(
        app=app,
        qos=SimpleNamespace(_mutex=nullcontext(), value=1, set=found.append),
        _maximum_prefetch_restored=False,
        _new_prefetch_count=2,
        max_prefetch_count=8,
    )
    Consumer._restore_prefetch_count_after_connection_restart(consumer, None)
    assert found == [2]
    app.conf.worker_enable_prefetch_count_reduction = False
    Consumer._restore_prefetch_count_after_connection_restart(consumer, None)
    assert found == [2]

"""A durable task behaves as a plain Celery task in each case of the table in ``celery_usages``, with a
real worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import current_app

from tests.broker.celery_usage import SAME, USAGES, Side
from tests.processes.cluster import SHORT, Cluster, cluster_in

pytestmark = pytest.mark.usefixtures("db", "backend")
BACKEND = "django-db"


@pytest.fixture(scope="module")
def backend() -> Iterator[None]:
    """Configure the result backend of the worker in this process; a plain task's result needs one."""
    app = current_app._get_current_object()
    before = app.backend_cls
    app.backend_cls, app._backend_cache, app._local.backend = BACKEND, None, None
    yield
    app.backend_cls, app._backend_cache, app._local.backend = before, None, None


@pytest.fixture(scope="module")
def cluster(shared_database: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker and one scheduler for all cases."""
    settings = {**SHORT, "TASK_DEFAULTS": {"backoff": "FIXED", "backoff_base": 0.05}}
    with cluster_in(
        tmp_path_factory.mktemp("celery_usages"), settings, TEST_RESULT_BACKEND=BACKEND
    ) as cluster:
        # One child: with several, Celery may write the RETRY of a run after the FAILURE of the next
        # one.
        cluster.worker(slots=1)
        cluster.scheduler()
        yield cluster.ready()


@pytest.mark.parametrize("name", USAGES)
def test_a_durable_task_behaves_as_in_celery(name: str, cluster: Cluster, tmp_path: Path) -> None:
    usage = USAGES[name]
    by_celery = usage.do(Side("plain", tmp_path / "plain"))
    by_us = usage.do(Side("durable", tmp_path / "durable"))
    if usage.instead is SAME:
        assert by_us == by_celery
    else:
        assert by_us == usage.instead
        assert by_celery != usage.instead, (
            "this difference is gone: take it out of the table and of the page"
        )

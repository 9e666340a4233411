"""A durable task does what a plain Celery task does, row by row of the table in ``habits``, with a
real worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import current_app

from tests.broker.habits import HABITS, SAME, Side
from tests.processes.fleet import SHORT, Fleet, fleet_in

pytestmark = pytest.mark.usefixtures("db", "backend")
BACKEND = "django-db"


@pytest.fixture(scope="module")
def backend() -> Iterator[None]:
    """Give this process the result backend of the worker; a plain task's result needs one."""
    app = current_app._get_current_object()
    before = app.backend_cls
    app.backend_cls, app._backend_cache, app._local.backend = BACKEND, None, None
    yield
    app.backend_cls, app._backend_cache, app._local.backend = before, None, None


@pytest.fixture(scope="module")
def fleet(shared_database: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One worker and one scheduler for all rows."""
    settings = {**SHORT, "TASK_DEFAULTS": {"backoff": "FIXED", "backoff_base": 0.05}}
    with fleet_in(
        tmp_path_factory.mktemp("habits"), settings, TEST_RESULT_BACKEND=BACKEND
    ) as fleet:
        # One child: with several, Celery may write the RETRY of a run after the FAILURE of the next
        # one.
        fleet.worker(slots=1)
        fleet.scheduler()
        yield fleet.ready()


@pytest.mark.parametrize("name", HABITS)
def test_a_durable_task_does_what_celery_does(name: str, fleet: Fleet, tmp_path: Path) -> None:
    habit = HABITS[name]
    by_celery = habit.do(Side("plain", tmp_path / "plain"))
    by_us = habit.do(Side("durable", tmp_path / "durable"))
    if habit.instead is SAME:
        assert by_us == by_celery
    else:
        assert by_us == habit.instead
        assert by_celery != habit.instead, (
            "this difference is gone: take it out of the table and of the page"
        )

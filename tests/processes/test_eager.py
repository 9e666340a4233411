"""Celery's eager mode: the body runs at the commit, in the caller's process, through the same gate
and ending.
"""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from celery import current_app
from celery.exceptions import Retry
from django.db import transaction

from django_durable_tasks.limits.backpressure import SMALLEST_WINDOW
from django_durable_tasks.models import Task
from tests.processes.rows import logged, row
from tests.project import bodies

pytestmark = pytest.mark.usefixtures("rows")


@pytest.fixture(params=[False, True], ids=["kept", "propagated"])
def eager(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Enable eager mode, with and without propagated errors."""
    conf = current_app.conf
    conf.task_always_eager, conf.task_eager_propagates = True, request.param
    yield bool(request.param)
    conf.task_always_eager, conf.task_eager_propagates = False, False


def test_a_body_runs_at_the_commit_and_not_before(eager: bool) -> None:
    with transaction.atomic():
        result = bodies.add.delay(1, 2)
        assert row(result).status == "QUEUED"
    assert (row(result).status, result.get(timeout=1), logged(result)) == (
        "SUCCESS",
        3,
        ["SUCCESS"],
    )


def test_a_failure_is_stored_and_propagated_if_configured(eager: bool) -> None:
    with pytest.raises(ValueError, match="from the body") if eager else nullcontext():
        bodies.raise_named.delay("ValueError")
    found = Task.objects.get()
    assert (found.status, found.reason, logged(found)) == ("FAILED", "EXHAUSTED", ["FAILED"])
    assert found.last_error == "ValueError: from the body"


def test_a_retry_waits_as_pending_task(eager: bool) -> None:
    with pytest.raises(Retry, match="no luck") if eager else nullcontext():
        bodies.fail.delay("no luck")
    found = Task.objects.get()
    assert (found.status, logged(found)) == ("PENDING", ["RETRY"])


def test_ignore_cancels_in_eager_mode_too(eager: bool) -> None:
    result = bodies.ignore.delay()
    assert (row(result).status, row(result).reason) == ("CANCELLED", "IGNORED")


def test_a_rolled_back_call_never_runs(eager: bool) -> None:
    with transaction.atomic():
        bodies.add.delay(1, 2)
        transaction.set_rollback(True)
    assert not Task.objects.exists()


@pytest.mark.parametrize("eager", [False], indirect=True, ids=["kept"])
def test_as_many_tasks_as_a_test_schedules_run_at_once(eager: bool) -> None:
    """Windows count messages in a broker, and here there is none."""
    results = [bodies.add.delay(number, 1) for number in range(SMALLEST_WINDOW * 2)]
    assert {row(result).status for result in results} == {"SUCCESS"}

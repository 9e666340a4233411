"""Every ending of a body in a prefork worker has a named reason, and no task stays RUNNING."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_durable_tasks.models import DeadLetter, Task
from tests.processes.cluster import Cluster, cluster_in
from tests.processes.rows import ended, in_status, logged, row
from tests.project import bodies
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("prefork", "rows")


@pytest.fixture(scope="module")
def prefork(shared_database: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker and one scheduler for all tests of this file."""
    with cluster_in(tmp_path_factory.mktemp("endings")) as cluster:
        cluster.worker()
        cluster.scheduler()
        yield cluster.ready()


def _case(task: Any) -> DeadLetter:
    case: DeadLetter = DeadLetter.objects.get(task_id=task.pk, resolved_at__isnull=True)
    return case


def _spent(task: Task, reason: str, *logs: str) -> Task:
    """Check that the task failed for this reason, with one open dead letter."""
    found = ended(task)
    assert (found.status, found.reason, logged(found)) == ("FAILED", reason, list(logs)), (
        found.last_error
    )
    assert _case(found).reason == reason
    return found


def _check_starts(found: Task, runs: int) -> None:
    """Check that each start was a run. A worker on the database broker starts a task before a process
    accepts it. If the process was about to end, the task is returned, and this start counts only in
    ``attempts``.
    """
    if os.environ["TEST_BROKER"] == "database":
        assert found.attempts >= runs
    else:
        assert found.attempts == runs


@pytest.mark.smoke
def test_a_success_is_recorded_with_its_result() -> None:
    found = ended(bodies.add.schedule(2, 3))
    assert (found.status, found.result, found.attempts, logged(found)) == (
        "SUCCESS",
        5,
        1,
        ["SUCCESS"],
    )


@pytest.mark.smoke
def test_an_exception_is_retried_and_then_becomes_a_dead_letter() -> None:
    found = _spent(bodies.fail.schedule("no luck"), "EXHAUSTED", "RETRY", "FAILED")
    assert found.last_error == "ValueError: no luck"
    assert "no luck" in found.executions.order_by("-id")[0].traceback


def test_a_retry_requested_by_the_body_is_stored_and_counts() -> None:
    _spent(bodies.ask_again.schedule(0.05), "EXHAUSTED", "RETRY", "RETRY", "FAILED")


def test_a_long_retry_delay_is_spent_in_the_database() -> None:
    task = bodies.ask_again.schedule(3600)
    until(lambda: logged(task) == ["RETRY"], within=30)
    found = row(task)
    assert found.status == "PENDING"
    assert found.due_at is not None
    assert (found.due_at - found.updated_at).total_seconds() == pytest.approx(3600, abs=1)


def test_celery_s_own_retry_works() -> None:
    found = ended(bodies.celery_retry.schedule(2))
    assert (found.status, found.result, logged(found)) == (
        "SUCCESS",
        3,
        ["RETRY", "RETRY", "SUCCESS"],
    )


def test_autoretry_for_works() -> None:
    found = ended(bodies.autoretry.schedule(1))
    assert (found.status, found.result, logged(found)) == ("SUCCESS", 2, ["RETRY", "SUCCESS"])


def test_ignore_cancels() -> None:
    found = ended(bodies.ignore.schedule())
    assert (found.status, found.reason, logged(found)) == ("CANCELLED", "IGNORED", ["CANCELLED"])


def test_reject_without_requeue_fails_finally() -> None:
    _spent(bodies.reject.schedule(False), "REJECTED", "FAILED")


def test_reject_with_requeue_retries() -> None:
    _spent(bodies.reject.schedule(True), "REJECTED", "RETRY", "FAILED")


def test_the_soft_limit_is_a_failure_of_the_body() -> None:
    found = _spent(bodies.over_soft_limit.schedule(), "EXHAUSTED", "FAILED")
    assert found.last_error.startswith("SoftTimeLimitExceeded")


@pytest.mark.smoke
def test_the_hard_limit_is_a_failure_recorded_by_the_parent() -> None:
    found = _spent(bodies.over_hard_limit.schedule(), "EXHAUSTED", "FAILED")
    assert found.last_error.startswith("TimeLimitExceeded")


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("how", "code", "crashes"),
    [
        ("sys.exit", 0, 2),
        ("sys.exit", 3, 1),
        ("os._exit", 0, 1),
        ("os._exit", 3, 1),
        ("SIGKILL", 0, 1),
        ("SIGSEGV", 0, 1),
    ],
)
def test_a_process_that_dies_under_the_body_uses_the_budget_of_crashes(
    how: str, code: int, crashes: int
) -> None:
    found = _spent(
        bodies.leave.using(max_crashes=crashes).schedule(how, code), "CRASHED", *["LOST"] * crashes
    )
    assert (found.crashes, found.failures) == (crashes, 0)
    _check_starts(found, crashes)


def test_a_process_that_dies_before_the_start_uses_the_budget_of_crashes_too() -> None:
    found = _spent(bodies.lose_before_the_start.schedule(), "CRASHED", "LOST", "LOST")
    assert (found.crashes, found.failures) == (2, 0)
    _check_starts(found, 2)


def test_a_lost_run_that_must_not_run_twice_is_a_dead_letter_at_once() -> None:
    _spent(bodies.leave_an_orphan.schedule(), "ORPHANED", "LOST")


@pytest.mark.parametrize("name", ["MemoryError", "RecursionError", "UnicodeError"])
def test_a_dangerous_exception_is_an_ordinary_failure(name: str) -> None:
    found = _spent(bodies.raise_named.schedule(name), "EXHAUSTED", "FAILED")
    assert found.last_error.startswith(name)


def test_an_exception_that_cannot_be_pickled_is_an_ordinary_failure() -> None:
    found = _spent(bodies.raise_unpicklable.schedule(), "EXHAUSTED", "FAILED")
    assert found.last_error == "Unwilling: no pickle for me"


def test_an_interrupt_in_the_body_is_recorded() -> None:
    found = ended(bodies.raise_named.using(max_crashes=1).schedule("KeyboardInterrupt"))
    assert (found.status, found.reason) in {("FAILED", "CRASHED"), ("FAILED", "EXHAUSTED")}


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("not json", "UnserializableResult"),
        ("too large", "ResultTooLarge"),
        ("wrong follow-up", "InvalidArguments"),
        ("unknown follow-up", "UnknownTask"),
    ],
)
def test_a_result_that_cannot_be_stored_is_a_named_failure(kind: str, error: str) -> None:
    found = ended(bodies.give_back.using(max_attempts=1).schedule(kind))
    assert found.status == "FAILED"
    assert found.last_error.startswith(error)
    assert _case(found).reason in {"GAVE_UP", "EXHAUSTED"}


def test_a_follow_up_is_created_with_the_success() -> None:
    found = ended(bodies.give_back.schedule("follow-up"))
    child = Task.objects.exclude(pk=found.pk).get()
    assert (found.status, ended(child).result) == ("SUCCESS", 3)


def test_a_cancel_request_is_seen_by_the_body_and_its_progress_is_written(tmp_path: Path) -> None:
    task = bodies.heed.using(key="heed").schedule(str(tmp_path))
    until(lambda: row(task).progress, within=30, message="the progress is written")
    assert row(task).progress == {"done": 1, "total": 3, "note": "waiting"}
    assert Task.objects.cancel("heed", by="anna") == 1
    found = ended(task)
    assert (found.status, logged(task)) == ("CANCELLED", ["CANCELLED"])


def test_the_log_names_the_worker_of_the_task(prefork: Cluster) -> None:
    found = ended(bodies.add.schedule(1, 1))
    assert found.executions.get().worker == prefork.programs[0].name


def test_none_of_these_endings_stopped_the_worker(prefork: Cluster) -> None:
    in_status(bodies.add.schedule(1, 1), "SUCCESS")
    assert all(program.alive() for program in prefork.programs)

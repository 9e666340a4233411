"""Batches with workers of each pool: every task of a batch runs and ends by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_durable_tasks.models import Task, TaskExecutionLog
from tests.processes.cluster import Cluster, cluster_in
from tests.processes.rows import all_ended, ended, lines, logged
from tests.project import batched, observed
from tests.waiting import until


@pytest.fixture(scope="module", params=["prefork", "threads", "solo"])
def pool(
    shared_database: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """One worker of this pool and one scheduler."""
    with cluster_in(tmp_path_factory.mktemp(request.param)) as cluster:
        cluster.worker(pool=request.param)
        cluster.scheduler()
        yield cluster.ready()


def test_every_task_of_many_runs_once_and_is_recorded(
    pool: Cluster, rows: None, tmp_path: Path
) -> None:
    notebook = tmp_path / "notes"
    ids = batched.note.schedule_many([(str(notebook), number) for number in range(300)])
    all_ended(300)
    assert Counter(lines(notebook)) == Counter(map(str, range(300)))
    assert Counter(Task.objects.values_list("status", "attempts")) == {("SUCCESS", 1): 300}
    assert TaskExecutionLog.objects.filter(status="SUCCESS").count() == 300
    row = Task.objects.get(pk=ids[7])
    assert row.result["id"] == str(row.pk)
    assert row.result["args"] == [str(notebook), 7]
    assert row.result["attempt"] == 1


def test_endings_of_every_kind_are_recorded_per_task(
    pool: Cluster, rows: None, tmp_path: Path
) -> None:
    failing = batched.fail_once.schedule(str(tmp_path / "fails"))
    again = batched.ask_again.schedule(str(tmp_path / "asks"))
    atomic = batched.atomically.schedule(5)
    following = batched.follow.schedule(8)
    assert ended(failing).result == "done"
    assert logged(failing) == ["RETRY", "SUCCESS"]
    ended(again)
    assert logged(again) == ["RETRY", "SUCCESS"]
    assert ended(atomic).result == 5
    ended(following)
    until(lambda: Task.objects.filter(name=batched.add.name, status="SUCCESS").exists(), within=40)


def test_signals_are_sent_for_each_task(pool: Cluster, rows: None, tmp_path: Path) -> None:
    notebook = tmp_path / "signals"
    for _ in range(2):
        batched.observed.schedule(str(notebook))
    all_ended(2)
    until(lambda: len(lines(notebook)) == 4, within=20)
    assert Counter(line.split()[0] for line in lines(notebook)) == {"success": 2, "postrun": 2}
    assert len({line.split()[1] for line in lines(notebook)}) == 2


def test_tasks_behind_a_slow_function_are_returned(
    pool: Cluster, rows: None, tmp_path: Path
) -> None:
    rows_ = [batched.hold.using(priority=9).schedule(str(tmp_path), 0)]
    rows_ += [batched.hold.schedule(str(tmp_path), number) for number in range(1, 9)]
    until(lambda: "0" in lines(tmp_path / "started"), within=40)
    slow = Task.objects.filter(pk=rows_[0].pk)

    def others_are_free() -> bool:
        others = Task.objects.exclude(pk=rows_[0].pk)
        return not others.filter(status="RUNNING").exists()

    until(others_are_free, within=20, message="no task waits in the process of the slow function")
    assert slow.get().status == "RUNNING"
    (tmp_path / "release").touch()
    all_ended(9)
    assert set(Task.objects.values_list("status", "failures", "crashes")) == {("SUCCESS", 0, 0)}
    assert list(TaskExecutionLog.objects.values_list("status", flat=True)) == ["SUCCESS"] * 9


def test_a_cancelled_task_of_a_batch_stops_alone(pool: Cluster, rows: None, tmp_path: Path) -> None:
    task = batched.until_cancelled.schedule(str(tmp_path))
    until(lambda: bool(lines(tmp_path / "started")), within=40)
    other = batched.add.schedule(1, 2)
    Task.objects.filter(pk=task.pk).cancel(by="bob", reason="enough")
    assert ended(task).status == "CANCELLED"
    assert ended(other).result == 3


@pytest.mark.parametrize("pool", ["prefork"], indirect=True)
def test_only_the_task_that_kills_its_process_uses_its_crash_budget(
    pool: Cluster, rows: None
) -> None:
    batched.kill_if.schedule_many([(number, 7) for number in range(30)])
    all_ended(30, within=90)
    found = Counter(Task.objects.values_list("status", "crashes"))
    assert found == {("SUCCESS", 0): 29, ("FAILED", 2): 1}
    deadly = Task.objects.get(status="FAILED")
    assert (deadly.args[0], logged(deadly)) == (7, ["LOST", "LOST", "LOST"])


def test_an_exception_that_would_end_the_process_ends_its_own_task(
    pool: Cluster, rows: None
) -> None:
    kinds = ["closes", "interrupts", "breaks", "exits", "fails", "retries", "rejects"]
    given = [(kind,) for kind in [*kinds, *["succeeds"] * 30]]
    observed.unhooked.using(max_attempts=1, max_crashes=1).schedule_many(given)

    def succeeded() -> bool:
        return int(Task.objects.filter(status="SUCCESS").count()) == 30

    until(succeeded, within=90, message="the other tasks of the batch ran")
    until(lambda: Task.objects.open().count() == 0, within=60, message="every task has ended")
    others = Task.objects.filter(status="SUCCESS")
    assert set(others.values_list("attempts", "failures", "crashes")) == {(1, 0, 0)}
    ends = {row.args[0]: row for row in Task.objects.exclude(status="SUCCESS")}
    assert {row.status for row in ends.values()} == {"FAILED"}
    assert {kind for kind, row in ends.items() if logged(row)[-1] == "LOST"} <= {"exits"}
    assert all(logged(ends[kind]) == ["FAILED"] for kind in kinds if kind != "exits")

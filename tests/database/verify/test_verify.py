"""``durable verify`` finds each damage, mends what can be mended, and has nothing to say of healthy
rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from django_durable_tasks.engine.verify import check as verify_check
from django_durable_tasks.engine.verify import runner
from django_durable_tasks.engine.verify.runner import CHECKS, RepairResult
from django_durable_tasks.models import (
    DeadLetter,
    OccurrenceRecord,
    RecurringTask,
    Task,
    TaskDependency,
    WorkflowRun,
)
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.verify import Finding, Severity
from tests.architecture.sources import ROOT
from tests.database.dependencies.worker_and_leader import of, recount, stands, succeed, tell
from tests.database.verify.corruptions import DAMAGES, FOR_PEOPLE, IN_REDIS
from tests.database.verify.healthy_rows import (
    a_fired_schedule,
    a_waiting_task,
    a_workflow,
    ago,
    an_ended_workflow,
    led,
    write_healthy_rows,
)
from tests.factories import a_log_row, a_task, many_tasks

pytestmark = pytest.mark.django_db


def _look(*only: str, **more: Any) -> list[Finding]:
    answers = runner.verify(runner.chosen(only), **more)
    assert not [answer.error for answer in answers if answer.error]
    return [finding for answer in answers for finding in answer.findings]


def _mend(*only: str) -> list[RepairResult]:
    return runner.repair(runner.verify(runner.chosen(only)))


def _texts(findings: Iterable[Finding]) -> list[str]:
    return [f"{finding.check}: {finding.text}" for finding in findings]


# All of them --------------------------------------------------------------------------------------


def test_healthy_rows_of_every_kind_have_no_finding() -> None:
    write_healthy_rows()
    assert _texts(_look()) == []
    answers = runner.verify()
    assert {answer.check.name: answer.looked_at for answer in answers}[
        "dead-letters-missing"
    ] == Task.objects.count()
    empty = {answer.check.name for answer in answers if not answer.looked_at and not answer.idle}
    assert empty <= {"orphan-overrides"}
    assert {answer.check.name for answer in answers if answer.idle} == IN_REDIS


def test_every_check_has_its_damage() -> None:
    assert set(DAMAGES) | IN_REDIS == set(CHECKS)
    assert {name for name, check in CHECKS.items() if check.repair is None} == FOR_PEOPLE


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_found_by_its_check(name: str) -> None:
    led()
    assert _texts(_look(name)) == []
    key = DAMAGES[name]()
    [finding] = _look(name)
    assert (finding.check, finding.key) == (name, key)
    assert str(key) in finding.text
    assert finding.field in finding.text
    assert finding.repair or finding.advice


@pytest.mark.parametrize("name", sorted(set(DAMAGES) - FOR_PEOPLE))
def test_each_damage_is_mended_with_all_that_follows_from_it(name: str) -> None:
    led()
    key = DAMAGES[name]()
    deeds = [deed for deed in _mend() if deed.finding.key == key and deed.finding.check == name]
    assert [(bool(deed.done), deed.left) for deed in deeds] == [(True, "")]
    assert _texts(_look()) == []
    assert _mend() == []
    tell()
    assert _texts(_look()) == []
    assert recount() == []


@pytest.mark.parametrize("name", sorted(FOR_PEOPLE))
def test_what_is_for_people_is_left_with_advice(name: str) -> None:
    led()
    key = DAMAGES[name]()
    assert [(deed.finding.key, deed.done) for deed in _mend(name)] == [(key, "")]
    assert all(deed.left for deed in _mend(name))
    assert [finding.key for finding in _look(name)] == [key]


def test_many_damages_at_once_are_all_mended() -> None:
    write_healthy_rows()
    found = {
        name: DAMAGES[name]()
        for name in ("dead-letters-missing", "attempts", "key-markers", "orphan-edges")
    }
    assert {finding.check: finding.key for finding in _look()} == found
    _mend()
    assert _texts(_look()) == []


# What moves while we look -------------------------------------------------------------------------


def test_a_suspicion_that_is_over_at_the_second_look_is_no_finding() -> None:
    check, key = CHECKS["dependency-counts"], DAMAGES["dependency-counts"]()
    suspects = check.judge(verify_check.read_context(), check.rows())
    assert [finding.key for finding in suspects] == [key]
    assert [finding.key for finding in check.confirmed(suspects, 10)] == [key]
    Task.objects.unguarded().filter(pk=key).update(unresolved_dependencies_count=1)
    assert check.confirmed(suspects, 10) == []


def test_what_is_right_by_the_time_of_the_repair_is_left_alone() -> None:
    DAMAGES["dependency-counts"]()
    answers = runner.verify(runner.chosen(["dependency-counts"]))
    Task.objects.unguarded().filter(status=Status.BLOCKED).update(
        unresolved_dependencies_count=1, epoch=9
    )
    assert [deed.done for deed in runner.repair(answers)] == ["it is correct meanwhile"]
    assert Task.objects.get(status=Status.BLOCKED).epoch == 9


@pytest.mark.parametrize(
    "name",
    [
        "expired-leases",
        "not-republished",
        "unpublished",
        "stuck-on-overlap",
        "nodes-without-heartbeat",
    ],
)
def test_nothing_is_called_late_under_a_reign_that_has_just_begun(name: str) -> None:
    led(since=10)
    DAMAGES[name]()
    assert _look(name) == []


def test_without_a_leader_silent_runs_are_told_and_left_to_the_next_one() -> None:
    row = a_task(Status.RUNNING, due=-600)
    [deed] = _mend("expired-leases")
    assert (deed.done, "No scheduler is the leader" in deed.left) == ("", True)
    assert Task.objects.get(pk=row.pk).status == "RUNNING"


# Graphs -------------------------------------------------------------------------------------------


def test_a_count_is_never_mended_by_an_edge_that_is_wrong_itself() -> None:
    led()
    edge = DAMAGES["edges-resolved-early"]()
    [deed] = _mend("dependency-counts")
    assert "repair the other findings" in deed.left
    assert stands(TaskDependency.objects.get(pk=edge).task_id) == ["BLOCKED"]
    _mend()
    assert stands(TaskDependency.objects.get(pk=edge).task_id) == ["BLOCKED"]
    assert recount() == []


def test_an_untold_edge_is_told_again_and_its_task_goes_on() -> None:
    led()
    edge = TaskDependency.objects.get(pk=DAMAGES["unresolved-edges"]())
    _mend()
    tell()
    assert stands(edge.task_id)[0] in ("PENDING", "QUEUED")


def test_an_upstream_that_is_gone_is_found_and_told_as_deleted() -> None:
    led()
    row = a_waiting_task()
    upstream = TaskDependency.objects.get(task=row).depends_on_id
    Task.objects.filter(pk=upstream)._raw_delete("default")
    assert "DELETED" in _look("unresolved-edges")[0].right
    _mend()
    tell()
    assert stands(row) == ["SKIPPED"]


def test_a_note_that_is_there_twice_is_counted_once() -> None:
    led()
    DAMAGES["duplicate-endings"]()
    _mend()
    tell()
    assert WorkflowRun.objects.get().succeeded == 1
    assert _look() == []


@pytest.mark.parametrize(
    ("column", "value"), [("total", 9), ("total", 1), ("failed", 1), ("succeeded", 0)]
)
def test_counts_of_an_ended_run_are_set_right(column: str, value: int) -> None:
    led()
    run = an_ended_workflow()
    WorkflowRun.objects.unguarded().filter(pk=run.pk).update(**{column: value})
    assert run.pk in {finding.key for finding in _look("workflow-counts")}
    _mend()
    run.refresh_from_db()
    assert (run.status, run.total, run.succeeded, run.failed) == ("SUCCESS", 2, 2, 0)
    assert _look() == []


def test_a_run_that_waits_for_a_task_which_was_deleted_ends() -> None:
    led()
    run = a_workflow()
    succeed(of(run, "first"))
    tell()
    Task.objects.unguarded().filter(workflow=run, step="second").delete()
    tell()
    assert [finding.field for finding in _look("workflow-counts")] == ["total"]
    _mend()
    run.refresh_from_db()
    assert (run.status, run.total) == ("SUCCESS", 1)


def test_an_ended_run_with_open_tasks_is_opened_again() -> None:
    led()
    run = a_workflow()
    WorkflowRun.objects.unguarded().filter(pk=run.pk).update(status="SUCCESS", completed_at=ago(1))
    [finding] = _look("workflow-status")
    assert "2 of its tasks are open" in finding.right
    _mend()
    run.refresh_from_db()
    assert (run.status, run.completed_at) == ("RUNNING", None)


def test_an_ended_run_whose_tasks_were_pruned_counts_what_is_not_there() -> None:
    led()
    run = an_ended_workflow()
    Task.objects.unguarded().filter(workflow=run).delete()
    assert _texts(_look()) == []


# Tasks --------------------------------------------------------------------------------------------


def test_a_dead_letter_that_is_opened_again_can_be_replayed() -> None:
    led()
    key = DAMAGES["dead-letters-missing"]()
    _mend()
    letter = DeadLetter.objects.get(open_task=key)
    assert (letter.reason, letter.error_message) == ("EXHAUSTED", "Broken: broken")


def test_an_older_discarded_letter_does_not_stand_for_a_later_failure() -> None:
    row = a_task(Status.FAILED)
    DeadLetter.objects.unguarded().filter(task=row).update(
        open_task=None, resolution="DISCARDED", created_at=ago(600)
    )
    assert [finding.key for finding in _look("dead-letters-missing")] == [row.pk]


def test_an_attempt_that_ended_twice_is_for_people() -> None:
    row = a_task(Status.SUCCESS)
    a_log_row(row, "FAILED", attempt_number=1)
    [deed] = _mend("attempts")
    assert (deed.done, "ended twice" in deed.left) == ("", True)


def test_a_fenced_ending_and_an_operators_word_are_no_second_ending() -> None:
    row = a_task(Status.SUCCESS)
    a_log_row(row, "FENCED", attempt_number=1)
    a_log_row(row, "SUCCESS", attempt_number=1, run_id=None)
    assert _look("attempts") == []


def test_a_key_that_another_open_task_holds_is_not_given_back() -> None:
    a_task(key="k")
    row = a_task(key="k", open_key=None)
    [deed] = _mend("key-markers")
    assert (deed.finding.key, deed.done) == (row.pk, "")
    assert Task.objects.get(pk=row.pk).open_key is None


def test_a_started_row_may_have_given_its_key_up() -> None:
    a_task(Status.RUNNING, key="k", open_key=None)
    assert _look("key-markers") == []


def test_a_backlog_that_moves_is_not_unpublished() -> None:
    led()
    many_tasks(3, due=-600)
    assert len(_look("unpublished")) == 3
    a_task(Status.RUNNING)
    assert _look("unpublished") == []


def test_of_a_free_slot_the_oldest_goes_on_and_the_others_wait() -> None:
    led()
    first, second = DAMAGES["stuck-on-overlap"](), DAMAGES["stuck-on-overlap"]()
    assert len(_mend("stuck-on-overlap")) == 2
    assert [Task.objects.get(pk=key).is_waiting for key in (first, second)] == [False, True]
    assert _look("stuck-on-overlap") == []


# Recurring ----------------------------------------------------------------------------------------


def test_a_next_fire_that_was_lost_is_computed_anew() -> None:
    row = a_fired_schedule()
    right = row.next_run_at
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(next_run_at=None)
    _mend("watermarks")
    row.refresh_from_db()
    assert row.next_run_at == right


def test_a_watermark_in_the_future_is_set_back() -> None:
    row = a_fired_schedule()
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(watermark_at=ago(-90_000))
    assert [finding.field for finding in _look("watermarks")] == ["watermark_at"]
    _mend("watermarks")
    assert _look("watermarks") == []
    row.refresh_from_db()
    assert row.next_run_at is not None
    assert row.next_run_at < ago(-3_700)


def test_a_row_that_cannot_be_read_is_for_people() -> None:
    row = a_fired_schedule()
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(timetable=[{"kind": "nonsense"}])
    [deed] = _mend("watermarks")
    assert (deed.finding.field, deed.done) == ("timetable", "")


def test_a_fire_time_that_ran_twice_is_for_people() -> None:
    row = a_fired_schedule()
    born = Task.objects.get(recurring_task=row)
    second = a_task(recurring_task=row, fire_time=born.fire_time)
    [deed] = _mend("occurrence-entries")
    assert (deed.finding.key, "ran twice" in deed.left) == (second.pk, True)
    assert OccurrenceRecord.objects.filter(recurring_task=row).count() == 1


def test_a_line_without_its_task_gets_it_again() -> None:
    row = a_fired_schedule()
    OccurrenceRecord.objects.unguarded().filter(recurring_task=row).update(task=None)
    assert {finding.check for finding in _look("recurring")} == {
        "occurrence-tasks",
        "occurrence-entries",
    }
    _mend("recurring")
    assert _look("recurring") == []


# Words --------------------------------------------------------------------------------------------


def test_a_finding_says_row_field_value_and_what_is_right() -> None:
    key = DAMAGES["dependency-counts"]()
    [finding] = _look("dependency-counts")
    right = "right is 1, according to its edges."
    assert finding.text == f"task {key}: unresolved_dependencies_count is 7; {right}"
    assert finding.severity == Severity.BROKEN


def test_the_page_shows_every_check_as_it_is() -> None:
    page = (ROOT / "docs" / "how-to" / "verify.md").read_text(encoding="utf-8")
    for check in CHECKS.values():
        repairs = "no" if check.repair is None else "yes"
        assert f"| `{check.name}` | {check.group} | {check.question} | {repairs} |\n" in page

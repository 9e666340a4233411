"""``durable verify`` finds each corruption, repairs what can be repaired, and reports nothing for
healthy rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.choices import OPEN, Status
from django_durable_tasks.contrib.verify import check as verify_check
from django_durable_tasks.contrib.verify import runner
from django_durable_tasks.contrib.verify.check import Finding, Severity
from django_durable_tasks.contrib.verify.runner import CHECKS, RepairResult
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import (
    DeadLetter,
    EndingEvent,
    Node,
    NodeKind,
    OccurrenceRecord,
    RecurringTask,
    Task,
    TaskDependency,
    WorkflowRun,
)
from django_durable_tasks.task_values import shard_of
from tests.architecture.sources import ROOT
from tests.database.dependencies.worker_and_leader import (
    of,
    recount,
    resolve_all,
    statuses,
    succeed,
)
from tests.database.verify.corruptions import DAMAGES, FOR_PEOPLE
from tests.database.verify.healthy_rows import (
    a_fired_schedule,
    a_waiting_task,
    a_workflow,
    ago,
    an_ended_workflow,
    led,
    write_healthy_rows,
)
from tests.factories import a_log_row, a_node, a_task, many_tasks

pytestmark = pytest.mark.django_db


def _find(*only: str, **more: Any) -> list[Finding]:
    answers = runner.run(runner.chosen(only), **more)
    assert not [answer.error for answer in answers if answer.error]
    return [finding for answer in answers for finding in answer.findings]


def _repair(*only: str) -> list[RepairResult]:
    return runner.repair(runner.run(runner.chosen(only)))


def _texts(findings: Iterable[Finding]) -> list[str]:
    return [f"{finding.check}: {finding.text}" for finding in findings]


# All of them --------------------------------------------------------------------------------------


def test_healthy_rows_of_every_kind_have_no_finding() -> None:
    write_healthy_rows()
    assert _texts(_find()) == []
    answers = runner.run()
    assert {answer.check.name: answer.looked_at for answer in answers}[
        "dead-letters-missing"
    ] == Task.objects.count()
    assert [answer.check.name for answer in answers if not answer.looked_at] == []


def test_every_check_has_a_corruption() -> None:
    assert set(DAMAGES) == set(CHECKS)
    assert {name for name, check in CHECKS.items() if check.repair is None} == FOR_PEOPLE


@pytest.mark.parametrize("name", DAMAGES)
def test_each_corruption_is_found_by_its_check(name: str) -> None:
    led()
    assert _texts(_find(name)) == []
    key = DAMAGES[name]()
    [finding] = _find(name)
    assert (finding.check, finding.key) == (name, key)
    assert str(key) in finding.text
    assert finding.field in finding.text
    assert finding.repair or finding.advice


@pytest.mark.parametrize("name", sorted(set(DAMAGES) - FOR_PEOPLE))
def test_each_corruption_is_repaired_with_all_consequences(name: str) -> None:
    led()
    key = DAMAGES[name]()
    deeds = [deed for deed in _repair() if deed.finding.key == key and deed.finding.check == name]
    assert [(bool(deed.done), deed.left) for deed in deeds] == [(True, "")]
    assert _texts(_find()) == []
    resolve_all()
    assert _texts(_find()) == []
    assert recount() == []


@pytest.mark.parametrize("name", sorted(FOR_PEOPLE))
def test_findings_without_automatic_repair_are_left_with_advice(name: str) -> None:
    led()
    key = DAMAGES[name]()
    assert [(deed.finding.key, deed.done) for deed in _repair(name)] == [(key, "")]
    assert all(deed.left for deed in _repair(name))
    assert [finding.key for finding in _find(name)] == [key]


def test_many_corruptions_at_once_are_all_repaired() -> None:
    write_healthy_rows()
    found = {
        name: DAMAGES[name]()
        for name in ("dead-letters-missing", "attempts", "key-markers", "orphan-edges")
    }
    assert {finding.check: finding.key for finding in _find()} == found
    _repair()
    assert _texts(_find()) == []


# Concurrent changes -------------------------------------------------------------------------------


def test_a_suspicion_that_the_second_read_does_not_confirm_is_no_finding() -> None:
    check, key = CHECKS["dependency-counts"], DAMAGES["dependency-counts"]()
    suspects = check.find(verify_check.read_context(), verify_check.rows_of(check.model))
    assert [finding.key for finding in suspects] == [key]
    assert [finding.key for finding in check.confirmed(suspects, 10)] == [key]
    Task.objects.unguarded().filter(pk=key).update(unresolved_dependencies_count=1)
    assert check.confirmed(suspects, 10) == []


def test_a_row_that_became_correct_before_the_repair_is_left_unchanged() -> None:
    DAMAGES["dependency-counts"]()
    answers = runner.run(runner.chosen(["dependency-counts"]))
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
def test_nothing_counts_as_late_in_a_term_that_has_just_begun(name: str) -> None:
    led(since=10)
    DAMAGES[name]()
    assert _find(name) == []


def test_without_a_leader_silent_runs_are_reported_and_left_to_the_next_one() -> None:
    row = a_task(Status.RUNNING, due=-600)
    [deed] = _repair("expired-leases")
    assert (deed.done, "No scheduler is the leader" in deed.left) == ("", True)
    assert Task.objects.get(pk=row.pk).status == "RUNNING"


# Dependencies -------------------------------------------------------------------------------------


def test_a_count_is_never_repaired_from_an_edge_that_is_wrong_itself() -> None:
    led()
    edge = DAMAGES["edges-resolved-early"]()
    [deed] = _repair("dependency-counts")
    assert "repair the other findings" in deed.left
    assert statuses(TaskDependency.objects.get(pk=edge).task_id) == ["BLOCKED"]
    _repair()
    assert statuses(TaskDependency.objects.get(pk=edge).task_id) == ["BLOCKED"]
    assert recount() == []


def test_an_unresolved_edge_is_resolved_and_its_task_continues() -> None:
    led()
    edge = TaskDependency.objects.get(pk=DAMAGES["unresolved-edges"]())
    _repair()
    resolve_all()
    assert statuses(edge.task_id)[0] in ("PENDING", "QUEUED")


def test_a_missing_upstream_is_found_and_resolved_as_deleted() -> None:
    led()
    row = a_waiting_task()
    upstream = TaskDependency.objects.get(task=row).depends_on_id
    assert upstream is not None
    Task.objects.filter(pk=upstream)._raw_delete("default")
    assert "DELETED" in _find("unresolved-edges")[0].right
    _repair()
    resolve_all()
    assert statuses(row) == ["SKIPPED"]


def test_a_duplicate_ending_event_is_counted_once() -> None:
    led()
    DAMAGES["duplicate-endings"]()
    _repair()
    resolve_all()
    assert WorkflowRun.objects.get().succeeded == 1
    assert _find() == []


@pytest.mark.parametrize(
    ("column", "value"), [("total", 9), ("total", 1), ("failed", 1), ("succeeded", 0)]
)
def test_counts_of_an_ended_run_are_corrected(column: str, value: int) -> None:
    led()
    run = an_ended_workflow()
    WorkflowRun.objects.unguarded().filter(pk=run.pk).update(**{column: value})
    assert run.pk in {finding.key for finding in _find("workflow-counts")}
    _repair()
    run.refresh_from_db()
    assert (run.status, run.total, run.succeeded, run.failed) == ("SUCCESS", 2, 2, 0)
    assert _find() == []


def test_a_run_that_waits_for_a_deleted_task_ends() -> None:
    led()
    run = a_workflow()
    succeed(of(run, "first"))
    resolve_all()
    Task.objects.unguarded().filter(workflow=run, step="second").delete()
    resolve_all()
    assert [finding.field for finding in _find("workflow-counts")] == ["total"]
    _repair()
    run.refresh_from_db()
    assert (run.status, run.total) == ("SUCCESS", 1)


def test_an_ended_run_with_open_tasks_is_reopened() -> None:
    led()
    run = a_workflow()
    WorkflowRun.objects.unguarded().filter(pk=run.pk).update(status="SUCCESS", completed_at=ago(1))
    [finding] = _find("workflow-status")
    assert "2 of its tasks are open" in finding.right
    _repair()
    run.refresh_from_db()
    assert (run.status, run.completed_at) == ("RUNNING", None)


def test_an_ended_run_whose_tasks_were_pruned_counts_missing_tasks() -> None:
    led()
    run = an_ended_workflow()
    Task.objects.unguarded().filter(workflow=run).delete()
    assert _texts(_find()) == []


# Tasks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "attempts", "marker", "right"),
    [
        *((status, 0, "k", "k" if status in OPEN else None) for status in Status),
        *((status, 1, None, None) for status in Status),
        ("PENDING", 0, None, "k"),
        ("PENDING", 1, "other", "k"),
        ("PENDING", 1, "k", "k"),
    ],
)
def test_only_open_tasks_have_a_marker_and_only_those_that_never_started_must(
    status: Status, attempts: int, marker: str | None, right: str | None
) -> None:
    key = a_task(status, key="k", attempts=attempts).pk
    Task.objects.unguarded().filter(pk=key).update(open_key=marker)
    assert [finding.found for finding in _find("key-markers")] == [marker] * (marker != right)
    _repair("key-markers")
    assert Task.objects.get(pk=key).open_key == right


@pytest.mark.parametrize("status", Status)
def test_ended_tasks_have_an_end_time_and_open_ones_do_not(status: Status) -> None:
    key = a_task(status).pk
    ended = status not in OPEN
    Task.objects.unguarded().filter(pk=key).update(completed_at=None if ended else ago(1))
    assert [finding.key for finding in _find("completion-times")] == [key]
    _repair("completion-times")
    assert (Task.objects.get(pk=key).completed_at is not None) == ended


@pytest.mark.parametrize(
    ("status", "attempts", "right"),
    [("RUNNING", 3, 3), ("RUNNING", 2, 3), ("PENDING", 1, 2), ("PENDING", 2, 2), ("PENDING", 9, 9)],
)
def test_attempts_are_at_least_those_of_the_log(status: str, attempts: int, right: int) -> None:
    task = a_task(Status(status), attempts=attempts)
    for number in (1, 2):
        a_log_row(task, "RETRY", attempt_number=number)
    _repair("attempts")
    assert Task.objects.get(pk=task.pk).attempts == right
    assert _find("attempts") == []


def test_a_reopened_dead_letter_can_be_replayed() -> None:
    led()
    key = DAMAGES["dead-letters-missing"]()
    _repair()
    letter = DeadLetter.objects.get(open_task=key)
    assert (letter.reason, letter.error_message) == ("EXHAUSTED", "Broken: broken")


def test_an_older_discarded_dead_letter_does_not_cover_a_later_failure() -> None:
    row = a_task(Status.FAILED)
    DeadLetter.objects.unguarded().filter(task=row).update(
        open_task=None, resolution="DISCARDED", created_at=ago(600)
    )
    assert [finding.key for finding in _find("dead-letters-missing")] == [row.pk]


def test_an_attempt_that_ended_twice_is_not_repaired() -> None:
    row = a_task(Status.SUCCESS)
    a_log_row(row, "FAILED", attempt_number=1)
    [deed] = _repair("attempts")
    assert (deed.done, "ended twice" in deed.left) == ("", True)


def test_a_fenced_ending_and_a_force_complete_are_not_a_second_ending() -> None:
    row = a_task(Status.SUCCESS)
    a_log_row(row, "FENCED", attempt_number=1)
    a_log_row(row, "SUCCESS", attempt_number=1, run_id=None)
    assert _find("attempts") == []


def test_a_key_of_another_open_task_is_not_restored() -> None:
    a_task(key="k")
    row = a_task(key="k", open_key=None)
    [deed] = _repair("key-markers")
    assert (deed.finding.key, deed.done) == (row.pk, "")
    assert Task.objects.get(pk=row.pk).open_key is None


def test_a_started_task_may_have_given_up_its_key() -> None:
    a_task(Status.RUNNING, key="k", open_key=None)
    assert _find("key-markers") == []


def test_a_progressing_backlog_is_not_unpublished() -> None:
    led()
    many_tasks(3, due=-600)
    assert len(_find("unpublished")) == 3
    a_task(Status.RUNNING)
    assert _find("unpublished") == []


def test_of_a_free_overlap_key_the_oldest_continues_and_the_others_wait() -> None:
    led()
    first, second = DAMAGES["stuck-on-overlap"](), DAMAGES["stuck-on-overlap"]()
    assert len(_repair("stuck-on-overlap")) == 2
    assert [Task.objects.get(pk=key).is_waiting for key in (first, second)] == [False, True]
    assert _find("stuck-on-overlap") == []


# Recurring ----------------------------------------------------------------------------------------


def test_a_lost_next_fire_is_computed_again() -> None:
    row = a_fired_schedule()
    right = row.next_run_at
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(next_run_at=None)
    _repair("watermarks")
    row.refresh_from_db()
    assert row.next_run_at == right


def test_a_watermark_in_the_future_is_set_back() -> None:
    row = a_fired_schedule()
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(watermark_at=ago(-90_000))
    assert [finding.field for finding in _find("watermarks")] == ["watermark_at"]
    _repair("watermarks")
    assert _find("watermarks") == []
    row.refresh_from_db()
    assert row.next_run_at is not None
    assert row.next_run_at < ago(-3_700)


def test_an_unreadable_row_is_not_repaired() -> None:
    row = a_fired_schedule()
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(timetable=[{"kind": "nonsense"}])
    [deed] = _repair("watermarks")
    assert (deed.finding.field, deed.done) == ("timetable", "")


def test_a_fire_time_that_ran_twice_is_not_repaired() -> None:
    row = a_fired_schedule()
    created = Task.objects.get(recurring_task=row)
    second = a_task(recurring_task=row, fire_time=created.fire_time)
    [deed] = _repair("occurrence-entries")
    assert (deed.finding.key, "ran twice" in deed.left) == (second.pk, True)
    assert OccurrenceRecord.objects.filter(recurring_task=row).count() == 1


def test_a_missing_task_of_a_ledger_entry_is_created_again() -> None:
    row = a_fired_schedule()
    OccurrenceRecord.objects.unguarded().filter(recurring_task=row).update(task=None)
    assert {finding.check for finding in _find("recurring")} == {
        "occurrence-tasks",
        "occurrence-entries",
    }
    _repair("recurring")
    assert _find("recurring") == []


# Texts --------------------------------------------------------------------------------------------


def test_a_finding_contains_row_field_value_and_correction() -> None:
    key = DAMAGES["dependency-counts"]()
    [finding] = _find("dependency-counts")
    right = "right is 1, according to its edges."
    assert finding.text == f"task {key}: unresolved_dependencies_count is 7; {right}"
    assert finding.severity == Severity.BROKEN


def test_the_documentation_lists_every_check() -> None:
    page = (ROOT / "docs" / "how-to" / "verify.md").read_text(encoding="utf-8")
    for check in CHECKS.values():
        repairs = "no" if check.repair is None else "yes"
        assert f"| `{check.name}` | {check.group} | {check.question} | {repairs} |\n" in page


# ``durable verify`` reads every row once, in pages, within its limit.


def test_every_row_is_read_once_whatever_the_page_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = many_tasks(7, Status.FAILED)
    DeadLetter.objects.unguarded().all().delete()
    monkeypatch.setattr(verify_check, "PAGE", 3)
    reported: list[tuple[str, float]] = []
    [answer] = runner.run(
        runner.chosen(["dead-letters-missing"]),
        progress=lambda table, part: reported.append((table, part)),
    )
    assert [finding.key for finding in answer.findings] == [row.pk for row in rows]
    assert answer.looked_at == 7
    assert [table for table, _ in reported] == ["tasks"] * 3
    assert reported[-1][1] == 1.0
    assert [part for _, part in reported] == sorted(part for _, part in reported)


def test_the_limit_ends_the_search() -> None:
    many_tasks(5, Status.FAILED)
    DeadLetter.objects.unguarded().all().delete()
    [answer] = runner.run(runner.chosen(["dead-letters-missing"]), limit=2)
    assert (len(answer.findings), answer.more) == (2, True)
    [answer] = runner.run(runner.chosen(["dead-letters-missing"]), limit=5)
    assert (len(answer.findings), answer.more) == (5, False)


def test_the_number_of_statements_does_not_grow_with_the_rows() -> None:
    led()
    numbers = []
    for _ in range(2):
        for _ in range(10):
            _write_one_of_each()
        with CaptureQueriesContext(connection) as captured:
            assert [answer.findings for answer in runner.run() if answer.findings] == []
        numbers.append(len(captured))
    assert numbers[0] == numbers[1]


def _write_one_of_each() -> None:
    """Create a task of most statuses, a blocked one, and an ending event."""
    for status in set(Status) - {Status.BLOCKED}:
        a_task(status, due=3_600 if status == Status.PENDING else None)
    a_waiting_task()
    EndingEvent.objects.create(task_id=a_task(Status.SUCCESS).pk, epoch=3, status="SUCCESS")


def test_checks_are_selected_by_name_and_group_and_an_unknown_one_is_refused_with_the_nearest() -> (
    None
):
    assert [check.name for check in runner.chosen(["attempts"])] == ["attempts"]
    assert {check.group for check in runner.chosen(["orphans", "attempts"])} == {"orphans", "tasks"}
    with pytest.raises(InvalidOption, match="Did you mean 'watermarks'"):
        runner.chosen(["watermark"])


# ``durable verify`` of the shards: each task is in its own shard, and each shard is served.


def test_a_task_in_a_wrong_shard_is_moved_and_an_ended_one_stays() -> None:
    wrong, ended = DAMAGES["shard-keys"](), a_task(Status.SUCCESS)
    Task.objects.unguarded().filter(pk=ended.pk).update(shard_key=99)
    [deed] = _repair("shard-keys")
    assert (deed.finding.key, deed.done) == (wrong, "written")
    assert Task.objects.get(pk=wrong).shard_key == shard_of(wrong)
    assert Task.objects.get(pk=ended.pk).shard_key == 99


@pytest.mark.parametrize(
    "other",
    [
        {"started_at": 0.0},
        {"started_at": 1_000.0, "stopped": 5.0},
        {"started_at": 1_000.0, "shards": list(range(40, 64)), "keeps_to_shards": True},
    ],
)
def test_shards_that_will_be_served_in_a_moment_are_not_unserved(other: dict[str, Any]) -> None:
    DAMAGES["unserved-shards"]()
    assert [finding.found for finding in _find("unserved-shards")] == ["48-63"]
    fields = {**other, "started_at": ago(other["started_at"])}
    a_node(NodeKind.SCHEDULER, region="south", **fields)
    assert _find("unserved-shards") == []


def test_shards_of_a_region_without_schedulers_are_not_reported() -> None:
    DAMAGES["unserved-shards"]()
    Node.objects.filter(region="south").update(last_seen_at=ago(1_000))
    assert _find("unserved-shards") == []


@pytest.mark.parametrize(
    "moved", [{"draining": True}, {"started_at": 0.0}, {"seen": 1_000.0}, {"stopped": 5.0}]
)
def test_an_assignment_is_not_checked_while_nodes_join_or_leave(moved: dict[str, Any]) -> None:
    node = DAMAGES["shard-maps"]()
    [finding] = _find("shard-maps")
    assert (finding.key, finding.found, finding.right.partition(",")[0]) == (
        node,
        "32-39,63",
        "32-63",
    )
    fields: dict[str, Any] = {"region": "north", "started_at": 1_000.0} | moved
    a_node(NodeKind.SCHEDULER, **{**fields, "started_at": ago(fields["started_at"])})
    assert _find("shard-maps") == []


def test_a_scheduler_of_another_release_is_not_checked_by_the_assignment_of_this_one() -> None:
    node = DAMAGES["shard-maps"]()
    assert [finding.key for finding in _find("shard-maps")] == [node]
    Node.objects.filter(pk=node).update(version="0.0.9")
    assert _find("shard-maps") == []

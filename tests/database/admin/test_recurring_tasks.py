"""The list and the pages of recurring tasks: fire times, their outcomes and the reasons."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_durable_tasks.admin import display, recurring_tasks
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, SchedulerLease, Task
from django_durable_tasks.store.clock import database_now
from tests.database.admin.site import list_of, page_of, staff, text
from tests.database.recurring.schedules import a_schedule, at, fire
from tests.factories import a_task, a_tenant
from tests.project import tasks

pytestmark = pytest.mark.django_db


def _names(ann: Client, **asked: str) -> list[str]:
    return [row.name for row in ann.get(list_of("recurringtask"), asked).context["cl"].result_list]


def a_ledger_entry(
    row: RecurringTask, ago: float, outcome: str = "DISPATCHED", **values: Any
) -> OccurrenceRecord:
    """Insert a ledger entry for a fire time `ago` seconds before now."""
    fire_time = database_now() - timedelta(seconds=ago)
    alone = (
        {}
        if values.get("last_fire_time") or values.get("request_id")
        else {"unique_fire_time": fire_time}
    )
    ledger: Any = OccurrenceRecord.objects.unguarded()
    entry: OccurrenceRecord = ledger.create(
        **{"recurring_task": row, "fire_time": fire_time, "outcome": outcome, **alone, **values}
    )
    return entry


def test_the_list_describes_the_schedule_and_the_outcomes_of_its_last_fire_times(
    ann: Client,
) -> None:
    row = a_schedule(
        "nightly", cron="30 2 * * *", timezone="Europe/Berlin", task=tasks.add, args=[1, 2]
    )
    a_ledger_entry(row, 300, task=a_task("FAILED"))
    a_ledger_entry(row, 200, "SKIPPED_OVERLAP")
    a_ledger_entry(row, 100, "MISSED", last_fire_time=database_now(), count=61)
    page = ann.get(list_of("recurringtask"))
    content = text(page)
    assert "nightly" in content
    assert "every day at 02:30 Europe/Berlin" in content
    assert "61 missed 1 skipped" in content
    marks = [mark.word for mark in page.context["cl"].result_list[0].recent.marks]
    assert marks == ["FAILED", "SKIPPED_OVERLAP", "MISSED"]


def test_a_mark_of_a_range_or_of_a_pruned_task_names_the_outcome(ann: Client) -> None:
    row = a_schedule()
    a_ledger_entry(row, 90_000, "MISSED")
    gone = a_task("SUCCESS")
    a_ledger_entry(row, 10, task=gone)
    Task.objects.unguarded().all().delete()
    recent = ann.get(list_of("recurringtask")).context["cl"].result_list[0].recent
    assert [mark.word for mark in recent.marks] == ["MISSED", "DISPATCHED"]
    assert recent.missed == 0


def test_more_entries_than_are_read_are_shown_as_at_least(ann: Client) -> None:
    row = a_schedule()
    for number in range(105):
        a_ledger_entry(row, 1000 - number, "SKIPPED_OVERLAP")
    recent = ann.get(list_of("recurringtask")).context["cl"].result_list[0].recent
    assert (recent.skipped, recent.exact, len(recent.marks)) == (100, False, 7)
    assert "≥ 100 skipped" in text(ann.get(list_of("recurringtask")))


def _schedules_in_every_condition() -> None:
    late, soon = a_schedule("late"), a_schedule("soon")
    RecurringTask.objects.unguarded().filter(pk=soon.pk).update(
        next_run_at=database_now() + timedelta(minutes=5)
    )
    bad = a_schedule("bad")
    RecurringTask.objects.unguarded().filter(pk=bad.pk).update(
        status="PAUSED",
        status_reason="QUARANTINED",
        error="InvalidSchedule: token=abc",
        next_run_at=None,
    )
    snoozed, ended, gone = (
        a_schedule("snoozed"),
        a_schedule("ended"),
        a_schedule("gone", start_time=at(days=99_999)),
    )
    RecurringTask.objects.unguarded().filter(pk=snoozed.pk).update(
        status="PAUSED", paused_until=at(days=9_999)
    )
    RecurringTask.objects.unguarded().filter(pk=ended.pk).update(
        status="CANCELLED", status_reason="MAX_RUNS", next_run_at=None
    )
    RecurringTask.objects.unguarded().filter(pk=gone.pk).update(
        undeclared_at=database_now(), source="code"
    )
    RecurringTask.objects.unguarded().filter(pk=late.pk).update(tenant=a_tenant())


def test_schedules_are_filtered_by_condition_source_status_and_tenant(ann: Client) -> None:
    _schedules_in_every_condition()
    tenant = RecurringTask.objects.get(name="late").tenant
    asked = {
        "late": "late",
        "quarantined": "bad",
        "snoozed": "snoozed",
        "ended": "ended",
        "undeclared": "gone",
    }
    for condition, name in asked.items():
        assert _names(ann, condition=condition) == [name], condition
    assert _names(ann, condition="soon") == ["soon", "late"]
    assert _names(ann, condition="nonsense") == []
    assert _names(ann, source="code") == ["gone"]
    assert "gone" not in _names(ann, source="hand")
    assert _names(ann, status__exact="CANCELLED") == ["ended"]
    assert _names(ann, tenant=str(tenant.pk)) == ["late"]
    assert "token=abc" not in text(ann.get(list_of("recurringtask")))


def test_a_schedule_is_found_by_id_name_and_task_name(ann: Client) -> None:
    row = a_schedule("billing-nightly", task=tasks.add, args=[1, 2])
    a_schedule("other")
    for term in (str(row.pk), row.pk.hex, "nightly", "NIGHT", " billing ", "tasks.add"):
        assert _names(ann, q=term) == ["billing-nightly"], term
    assert _names(ann, q="%") == []


def test_the_page_shows_the_next_fires_on_both_clocks_with_their_badges(ann: Client) -> None:
    row = a_schedule("berlin", cron="30 2 * * *", timezone="Europe/Berlin")
    content = text(ann.get(page_of(row)))
    assert "Next fire times in time zone Europe/Berlin" in content
    page = ann.get(page_of(row))
    fires = page.context["fires"]
    assert len(fires) == 10
    assert all(" 02:30:00 CE" in fire["local"] or fire["remarks"] for fire in fires)
    assert all(fire["utc"].endswith("Z") for fire in fires)


def test_the_page_shows_the_ledger_with_tasks_and_reasons(ann: Client) -> None:
    row = a_schedule(misfire_grace=5)
    fire(at(3600 + 30))
    page = ann.get(page_of(row))
    content = text(page)
    assert "COALESCED" in content
    assert "caught up" in content
    assert [line["line"].outcome for line in page.context["lines"]] == ["DISPATCHED", "MISSED"]
    task = Task.objects.get()
    assert page_of(task) in page.content.decode()
    told_of_task = ann.get(page_of(task))
    assert page_of(row) in told_of_task.content.decode()
    assert "Recurring task: nightly" in text(told_of_task)


def test_a_user_without_permission_for_the_ledger_sees_none_of_it(ann: Client) -> None:
    row = a_schedule()
    fire(at(1))
    page = staff("view_recurringtask").get(page_of(row))
    assert page.status_code == 200
    assert page.context["lines"] == []
    assert "DISPATCHED" not in text(page)


def test_the_page_explains_why_it_did_not_run(ann: Client) -> None:
    row = a_schedule(timezone="Europe/Berlin")
    fire(at(1))
    page = ann.get(page_of(row), {"at": "2026-03-02 10:00"})
    assert page.context["answer"] == row.explain(at(0))
    assert page.context["answer"] in text(page)
    assert "Give a time as 2026-03-08 02:30" in text(ann.get(page_of(row), {"at": "yesterday"}))


def test_a_wall_time_that_occurs_twice_or_never_needs_an_offset(ann: Client) -> None:
    row = a_schedule(timezone="Europe/Berlin")
    assert "occurs twice" in text(ann.get(page_of(row), {"at": "2026-10-25 02:30"}))
    assert "does not exist" in text(ann.get(page_of(row), {"at": "2026-03-29 02:30"}))
    assert ann.get(page_of(row), {"at": "2026-10-25T02:30+01:00"}).context["answer"]


def test_a_corrupted_schedule_can_be_opened_and_shows_its_error(ann: Client) -> None:
    row = a_schedule()
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(
        timetable=[{"interval": "x"}], revision=row.revision + 1
    )
    assert ann.get(list_of("recurringtask")).status_code == 200
    content = text(ann.get(page_of(row)))
    assert "Its fire times cannot be computed." in content
    asked = ann.get(page_of(row), {"at": "2026-03-02 09:00"})
    assert asked.status_code == 200
    assert "cannot fire at all" in asked.context["answer"]


def test_arguments_are_masked_without_permission_for_secrets(ann: Client) -> None:
    row = a_schedule(task=tasks.echo, kwargs={"password": "swordfish", "day": "monday"})
    masked = staff("view_recurringtask").get(page_of(row)).content.decode()
    assert "swordfish" not in masked
    assert "monday" in masked
    assert "swordfish" in ann.get(page_of(row)).content.decode()


def test_the_ledger_of_one_schedule_is_read_in_slices(
    ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurring_tasks, "OF_ONE", 4)
    row, other = a_schedule("one"), a_schedule("other")
    lines = [
        a_ledger_entry(row, 100 * number, "MISSED" if number % 2 else "DISPATCHED")
        for number in range(5)
    ]
    lines += [a_ledger_entry(row, 50, "MISSED", last_fire_time=database_now(), count=3)]
    a_ledger_entry(other, 1)
    page = ann.get(list_of("occurrencerecord"), {"schedule": str(row.pk)})
    assert [line.pk for line in page.context["cl"].result_list] == [
        lines[one].pk for one in (0, 5, 1, 2)
    ]
    choices = {title: value for value, title in page.context["cl"].filter_specs[1].lookup_choices}
    older = choices[f"one, {display.instant(lines[2].fire_time)}"]
    page = ann.get(list_of("occurrencerecord"), {"schedule": older})
    assert [line.pk for line in page.context["cl"].result_list] == [
        lines[one].pk for one in (2, 3, 4)
    ]
    page = ann.get(list_of("occurrencerecord"), {"schedule": older, "outcome": "unrun"})
    assert [line.pk for line in page.context["cl"].result_list] == [lines[3].pk]
    naive = f"{row.pk},2026-01-01T00:00:00"
    assert not ann.get(list_of("occurrencerecord"), {"schedule": naive}).context["cl"].result_count


def test_without_a_schedule_an_outcome_is_searched_in_the_newest_entries(
    ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = a_schedule()
    lines = [a_ledger_entry(row, 100 - number, "EXPIRED") for number in range(5)]
    monkeypatch.setattr(recurring_tasks.OutcomeFilter, "looked_at", 2)
    found = ann.get(list_of("occurrencerecord"), {"outcome": "EXPIRED"}).context["cl"].result_list
    assert [line.pk for line in found] == [lines[4].pk, lines[3].pk]


def test_the_page_of_a_ledger_entry_links_to_its_schedule_and_its_task(ann: Client) -> None:
    row, task = a_schedule(), a_task("FAILED")
    single, skipped = (
        a_ledger_entry(row, 1, task=task),
        a_ledger_entry(row, 2, "SKIPPED_OVERLAP", blocked_by=task.pk),
    )
    for line in (single, skipped):
        page = ann.get(page_of(line)).content.decode()
        assert page_of(row) in page
        assert page_of(task) in page
    Task.objects.unguarded().all().delete()
    RecurringTask.objects.unguarded().all().delete()
    gone = a_ledger_entry(row, 3)
    OccurrenceRecord.objects.unguarded().filter(pk=gone.pk).update(task_id=task.pk)
    assert "no longer kept" in text(ann.get(page_of(gone)))


def test_the_tasks_of_a_schedule_are_listed_by_their_fire_times(ann: Client) -> None:
    row = a_schedule(
        catch_up_mode="RUN_ALL_MISSED", catchup_order="NEWEST", overlap="ALLOW", misfire_grace=5
    )
    a_task()
    fire(at(150))
    page = ann.get(list_of("task"), {"recurring_task__id__exact": str(row.pk)})
    assert [task.fire_time for task in page.context["cl"].result_list] == [at(120), at(60), at(0)]
    assert f"recurring_task__id__exact={row.pk}" in ann.get(page_of(row)).content.decode()


def test_the_overview_names_schedules_that_are_late_or_quarantined(ann: Client) -> None:
    overview = reverse("admin:django_durable_tasks_overview")
    late, bad = a_schedule("late"), a_schedule("bad")
    assert "2 schedules are late" not in text(ann.get(overview)), (
        "without a leader that is the trouble"
    )
    lease = {"expires_at": database_now() + timedelta(minutes=5)}
    SchedulerLease.objects.update_or_create(name="leader", defaults=lease)
    assert "2 schedules are late: no scheduler has processed their fire times." in text(
        ann.get(overview)
    )
    RecurringTask.objects.unguarded().filter(pk=bad.pk).update(
        status="PAUSED", status_reason="QUARANTINED", next_run_at=None
    )
    RecurringTask.objects.unguarded().filter(pk=late.pk).update(next_run_at=database_now())
    content = text(ann.get(overview))
    assert "1 schedule is QUARANTINED" in content
    assert "schedule is late" not in content

"""Operations on one and on several schedules, from their pages and the list, each with its own
permission.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.schedules.agenda import Override
from django_durable_tasks.schedules.schedule_cache import overrides_of
from django_durable_tasks.store.clock import database_now
from tests.database.admin.site import act, messages_of, page_of, text
from tests.database.recurring.schedules import a_schedule, at, fire

pytestmark = pytest.mark.django_db


def _url(row: RecurringTask, name: str) -> str:
    return reverse("admin:django_durable_tasks_recurringtask_do", args=[row.pk, name])


def _do(client: Client, row: RecurringTask, name: str, **given: Any) -> Any:
    return client.post(_url(row, name), given)


def _now(row: RecurringTask) -> RecurringTask:
    found: RecurringTask = RecurringTask.objects.get(pk=row.pk)
    return found


def _ahead(days: float = 1) -> str:
    return (database_now() + timedelta(days=days)).isoformat()


def test_a_schedule_is_paused_with_a_reason_and_resumed(ann: Client) -> None:
    row = a_schedule()
    assert "This field is required" in text(_do(ann, row, "pause", reason="", until=""))
    answer = _do(ann, row, "pause", reason="deploy", until="")
    assert messages_of(answer) == ["Schedule nightly: Paused until it is resumed."]
    assert answer["Location"] == page_of(row)
    content = text(ann.get(page_of(row)))
    assert "by ann (deploy). It does not fire until it is resumed." in content
    assert "Next fire times if it were resumed now" in content
    assert _now(row).status == "PAUSED"
    _do(ann, row, "resume", pace="")
    assert (_now(row).status, _now(row).status_by) == ("ACTIVE", "ann")
    assert list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True)) == [
        "Pause schedule. Paused until it is resumed. deploy",
        "Resume schedule. Resumed. Missed runs of the pause are not caught up.",
    ]


def test_a_pause_may_end_automatically_and_a_resume_may_catch_up_at_a_pace(ann: Client) -> None:
    row = a_schedule()
    assert "is not after now" in text(_do(ann, row, "pause", reason="x", until="2020-01-01 00:00"))
    _do(ann, row, "pause", reason="x", until=_ahead())
    assert _now(row).paused_until is not None
    assert "It resumes at" in text(ann.get(page_of(row)))
    _do(ann, row, "resume", run_missed="on", pace="7.5")
    row = _now(row)
    assert (row.status, row.catchup_pace, row.next_run_at) == ("ACTIVE", 7.5, at(0))


def test_a_double_click_triggers_once(ann: Client) -> None:
    row = a_schedule()
    request_id = str(ann.get(_url(row, "run_now")).context["form"].initial["request_id"])
    first, second = (_do(ann, row, "run_now", request_id=request_id) for _ in range(2))
    task = Task.objects.get()
    link = f'<a href="{page_of(task)}">{task.pk}</a>'
    assert (
        messages_of(first)[-1]
        == messages_of(second)[-1]
        == f"Schedule nightly: Created task {link}."
    )
    assert (
        LogEntry.objects.latest("pk").change_message == f"Run schedule now. Created task {task.pk}."
    )
    assert OccurrenceRecord.objects.get().outcome == "MANUAL"
    assert _now(row).runs_count == 0


def test_a_backfill_preview_shows_what_the_backfill_then_does(ann: Client) -> None:
    row = a_schedule(misfire_grace=5)
    fire(at(180 + 30))
    given = {
        "start": "2026-03-02 09:00",
        "end": "2026-03-02 09:03",
        "reprocess": "NONE",
        "concurrency": "1",
    }
    looked = _do(ann, row, "backfill", _look="1", **given)
    assert [step["at"][15:23] for step in looked.context["report"]["steps"]] == [
        "09:00:00",
        "09:01:00",
        "09:02:00",
        "09:03:00",
    ]
    assert "Nothing is changed yet." in text(looked)
    assert Task.objects.count() == 1
    done = _do(ann, row, "backfill", **given)
    assert messages_of(done) == [
        "Schedule nightly: Created 3 tasks, replayed 0 tasks, left 1 fire time unchanged."
    ]
    assert Task.objects.count() == 4
    refused = _do(ann, row, "backfill", _look="1", **{**given, "end": _ahead()})
    assert "is after now" in text(refused)
    assert refused.context["form"].errors["end"]


def test_a_backfill_without_fire_times_is_refused_with_the_reason(ann: Client) -> None:
    row = a_schedule(cron="0 0 * * *")
    given = {
        "start": "2026-02-20 00:00",
        "end": "2026-02-21 00:00",
        "reprocess": "NONE",
        "concurrency": "1",
    }
    why = "2026-02-20T00:00:00Z is before the start of nightly, 2026-03-02T09:00:00Z"
    assert why in text(_do(ann, row, "backfill", _look="1", **given))
    refused = _do(ann, row, "backfill", **given)
    assert "Nothing was changed. Created 0 tasks" in text(refused)
    assert why in text(refused)
    assert messages_of(refused) == []
    assert not LogEntry.objects.exists()


def test_a_fire_time_is_skipped_moved_and_restored(ann: Client) -> None:
    row = RecurringTask.objects.upsert(
        name="daily", task="tests.project.tasks.noop", cron="0 9 * * *"
    )
    first, second = (one.nominal for one in row.next_fire_times(2))
    links = ann.get(page_of(row)).context["fires"]

    def override(fire_time: str, action: str, move_to: str, reason: str) -> Any:
        given = {"fire_time": fire_time, "action": action, "move_to": move_to, "reason": reason}
        return _do(ann, row, "override", **given)

    override(links[0]["fire_time"], "SKIP", "", "holiday")
    nowhere = override(links[1]["fire_time"], "MOVE", "", "late")
    assert "Required with MOVE" in text(nowhere)
    later = second + timedelta(hours=5)
    override(links[1]["fire_time"], "MOVE", later.isoformat(), "late")
    row.refresh_from_db()
    assert overrides_of(row) == [
        Override(first, "SKIP", None, "holiday", "ann"),
        Override(second, "MOVE", later, "late", "ann"),
    ]
    assert ann.get(page_of(row)).context["fires"][0]["remarks"][0].startswith("moved by hand")
    taken = _do(ann, row, "remove_override", fire_time=first.isoformat())
    assert "Override removed" in messages_of(taken)[-1]
    again = _do(ann, row, "remove_override", fire_time=first.isoformat())
    assert messages_of(again)[-1].startswith("Schedule daily: There was no override")
    row.refresh_from_db()
    assert row.next_fire_times(1)[0].nominal == first
    nowhere = _do(
        ann, row, "override", fire_time="2031-01-01 03:33", action="SKIP", move_to="", reason="x"
    )
    assert "is no fire time of" in text(nowhere)


def test_a_link_prefills_the_fire_time(ann: Client) -> None:
    row = a_schedule()
    page = ann.get(
        _url(row, "override"), {"fire_time": "2027-01-01T09:00:00+01:00", "action": "MOVE"}
    )
    assert "2027-01-01T09:00:00+01:00" in page.content.decode()
    assert '<option value="MOVE" selected>' in page.content.decode()


def test_several_schedules_are_paused_resumed_and_ended_from_the_list(ann: Client) -> None:
    rows = [a_schedule(f"schedule{number}") for number in range(3)]
    asked = act(ann, "pause", *rows, confirm=False)
    assert "This changes 3 rows" in text(asked)
    assert messages_of(act(ann, "pause", *rows, reason="deploy")) == ["Paused 3 schedules."]
    assert {_now(row).status_reason for row in rows} == {"deploy"}
    assert messages_of(act(ann, "resume", *rows[:2]))[-1] == "Resumed 2 schedules."
    assert "Nothing would change" in text(act(ann, "resume", *rows[:2]))
    act(ann, "cancel", *rows, reason="over")
    assert RecurringTask.objects.filter(status="CANCELLED").count() == 3

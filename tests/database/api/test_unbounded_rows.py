"""No way of creating rows that a tenant has through the API evades its quotas."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_durable_tasks.contrib.api import quotas
from django_durable_tasks.exceptions import InvalidSchedule, TransitionRefused
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.schedules import ledger, lifecycle, trigger
from django_durable_tasks.schedules.schedule_cache import fire_times_of
from django_durable_tasks.schedules.timetables.builder import alternatives
from tests.database.api.client import ADD, ApiClient, call
from tests.factories import many_tasks
from tests.repetitions import repetitions

pytestmark = pytest.mark.django_db
CONFIG = {"task": ADD, "args": [1, 2]}


def _allow(client: ApiClient, **values: Any) -> None:
    quotas.set_quotas(client.tenant, **values, by="test")


def _schedule(client: ApiClient, name: str = "nightly", **options: Any) -> Any:
    timing = {} if {"cron", "rrule", "at"} & options.keys() else {"interval_seconds": 60}
    body = {"name": name, "target_config": CONFIG, "overlap": "ALLOW", **timing, **options}
    return client.post("/recurring-tasks", body)


def _open(client: ApiClient) -> int:
    return int(quotas.open_tasks(client.tenant.pk).count())


@settings(
    max_examples=repetitions(10),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    most=st.integers(0, 6),
    known=st.integers(0, 8),
    steps=st.lists(st.sampled_from(["request", "fire", "replay", "now"]), max_size=8),
    schedules=st.integers(1, 3),
)
def test_a_tenant_never_opens_more_tasks_than_its_quota(
    acme: ApiClient, most: int, known: int, steps: list[str], schedules: int
) -> None:
    Task.objects.unguarded().all().delete()
    RecurringTask.objects.unguarded().all().delete()
    _allow(acme, open_tasks=None)
    rows = [
        _schedule(acme, f"n{number}", catch_up_mode="RUN_ALL_MISSED").json()["recurring_task_id"]
        for number in range(schedules)
    ]
    many_tasks(known, tenant=acme.tenant)
    failed = many_tasks(3, "FAILED", tenant=acme.tenant)
    _allow(acme, open_tasks=most)
    now = timezone.now()
    for number, step in enumerate(steps):
        before = _open(acme)
        if step == "request":
            acme.post("/tasks", call(number))
        elif step == "replay":
            acme.post(f"/tasks/{failed[number % 3].pk}/replay")
        elif step == "now":
            acme.post(f"/recurring-tasks/{rows[0]}/trigger-now")
        else:
            now += timedelta(seconds=150)
            trigger.fire_due(now, 100, term=7)
        assert _open(acme) <= max(most, before), step
    fired = steps.count("fire")
    recorded = OccurrenceRecord.objects.filter(recurring_task__in=rows, request_id=None)
    assert recorded.count() >= fired * schedules, "each fire time has an entry"


def test_a_fire_time_at_the_quota_is_recorded_and_the_next_one_runs(acme: ApiClient) -> None:
    _allow(acme, open_tasks=1)
    created = _schedule(acme).json()
    waiting = acme.post("/tasks", call()).json()["task_id"]
    start = RecurringTask.objects.get().next_run_at
    assert start is not None
    assert trigger.fire_due(start, 100, term=7) == 0
    line = OccurrenceRecord.objects.get()
    assert (line.outcome, line.reason) == ("SKIPPED_QUOTA", "open_tasks, 1")
    acme.post(f"/tasks/{waiting}/cancel")
    assert trigger.fire_due(start + timedelta(seconds=60), 100, term=7) == 1
    path = f"/recurring-tasks/{created['recurring_task_id']}"
    shown = acme.get(f"{path}/explain?at={start:%Y-%m-%dT%H:%M:%S}Z")
    outcomes = [one["outcome"] for one in acme.get(f"{path}/occurrences").json()["data"]]
    assert sorted(outcomes) == ["DISPATCHED", "SKIPPED_QUOTA"], shown.content


def test_schedules_of_the_project_and_of_other_tenants_go_on(
    acme: ApiClient, globex: ApiClient
) -> None:
    _allow(acme, open_tasks=0)
    for client in (acme, globex):
        _schedule(client)
    RecurringTask.objects.upsert(name="own", task=ADD, args=[1, 2], interval=60)
    assert trigger.fire_due(timezone.now() + timedelta(seconds=61), 100, term=7) == 2
    assert _open(acme) == 0
    assert _open(globex) == 1


@pytest.mark.parametrize(
    "timing",
    [
        {"interval_seconds": 59},
        {"rrule": "FREQ=SECONDLY;INTERVAL=30"},
        {"rrule": "FREQ=SECONDLY;BYHOUR=3", "timezone": "Europe/London"},
        {"rrule": "FREQ=MINUTELY;BYSECOND=1,2;BYMONTHDAY=17"},
        {"rrule": "FREQ=SECONDLY", "start_time": "2099-01-01T23:59:59Z"},
        # Often on a day that is neither the first nor the second one, alone and together.
        {"rrule": "RRULE:FREQ=DAILY\nRRULE:FREQ=SECONDLY;BYYEARDAY=60"},
        {
            "rrule": "RRULE:FREQ=HOURLY\n"
            + "\n".join(f"RRULE:FREQ=SECONDLY;BYYEARDAY=60;BYMINUTE={minute}" for minute in (1, 2))
        },
        {"rrule": "RRULE:FREQ=DAILY\nRRULE:FREQ=MINUTELY;BYMONTH=2;BYDAY=MO;BYSECOND=3,4"},
    ],
)
def test_a_recurring_task_runs_once_a_minute_at_most_unless_the_quota_allows_more(
    acme: ApiClient, timing: dict[str, Any]
) -> None:
    refused = _schedule(acme, **timing)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid"), refused.content
    assert "runs_per_day" in refused.json()["detail"]
    key = _schedule(acme).json()["recurring_task_id"]
    shorter = {"interval_seconds": 1}
    assert acme.patch(f"/recurring-tasks/{key}", shorter, If_Match="*").status_code == 422
    _allow(acme, runs_per_day=86_400)
    assert acme.patch(f"/recurring-tasks/{key}", shorter, If_Match="*").status_code == 200


def test_the_times_that_bysetpos_selects_from_one_day_are_counted(acme: ApiClient) -> None:
    _allow(acme, runs_per_day=24)
    minutes = "BYHOUR=" + ",".join(map(str, range(24))) + ";BYMINUTE=0,15,30,45"
    positions = "1,97," + ",".join(map(str, range(193, 193 + 48)))  # the third day is the full one
    rule = f"FREQ=MONTHLY;BYMONTHDAY=10,11,12;{minutes};BYSETPOS={positions}"
    refused = _schedule(acme, rrule=rule)
    assert (refused.status_code, "runs_per_day" in refused.json()["detail"]) == (422, True)


def test_equal_rules_are_compared_once(acme: ApiClient) -> None:
    _allow(acme, runs_per_day=86_400)
    rules = "\n".join(["RRULE:FREQ=MINUTELY"] * 19)
    made = _schedule(acme, rrule=f"DTSTART:20970101T000000Z\n{rules}")
    assert made.status_code == 201, made.content
    row = RecurringTask.objects.unguarded().get(pk=made.json()["recurring_task_id"])
    assert len(alternatives(fire_times_of(row))) == 1


@settings(
    max_examples=repetitions(5),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    most=st.integers(1, 4),
    seconds=st.lists(st.integers(1, 3_600), min_size=5, max_size=6, unique=True),
)
def test_overrides_add_no_more_runs_to_a_day_than_the_quota(
    acme: ApiClient, most: int, seconds: list[int]
) -> None:
    RecurringTask.objects.unguarded().all().delete()
    _allow(acme, runs_per_day=most)
    # A day without a fire time of the schedule itself.
    key = _schedule(acme, at=["2097-01-01T12:00:00Z", "2097-01-03T12:00:00Z"]).json()
    row = RecurringTask.objects.unguarded().get(pk=key["recurring_task_id"])
    moments = [datetime(2097, 1, 2, tzinfo=UTC) + timedelta(seconds=second) for second in seconds]
    for moment in moments[:most]:
        row.override(moment, "ADD")
    for moment in moments[most:]:
        with pytest.raises(InvalidSchedule, match="runs_per_day"):
            row.override(moment, "ADD")
    with pytest.raises(InvalidSchedule, match="runs_per_day"):
        row.override(
            datetime(2097, 1, 1, 12, tzinfo=UTC),
            "MOVE",
            move_to=datetime(2097, 1, 2, 12, tzinfo=UTC),
        )


_DAY = datetime(2097, 1, 2, tzinfo=UTC)
_CLOSED = {"days": [{"date": "2097-01-02", "kind": "CLOSED"}]}


def _fill(acme: ApiClient, row: RecurringTask) -> None:
    """Add as many runs to the day as the quota of 24 allows."""
    with suppress(InvalidSchedule):
        for minute in range(1, 25):
            row.override(_DAY + timedelta(minutes=minute), "ADD")


@pytest.mark.parametrize(
    "way",
    ["the skipped runs return", "the day opens", "it fires more often", "it fires on that day"],
)
def test_runs_that_were_added_to_a_day_count_when_it_gets_others(acme: ApiClient, way: str) -> None:
    _allow(acme, runs_per_day=24)
    daily, hourly = (
        {"cron": cron, "start_time": "2096-10-05T00:00:00Z"} for cron in ("0 0 * * *", "0 * * * *")
    )
    if way == "the day opens":
        calendar = acme.post("/calendars", {"name": "office", **_CLOSED}).json()
        hourly |= {"calendar": "office", "roll": "SKIP"}
    made = _schedule(acme, **(daily if way.startswith("it fires") else hourly))
    assert made.status_code == 201, made.content
    key = made.json()["recurring_task_id"]
    row = RecurringTask.objects.unguarded().get(pk=key)
    if way == "the skipped runs return":
        for hour in range(24):
            row.override(_DAY + timedelta(hours=hour), "SKIP")
    _fill(acme, row)
    if way == "the skipped runs return":
        with pytest.raises(InvalidSchedule, match="runs_per_day"):
            lifecycle.withdraw_override(row, _DAY)
    elif way == "the day opens":
        opened = acme.patch(f"/calendars/{calendar['calendar_id']}", {"days": []}, If_Match="*")
        assert (opened.status_code, "runs_per_day" in opened.json()["detail"]) == (422, True)
    else:
        # The third day on which the second rule fires often.
        later = {"rrule": "RRULE:FREQ=DAILY\nRRULE:FREQ=HOURLY;BYMONTHDAY=2"}
        often = {"cron": "0 * * * *"} if way == "it fires more often" else later
        changed = acme.patch(f"/recurring-tasks/{key}", often, If_Match="*")
        assert (changed.status_code, "runs_per_day" in changed.json()["detail"]) == (422, True)


@pytest.mark.parametrize(
    ("quota", "path", "body"),
    [
        ("calendars", "/calendars", {}),
        (
            "recurring_tasks",
            "/recurring-tasks",
            {"target_config": CONFIG, "interval_seconds": 60},
        ),
    ],
)
def test_a_tenant_has_a_bounded_number_of_objects(
    acme: ApiClient, globex: ApiClient, quota: str, path: str, body: dict[str, Any]
) -> None:
    limits = {row["name"]: row["limit"] for row in acme.get("/quota").json()["data"]}
    assert limits[quota] is not None, "bounded without an operator"
    _allow(acme, **{quota: 1})
    assert acme.post(path, {**body, "name": "one"}).status_code == 201
    refused = acme.post(path, {**body, "name": "two"})
    assert (refused.status_code, refused.json()["violated-policies"]) == (429, [quota])
    assert globex.post(path, {**body, "name": "one"}).status_code == 201


def test_a_schedule_has_a_bounded_number_of_overrides(
    acme: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_MOST", 2)
    _allow(acme, runs_per_day=86_400)
    _schedule(acme)
    row = RecurringTask.objects.get()
    day = timezone.now().replace(microsecond=1) + timedelta(days=1)
    for hours in (1, 2):
        row.override(day + timedelta(hours=hours), "ADD")
    with pytest.raises(TransitionRefused, match="overrides"):
        row.override(day + timedelta(hours=3), "ADD")
    row.override(day + timedelta(hours=2), "ADD")


def test_ended_recurring_tasks_of_clients_are_deleted_after_their_ledger(acme: ApiClient) -> None:
    keys = [_schedule(acme, name).json()["recurring_task_id"] for name in ("one", "two", "live")]
    RecurringTask.objects.upsert(name="own", task=ADD, args=[1, 2], interval=60).cancel()
    trigger.fire_due(timezone.now() + timedelta(seconds=61), 100, term=7)
    OccurrenceRecord.objects.unguarded().filter(recurring_task=keys[1]).delete()
    Task.objects.unguarded().filter(recurring_task=keys[1]).delete()
    for key in keys[:2]:
        assert acme.post(f"/recurring-tasks/{key}/cancel").status_code == 200
    assert ledger.prune_ended(timezone.now(), 10) == 0
    later = timezone.now() + timedelta(days=10_000)
    assert [ledger.prune_ended(later, 10) for _ in range(2)] == [1, 0]
    names = RecurringTask.objects.order_by("name").values_list("name", flat=True)
    assert list(names) == ["live", "one", "own"]

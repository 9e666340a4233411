"""Recurring tasks through the API."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_durable_tasks.models import RecurringTask, Task
from tests.database.api.client import ADD, ApiClient, pointers

pytestmark = pytest.mark.django_db


def _body(**options: Any) -> dict[str, Any]:
    config = {"task": ADD, "args": [1, 2]}
    return {"name": "nightly", "target_config": config, "interval_seconds": 3600, **options}


def _created(client: ApiClient, **options: Any) -> Any:
    response = client.post("/recurring-tasks", _body(**options))
    assert response.status_code == 201, response.content
    return response


def test_a_recurring_task_has_the_fields_of_the_specification(acme: ApiClient) -> None:
    response = _created(acme, max_runs=5, idempotency_key="k")
    found = response.json()
    row = RecurringTask.objects.get()
    assert (row.tenant_id, row.task, row.args) == (acme.tenant.pk, ADD, [1, 2])
    assert (found["status"], found["interval_seconds"], found["max_runs"]) == ("ACTIVE", 3600, 5)
    assert found["next_run_at"] is not None
    assert acme.get(response.headers["Location"]).json() == found
    again = acme.post("/recurring-tasks", _body(max_runs=5, idempotency_key="k"))
    assert (again.status_code, again.json()["recurring_task_id"]) == (200, str(row.pk))


def test_a_name_is_unique_within_its_tenant(acme: ApiClient, globex: ApiClient) -> None:
    _created(acme)
    taken = acme.post("/recurring-tasks", _body(interval_seconds=7_200))
    assert (taken.status_code, taken.json()["code"]) == (409, "conflict")
    _created(globex)
    assert RecurringTask.objects.count() == 2


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"cron": "61 * * * *", "interval_seconds": None}, "#/interval_seconds"),
        ({"interval_seconds": 0}, "#/interval_seconds"),
        ({"timezone": "../../etc/passwd"}, "#/timezone"),
        ({"timezone": "right/UTC"}, "#/timezone"),
        ({"timezone": "Mars/Olympus"}, "#/timezone"),
        ({"calendar": "nowhere"}, "#/calendar"),
        ({"overlap": "MAYBE"}, "#/overlap"),
        ({"max_runs": 0}, "#/max_runs"),
        ({"target_config": {"task": "os.system"}}, "#/target_config/task"),
        ({"target_config": {"task": ADD}}, "#/target_config"),
        ({"every": "day"}, "#/every"),
        ({"name": ""}, "#/name"),
    ],
)
def test_a_bad_field_is_named(acme: ApiClient, change: dict[str, Any], pointer: str) -> None:
    response = acme.post("/recurring-tasks", _body(**change))
    assert response.status_code in (400, 422), response.content
    assert pointers(response)[0].startswith(pointer), response.content
    assert not RecurringTask.objects.exists()


def test_a_wrong_cron_names_its_field(acme: ApiClient) -> None:
    body = _body(cron="61 * * * *")
    del body["interval_seconds"]
    response = acme.post("/recurring-tasks", body)
    assert (response.status_code, pointers(response)) == (422, ["#/cron"])
    del body["cron"]
    assert acme.post("/recurring-tasks", body).status_code == 422


def test_a_list_is_ordered_by_name_and_continued(acme: ApiClient) -> None:
    for name in ("c", "a", "d", "b", "e"):
        _created(acme, name=name)
    path, found = "/recurring-tasks?limit=2", []
    while path:
        page = acme.get(path).json()
        found += [row["name"] for row in page["data"]]
        path = page["next_cursor"] and f"/recurring-tasks?limit=2&cursor={page['next_cursor']}"
    assert found == ["a", "b", "c", "d", "e"]
    assert acme.get("/recurring-tasks?status=PAUSED").json()["data"] == []


def test_a_patch_changes_the_given_fields_of_the_present_version(acme: ApiClient) -> None:
    path = _created(acme, description="first").headers["Location"]
    tag = acme.get(path).headers["ETag"]
    changed = acme.patch(path, {"interval_seconds": 7200}, If_Match=tag)
    assert changed.status_code == 200, changed.content
    row = RecurringTask.objects.get()
    assert (row.interval_seconds, row.description, row.args) == (7200, "first", [1, 2])
    assert acme.patch(path, {"max_runs": 1}, If_Match=tag).status_code == 412
    assert acme.patch(path, {"max_runs": 1}).status_code == 428
    preview = acme.patch(f"{path}?dry_run=1", {"max_runs": 3}, If_Match="*").json()
    assert preview["changes"]["max_runs"] == {"before": None, "after": 3}
    assert RecurringTask.objects.get().max_runs is None


def test_past_fire_times_are_backfilled_and_listed(acme: ApiClient) -> None:
    start = timezone.now() - timedelta(hours=5)
    path = _created(acme, start_time=start.isoformat()).headers["Location"]
    span = {"start": start.isoformat(), "end": timezone.now().isoformat()}
    planned = acme.post(f"{path}/backfill?dry_run=1", span).json()["would_return"]
    assert planned["counts"]["created"] >= 4
    assert not Task.objects.exists()
    done = acme.post(f"{path}/backfill", span).json()
    assert done["counts"]["created"] == planned["counts"]["created"] == Task.objects.count()
    page = acme.get(f"{path}/occurrences?limit=2").json()
    times = [entry["fire_time"] for entry in page["data"]]
    assert times == sorted(times, reverse=True)
    rest = acme.get(f"{path}/occurrences?limit=2&cursor={page['next_cursor']}").json()
    assert rest["data"][0]["fire_time"] < times[-1]
    explained = acme.get(f"{path}/explain?at={times[0]}").json()
    assert explained["explanation"]
    assert pointers(acme.get(f"{path}/explain")) == ["at"]


def test_the_next_fire_times_are_shown(acme: ApiClient) -> None:
    path = _created(acme).headers["Location"]
    data = acme.get(f"{path}/preview?limit=3").json()["data"]
    assert len(data) == 3
    assert data[0]["nominal"] < data[1]["nominal"]


_CLOSED = [
    {"date": (date(2026, 12, 1) + timedelta(days=place)).isoformat(), "kind": "CLOSED"}
    for place in range(1_000)
]
_ROLLED = {"interval_seconds": 60, "calendar": "office", "roll": "FOLLOWING"}


def test_a_closure_over_which_too_many_fire_times_are_rolled_is_refused(acme: ApiClient) -> None:
    """Each run of the day after it would be compared with each of them."""
    assert acme.post("/calendars", {"name": "office", "days": _CLOSED}).status_code == 201
    refused = acme.post("/recurring-tasks", _body(**_ROLLED))
    assert (refused.status_code, pointers(refused)) == (422, ["#/calendar"])
    assert "1,001 days pass between two open days" in refused.json()["detail"]
    _created(acme, **_ROLLED | {"interval_seconds": 86_400})
    _created(acme, **_ROLLED | {"roll": "SKIP"}, name="skips")


def test_a_calendar_cannot_get_such_a_closure_either(acme: ApiClient) -> None:
    created = acme.post("/calendars", {"name": "office"})
    _created(acme, **_ROLLED)

    def change(number: int) -> Any:
        path = created.headers["Location"]
        return acme.patch(path, {"days": _CLOSED[:number]}, If_Match=acme.get(path)["ETag"])

    refused = change(1_000)
    assert refused.status_code == 422, refused.content
    assert "breaks recurring task 'nightly'" in refused.json()["detail"]
    assert change(1).status_code == 200

"""The name of a recurring task that has ended is free again."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_durable_tasks.models import RecurringTask
from django_durable_tasks.schedules import trigger
from tests.database.admin.site import operator
from tests.database.admin.test_recurring_editing import add_schedule
from tests.database.api.client import ADD, ApiClient
from tests.repetitions import repetitions

pytestmark = pytest.mark.django_db


def _post(client: ApiClient, name: str, **options: object) -> tuple[int, str]:
    body = {"name": name, "target_config": {"task": ADD, "args": [1, 2]}, "interval_seconds": 60}
    answer = client.post("/recurring-tasks", {**body, **options})
    return answer.status_code, answer.json().get("recurring_task_id", "")


@settings(
    max_examples=repetitions(8),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    name=st.text("ab é😀_.-", min_size=1, max_size=200).filter(lambda text: text.strip() == text),
    ends=st.lists(st.sampled_from(["cancel", "end", "stay"]), min_size=1, max_size=4),
)
def test_a_new_recurring_task_may_have_the_name_of_ended_ones(
    acme: ApiClient, globex: ApiClient, name: str, ends: list[str]
) -> None:
    RecurringTask.objects.unguarded().all().delete()
    assert _post(globex, name)[0] == 201
    made: list[str] = []
    live = False
    for end in ends:
        status, key = _post(acme, name, max_runs=1)
        assert status == (409 if live else 201)
        if live:
            continue
        made.append(key)
        live = end == "stay"
        if end == "cancel":
            assert acme.post(f"/recurring-tasks/{key}/cancel").status_code == 200
        elif end == "end":
            start = RecurringTask.objects.get(pk=key).next_run_at
            assert start is not None
            assert trigger.fire_due(start, 100, term=7) >= 1
    names = dict(RecurringTask.objects.for_tenant(acme.tenant).values_list("pk", "name"))
    shown = {str(pk): text for pk, text in names.items()}
    assert shown.keys() == set(made)
    assert shown[made[-1]] == name, "the latest has the name"
    assert all(len(shown[key]) <= 200 and key in shown[key] for key in made[:-1])
    rows = acme.get("/recurring-tasks").json()["data"]
    assert {row["recurring_task_id"] for row in rows} == set(made)


@pytest.mark.parametrize(("source", "is_free"), [("", True), ("api", True), ("code", False)])
def test_an_operator_may_use_the_name_again_unless_code_declares_it(
    source: str, is_free: bool
) -> None:
    row = RecurringTask.objects.upsert(name="report", task=ADD, args=[1, 2], interval=60)
    RecurringTask.objects.unguarded().update(source=source)
    row.cancel()
    add_schedule(operator())
    names = RecurringTask.objects.order_by("status").values_list("status", "name")
    ended = f"report (ended, {row.pk})"
    expected = (
        [("ACTIVE", "report"), ("CANCELLED", ended)] if is_free else [("CANCELLED", "report")]
    )
    assert list(names) == expected


def test_code_that_creates_a_schedule_again_does_not_revive_an_ended_one() -> None:
    for _ in range(2):
        row = RecurringTask.objects.upsert(name="report", task=ADD, args=[1, 2], interval=60)
        row.cancel()
    assert list(RecurringTask.objects.values_list("status", "name")) == [("CANCELLED", "report")]

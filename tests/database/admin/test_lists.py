"""Lists filter, search and count within bounds, and need the same number of statements for one row
and for fifty.
"""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from django_durable_tasks.admin import readonly
from django_durable_tasks.choices import Status
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import first_uuid7_of, new_task_id
from tests.database.admin.full_tenant import MODELS
from tests.database.admin.site import list_of, text
from tests.factories import a_task, a_tenant, many_tasks

pytestmark = pytest.mark.django_db


def test_every_list_opens_without_rows(ann: Client, subtests: pytest.Subtests) -> None:
    for model in MODELS:
        with subtests.test(model):
            assert ann.get(list_of(model)).status_code == 200


def _found(ann: Client, model: str, **asked: str) -> set[Any]:
    return {row.pk for row in ann.get(list_of(model), asked).context["cl"].result_list}


def test_tasks_are_filtered_by_condition(ann: Client) -> None:
    past = database_now() - timedelta(minutes=5)
    rows = {
        "due": a_task(due=-5),
        "retrying": a_task(failures=1, due=500),
        "unanswered": a_task(Status.QUEUED, publish_count=2),
        "overdue": a_task(Status.RUNNING, started_at=past, expected_duration=timedelta(seconds=5)),
        "silent": a_task(Status.RUNNING, due=-5),
        "stopping": a_task(Status.RUNNING, cancel_requested_at=past),
    }
    a_task(due=500)
    for condition, row in rows.items():
        assert _found(ann, "task", condition=condition) == {row.pk}, condition
    assert _found(ann, "task", condition="nonsense") == set()


def test_tasks_are_filtered_by_status_queue_name_tenant_reason_and_age(ann: Client) -> None:
    tenant = a_tenant()
    wanted = a_task(
        Status.CANCELLED,
        queue="mail",
        name="billing.charge",
        tenant=tenant,
        reason="CANCELLED by ann",
    )
    other = a_task(pk=first_uuid7_of(1_600_000_000_000))
    asked = {
        "status__exact": "CANCELLED",
        "queue": "mail",
        "name": "billing.charge",
        "tenant": str(tenant.pk),
        "reason": "CANCELLED",
        "created": "hour",
    }
    for name, value in asked.items():
        assert _found(ann, "task", **{name: value}) == {wanted.pk}, name
    assert _found(ann, "task", **asked) == {wanted.pk}
    assert _found(ann, "task") == {wanted.pk, other.pk}
    assert "mail" in text(ann.get(list_of("task"), {"queue": "mail"}))


def test_attempts_and_dead_letters_are_filtered_by_their_tasks(ann: Client) -> None:
    many_tasks(2, Status.FAILED, queue="mail", name="billing.charge")
    a_task(Status.FAILED)
    for model in ("taskexecutionlog", "deadletter"):
        assert len(_found(ann, model)) == 3
        assert len(_found(ann, model, queue="mail")) == 2
        assert len(_found(ann, model, name="billing.charge")) == 2
    assert len(_found(ann, "deadletter", reason="CRASHED")) == 0
    assert len(_found(ann, "deadletter", fingerprint__exact="0" * 16)) == 3


def test_a_task_is_found_by_id_celery_id_key_and_part_of_its_name(ann: Client) -> None:
    task = a_task(
        Status.FAILED, name="billing.charge", key="k-1", idempotency_key="i-1", unique_key="u-1"
    )
    many_tasks(3, Status.FAILED)
    for term in (
        str(task.pk),
        task.pk.hex,
        f"{task.pk}.3.1",
        "k-1",
        "i-1",
        "u-1",
        "charge",
        "CHARGE",
        " k-1 ",
    ):
        assert _found(ann, "task", q=term) == {task.pk}, term
        assert len(_found(ann, "taskexecutionlog", q=term)) == 1, term
        assert len(_found(ann, "deadletter", q=term)) == 1, term
    assert _found(ann, "task", q="k-") == set()
    assert _found(ann, "task", q=str(new_task_id())) == set()


def test_a_list_counts_no_further_than_its_bound(
    ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readonly, "COUNTED_AT_MOST", 7)
    many_tasks(9)
    page = ann.get(list_of("task"), {"queue": "test"})
    assert page.context["cl"].result_count == 7
    shown = text(page)
    assert "7 tasks or more: narrow the list" in shown
    assert "7 results" not in shown
    assert not re.search(r"[Aa]ll 7\b", shown)


def test_the_newest_tasks_come_first_page_by_page(ann: Client) -> None:
    ids = [task.pk for task in many_tasks(60)]
    pages = [
        [row.pk for row in ann.get(list_of("task"), {"p": str(page)}).context["cl"].result_list]
        for page in (1, 2)
    ]
    assert [*pages[0], *pages[1]] == sorted(ids, key=str, reverse=True)

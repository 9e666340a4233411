"""Answers name the place and the remedy, and nothing that concerns operators only."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_durable_tasks.conf import Settings
from django_durable_tasks.contrib.api import quotas
from django_durable_tasks.encryption import StorageLocation, missing
from django_durable_tasks.exceptions import InvalidTarget
from django_durable_tasks.masking import text_for_tenants
from django_durable_tasks.models import Task, TaskExecutionLog
from django_durable_tasks.targets.http_request import checked_request_headers
from tests.database.api.client import ADD, ApiClient, call, pointers
from tests.factories import many_tasks
from tests.repetitions import repetitions

CONFIG = {"task": ADD, "args": [1, 2]}
LATE = "8000-01-01T00:00:00Z"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tasks", {"target_config": CONFIG, "run_at": LATE}),
        ("/tasks", {"target_config": {"task": ADD, "args": ["x" * 2_000_000, 1]}}),
        ("/tasks", {"target_type": "QUEUE_MESSAGE", "target_config": {"queue": "x", "body": ""}}),
        ("/workflows", {"name": "w", "steps": [{"step": "a", "target_config": CONFIG}]}),
        (
            "/workflows",
            {
                "name": "w",
                "steps": [
                    {
                        "step": "a",
                        "target_type": "QUEUE_MESSAGE",
                        "target_config": {"queue": "x", "body": ""},
                    }
                ],
            },
        ),
        ("/tasks/bulk", {"items": [{"target_config": CONFIG, "run_at": LATE}]}),
    ],
)
def test_no_answer_names_a_setting(
    acme: ApiClient, settings: Any, path: str, body: dict[str, Any]
) -> None:
    settings.DURABLE_TASKS = {
        **settings.DURABLE_TASKS,
        "API_TASKS": ["*"],
        "WORKFLOW_MAX_TASKS": 1,
        "DELAY_MAX": 3_600,
    }
    text = acme.post(path, body).content.decode()
    names = {name for name in Settings.__dataclass_fields__ if "_" in name}
    assert not [name for name in names if re.search(rf"\b{name}\b", text)], text
    assert "DURABLE_TASKS" not in text


@given(
    column=st.sampled_from(["args", "kwargs", "result"]),
    row=st.uuids(),
    key=st.text("ab1", min_size=1),
)
def test_no_text_for_tenants_names_a_table_or_a_key(column: str, row: Any, key: str) -> None:
    place = StorageLocation(1, "durable_tasks_task", column, str(row))
    error = f"Traceback:\nEncryptionKeyMissing: {missing(key, place)}\nafter"
    shown = text_for_tenants(error)
    assert str(row) not in shown
    assert "durable_tasks_" not in shown
    assert "ENCRYPTION_KEYS" not in shown
    assert shown.endswith("after")


@pytest.mark.django_db
@pytest.mark.parametrize("method", ["TRACE", "PUT", "OPTIONS", "FOO", "GET"])
@pytest.mark.parametrize("query", ["", "?dry_run=1", "?x=1", "?dry_run=7"])
def test_a_method_that_does_not_exist_is_refused_whatever_the_parameters(
    acme: ApiClient, method: str, query: str
) -> None:
    answer = acme.send(method, f"/tasks/bulk{query}")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    unknown = acme.send(method, f"/nothing{query}")
    assert (unknown.status_code, unknown.headers.get("Allow", "")) == (404, "")


def test_a_header_that_servers_behind_a_proxy_trust_is_refused() -> None:
    for name in (
        "X-Client-IP",
        "true_client_ip",
        "CF-Connecting-IP",
        "X-Original-URL",
        "X-Rewrite-Url",
        "Via",
        "Date",
        "metadata",
        "X-HTTP-Method-Override",
        "Metadata-Flavor",
        "X-Forwarded-For",
        "x_real_ip",
        "X-Aws-Ec2-Metadata-Token",
        "X-Envoy-Original-Path",
    ):
        with pytest.raises(InvalidTarget, match=name):
            checked_request_headers({name: "1"})


@pytest.mark.django_db
@hypothesis_settings(
    max_examples=repetitions(10),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    most=st.integers(0, 6),
    known=st.integers(0, 4),
    kinds=st.lists(st.sampled_from(["plain", "keyed", "same", "wrong", "none"]), min_size=1),
)
def test_a_bulk_request_creates_what_fits_into_the_quota(
    acme: ApiClient, most: int, known: int, kinds: list[str]
) -> None:
    Task.objects.unguarded().all().delete()
    many_tasks(known, tenant=acme.tenant)
    quotas.set_quotas(acme.tenant, open_tasks=most)
    bodies: dict[str, Any] = {"wrong": {"x": 1}, "none": 5, "plain": call()}
    items = [
        bodies.get(kind) or call(idempotency_key="same" if kind == "same" else f"k{number}")
        for number, kind in enumerate(kinds)
    ]
    answer = acme.post("/tasks/bulk", {"items": items})
    assert answer.status_code == 200, answer.content
    found = [one["status"] for one in answer.json()["data"]]
    wanted = len([kind for kind in kinds if kind in ("plain", "keyed")]) + ("same" in kinds)
    created = min(wanted, max(0, most - known))
    assert found.count(201) == created
    assert Task.objects.count() == known + created
    assert {code for kind, code in zip(kinds, found, strict=True) if kind == "none"} <= {422}
    whole = acme.post("/tasks/bulk", {"items": [call()] * 20, "atomic": True})
    assert (whole.status_code, whole.headers["Retry-After"]) == (429, "60")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("timing", "pointer"),
    [
        ({"cron": "0 2 * * *", "interval_seconds": 60}, "#/cron"),
        ({"cron": "0 2 * * *", "rrule": "FREQ=DAILY"}, "#/rrule"),
        ({"at": [LATE], "interval_seconds": 60}, "#/at"),
        ({"rrule": "FREQ=NEVER"}, "#/rrule"),
        ({"rrule": "FREQ=DAILY;BYMONTH=99"}, "#/rrule"),
        ({"cron": "0 0 30 2 *"}, "#/cron"),
        ({"cron": "x"}, "#/cron"),
        ({"interval_seconds": 1}, "#/interval_seconds"),
    ],
)
def test_an_error_of_a_timetable_names_its_field(
    acme: ApiClient, timing: dict[str, Any], pointer: str
) -> None:
    refused = acme.post("/recurring-tasks", {"name": "n", "target_config": CONFIG, **timing})
    assert (refused.status_code, pointers(refused)) == (422, [pointer]), refused.content
    first = {"name": "n", "target_config": CONFIG, "interval_seconds": 3_600}
    key = acme.post("/recurring-tasks", first).json()["recurring_task_id"]
    changed = acme.patch(f"/recurring-tasks/{key}", timing, If_Match="*")
    assert (changed.status_code, pointers(changed)) == (422, [pointer]), changed.content


@pytest.mark.django_db
def test_an_error_of_the_name_of_a_workflow_names_it(acme: ApiClient) -> None:
    step = {"step": "a", "target_config": CONFIG}
    refused = acme.post("/workflows", {"name": "not a name", "steps": [step]})
    assert (refused.status_code, pointers(refused)) == (422, ["#/name"])


@pytest.mark.django_db
def test_the_attempts_of_a_task_that_cannot_be_decrypted_name_no_key(acme: ApiClient) -> None:
    task = many_tasks(1, tenant=acme.tenant)[0]
    text = str(missing("k1", StorageLocation(1, "durable_tasks_task", "args", str(task.pk))))
    Task.objects.unguarded().update(last_error=text)
    now = timezone.now()
    TaskExecutionLog.objects.unguarded().create(
        task=task,
        tenant=acme.tenant,
        attempt_number=1,
        status="FAILED",
        error_message=text,
        started_at=now,
        completed_at=now,
    )
    shown = [acme.get(f"/tasks/{task.pk}"), acme.get(f"/tasks/{task.pk}/executions")]
    for answer in shown:
        assert answer.status_code == 200
        assert "k1" not in answer.content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "options",
    [["quota", "default", "--requ", "600/m"], ["list", "tasks", "--ten", "default"]],
)
def test_the_command_takes_no_prefix_of_an_option(options: list[str]) -> None:
    with pytest.raises(CommandError, match="unrecognized"):
        call_command("durable", *options)

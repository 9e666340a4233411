"""Bad input of each kind, at every address that takes it: the problem names the place, and nothing
is written.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client, override_settings

from django_durable_tasks.contrib.api.models import IdempotentRequest
from django_durable_tasks.contrib.notifications.models import NotificationSetting
from django_durable_tasks.models import AuditEntry, RecurringTask, Task
from tests.database.api.client import ADD, ROOT, SETTINGS, ApiClient, a_client, a_tenant, pointers
from tests.database.api.endpoints import WITH_ID, WITHOUT_ID, filled, rows_of

pytestmark = pytest.mark.django_db
WRITES = [
    (address, method) for address, method in [*WITH_ID, *WITHOUT_ID] if method in ("POST", "PATCH")
]
DEEP = 10_000
FILE = "../../../etc/passwd"


@pytest.fixture(scope="module")
def client(few_committed_rows: object) -> ApiClient:
    """Return the client of a tenant with a row of each kind, created once."""
    with override_settings(DURABLE_TASKS=dict(SETTINGS)):
        return a_client(a_tenant("initech"))


@pytest.fixture(scope="module")
def ids(client: ApiClient) -> dict[str, Any]:
    """Return the ids of the rows."""
    with override_settings(DURABLE_TASKS=dict(SETTINGS)):
        return rows_of(client)


def _state() -> list[Any]:
    return [
        AuditEntry.objects.count(),
        IdempotentRequest.objects.count(),
        sorted(Task.objects.values_list("pk", "epoch", "status")),
        sorted(RecurringTask.objects.values_list("pk", "revision", "status")),
        sorted(NotificationSetting.objects.values_list("pk", "revision")),
    ]


BAD_BODIES = [
    (b"{", "malformed"),
    (b'{"reason": NaN}', "malformed"),
    (b'{"reason": "a", "reason": "b"}', "malformed"),
    (b"[" * DEEP + b"]" * DEEP, "malformed"),
    (b'{"reason": ' + b"[" * 100 + b"]" * 100 + b"}", "malformed"),
    (b'{"no_such_field": 1}', "malformed"),
    (b'{"reason": "\\u0000"}', "malformed"),
    (b"[]", "invalid"),
]


@pytest.mark.parametrize(("address", "method"), WRITES)
def test_every_write_refuses_bodies_that_it_cannot_read(
    client: ApiClient, ids: dict[str, Any], address: str, method: str
) -> None:
    before, path = _state(), filled(address, ids)
    for body, code in BAD_BODIES:
        answer = client.send(method, path, body, If_Match="*", Idempotency_Key="one")
        problem = answer.json()
        assert answer.headers["Content-Type"] == "application/problem+json", body[:50]
        assert (problem["code"], answer.status_code < 500) == (code, True), (body[:50], problem)
        if body != b"{":
            assert all(place.startswith("#") for place in pointers(answer)), problem
            assert pointers(answer), problem
    assert _state() == before


@pytest.mark.parametrize(("address", "method"), WRITES)
def test_every_write_refuses_a_body_of_100_megabytes_before_it_is_read(
    client: ApiClient, ids: dict[str, Any], address: str, method: str
) -> None:
    before = _state()
    answer = Client().generic(
        method,
        f"{ROOT}{filled(address, ids)}",
        b"{}",
        content_type="application/json",
        headers={"Authorization": f"Bearer {client.key}", "If-Match": "*"},
        CONTENT_LENGTH=str(100 * 1024 * 1024),
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert _state() == before


def _schedule(**values: Any) -> dict[str, Any]:
    config = {"task": ADD, "args": [1, 2]}
    return {"name": "nightly", "cron": "0 2 * * *", "target_config": config, **values}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"cron": "0," * 50_000 + "0 * * * *"}, "#/cron"),
        ({"cron": "*/0 * * * *"}, "#/cron"),
        ({"cron": "0-99999999999 * * * *"}, "#/cron"),
        ({"cron": "* * * * * * * *"}, "#/cron"),
        ({"cron": "0 0 31 2 *"}, "#/cron"),
        ({"cron": "\u0660 * * * *"}, "#/cron"),
        ({"cron": FILE}, "#/cron"),
        ({"cron": None, "rrule": "FREQ=SECONDLY;BYSECOND=" + "0," * 50_000 + "0"}, "#/rrule"),
        ({"cron": None, "rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}, "#/rrule"),
        ({"timezone": "/etc/localtime"}, "#/timezone"),
        ({"timezone": "..\\..\\UTC"}, "#/timezone"),
        ({"timezone": "Europe/../UTC"}, "#/timezone"),
        ({"timezone": "Europe//Berlin"}, "#/timezone"),
        ({"timezone": "posix/UTC"}, "#/timezone"),
        ({"timezone": "localtime"}, "#/timezone"),
        ({"timezone": "UTC\n"}, "#/timezone"),
        ({"timezone": "A/" * 3_000}, "#/timezone"),
        ({"start_time": "9999-12-31T23:59:59Z"}, "#/start_time"),
        ({"start_time": "0001-01-01T00:00:00Z"}, "#/start_time"),
        ({"end_time": "2020-01-01T00:00:00Z"}, "#/end_time"),
        ({"end_time": "2030-02-30T00:00:00Z"}, "#/end_time"),
        ({"interval_seconds": 1e300, "cron": None}, "#/interval_seconds"),
        ({"interval_seconds": 1e-9, "cron": None}, "#/interval_seconds"),
        ({"jitter": 1e300}, "#/jitter"),
        ({"expires_in": 1e300}, "#/expires_in"),
        ({"misfire_grace": 1e300}, "#/misfire_grace"),
        ({"catchup_window": 1e300}, "#/catchup_window"),
        ({"catchup_pace": 1e300}, "#/catchup_pace"),
        ({"calendar": FILE}, "#/calendar"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_schedule_that_is_no_schedule_names_its_field(
    acme: ApiClient, change: dict[str, Any], place: str
) -> None:
    body = {name: value for name, value in _schedule(**change).items() if value is not None}
    answer = acme.post("/recurring-tasks", body)
    assert answer.status_code in (400, 422), answer.content[:500]
    assert pointers(answer)[0].startswith(place), answer.content[:500]
    assert len(answer.content) < 5_000
    assert not RecurringTask.objects.filter(tenant=acme.tenant).exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run_at", "9999-12-31T23:59:59Z"),
        ("run_at", "1969-12-31T23:59:59Z"),
        ("run_at", "2030-13-01T00:00:00Z"),
        ("run_at", "2030-01-01T00:00:00+99:00"),
        ("run_at", "9" * 5_000),
        ("expires_at", "9999-12-31T23:59:59Z"),
        ("expires_at", "1970-01-01T00:00:00Z"),
        ("timeout", 1e300),
        ("timeout", -1),
    ],
)
def test_a_time_that_no_task_can_have_names_its_field(
    acme: ApiClient, field: str, value: Any
) -> None:
    answer = acme.post("/tasks", {"target_config": {"task": ADD, "args": [1, 2]}, field: value})
    assert (answer.status_code, pointers(answer)) == (422, [f"#/{field}"]), answer.content[:500]
    assert len(answer.content) < 5_000
    assert not Task.objects.filter(tenant=acme.tenant).exists()


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"headers": {"X-One": "a\r\nX-Two: b"}}, "#/target_config/headers"),
        ({"headers": {"X-One\r\nX-Two": "b"}}, "#/target_config/headers"),
        ({"headers": {"X-One: a\nX-Two": "b"}}, "#/target_config/headers"),
        ({"headers": {"Host": "internal"}}, "#/target_config/headers"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "#/target_config/headers"),
        ({"method": "GET / HTTP/1.1\r\nX: y"}, "#/target_config/method"),
        ({"url": "https://a.example/\r\nX: y"}, "#/target_config/url"),
        ({"url": "https://a.example/ HTTP/1.1"}, "#/target_config/url"),
        ({"url": "http://169.254.169.254/latest/meta-data/"}, "#/target_config/url"),
        ({"url": "file:///etc/passwd"}, "#/target_config/url"),
    ],
)
def test_a_request_with_a_second_header_or_to_a_forbidden_place_is_refused(
    acme: ApiClient, settings: Any, config: dict[str, Any], place: str
) -> None:
    settings.DURABLE_TASKS = {**SETTINGS, "API_TASKS": ["django_durable_tasks.*"]}
    target = {"url": "https://a.example/hook", **config}
    body = {"target_type": "HTTP_CALLBACK", "target_config": target}
    for path, more in (("/tasks", {}), ("/recurring-tasks", {"name": "n", "cron": "0 2 * * *"})):
        answer = acme.post(path, {**body, **more})
        assert (answer.status_code, pointers(answer)) == (422, [place]), answer.content
    assert not Task.objects.filter(tenant=acme.tenant).exists()
    assert not RecurringTask.objects.filter(tenant=acme.tenant).exists()


@pytest.mark.parametrize(
    "address",
    ["a@example.com\nBcc: b@example.com", "a@example.com\r\nSubject: x", "a\x00@example.com"],
)
def test_an_address_with_a_second_header_is_refused(acme: ApiClient, address: str) -> None:
    body = {"name": "ops", "delivery_type": "EMAIL", "delivery_config": {"to": [address]}}
    answer = acme.post("/notification-settings", body)
    assert answer.status_code in (400, 422), answer.content
    assert pointers(answer)[0].startswith("#/delivery_config"), answer.content
    assert not NotificationSetting.objects.filter(tenant=acme.tenant).exists()


def test_a_foreign_id_in_a_body_is_answered_like_one_that_does_not_exist(
    acme: ApiClient, globex: ApiClient
) -> None:
    own, foreign = rows_of(acme), rows_of(globex)
    path = f"/tasks/{own['task_id']}/dependencies"
    answers = [
        acme.post(path, {"upstream": str(upstream), "type": "MUST_SUCCEED"}, If_Match="*")
        for upstream in (foreign["task_id"], foreign["recurring_task_id"])
    ]
    found = [(one.status_code, one.json()["code"], pointers(one)) for one in answers]
    assert found[0] == found[1]
    assert answers[0].status_code in (404, 409, 422)
    named = acme.post("/recurring-tasks", _schedule(name="n", calendar="office-of-globex"))
    assert (named.status_code, pointers(named)) == (422, ["#/calendar"])

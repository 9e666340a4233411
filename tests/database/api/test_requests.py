"""Every bad request gets a problem that names the place, and never a 500."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError
from django.test import Client
from django.urls import resolve

from django_durable_tasks.contrib.api import parsing
from django_durable_tasks.contrib.api.tasks import TaskPagination
from django_durable_tasks.models import Task
from tests.database.api.client import ROOT, ApiClient, call, pointers
from tests.factories import a_task

pytestmark = pytest.mark.django_db


def _with(text: str) -> bytes:
    return json.dumps(call()).replace("[1]", f"[{text}]").encode()


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"", None),
        (b"{", None),
        (b"\xff\xfe", None),
        (b"nul", None),
        (b"[]", "#"),
        (b"5", "#"),
        (b"null", "#"),
        (b'{"target_config":{},"target_config":{}}', "#"),
        (_with("NaN"), "#/target_config/args/0"),
        (_with("-Infinity"), "#/target_config/args/0"),
        (_with("1e999"), "#/target_config/args/0"),
        (_with("9" * 5_000), "#/target_config/args/0"),
        (_with('"\\u0000"'), "#/target_config/args/0"),
        (_with('"\\ud800"'), "#/target_config/args/0"),
        (_with('{"a":[{"\\u0000":1}]}'), "#/target_config/args/0/a/0"),
        (_with("[" * 30 + "]" * 30), "#/target_config/args/0" + "/0" * 21),
        (_with("[" * 20 + "]" * 20), "#/target_config"),
        (b"[" * 100_000, "#"),
        (b'{"a":' * 100_000, "#"),
    ],
)
def test_a_body_that_cannot_be_stored_is_refused(
    acme: ApiClient, body: bytes, place: str | None
) -> None:
    response = acme.post("/tasks", body)
    assert response.status_code in (400, 422), response.content
    assert response.headers["Content-Type"] == "application/problem+json"
    problem = response.json()
    assert {"type", "title", "status", "detail", "instance", "request_id", "code"} <= set(problem)
    if place is not None:
        assert pointers(response) == [place], response.content
    assert not Task.objects.exists()


def test_a_large_body_is_refused_whatever_the_project_allows(
    acme: ApiClient, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "BODY_MAX_BYTES", 1_000)
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = None
    response = acme.post("/tasks", b" " * 1_001)
    assert (response.status_code, response.json()["code"]) == (413, "body_too_large")


def test_only_json_is_read(acme: ApiClient) -> None:
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/xml"):
        response = Client().generic(
            "POST",
            f"{ROOT}/tasks",
            b"a=b",
            content_type=kind,
            headers={"Authorization": f"Bearer {acme.key}"},
        )
        assert (response.status_code, response.json()["code"]) == (415, "unsupported_media_type")


def test_other_media_types_are_not_acceptable(acme: ApiClient) -> None:
    assert acme.get("/tasks", Accept="text/csv").status_code == 406
    for kind in ("*/*", "application/json", "text/html, */*;q=0.1", "application/problem+json"):
        assert acme.get("/tasks", Accept=kind).status_code == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE"])
def test_a_method_that_is_not_offered_names_the_others(acme: ApiClient, method: str) -> None:
    response = acme.send(method, "/tasks", {})
    assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed")
    assert set(response.headers["Allow"].split(", ")) == {"GET", "HEAD", "POST"}


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/nowhere",
        "/tasks/",
        "/tasks/5",
        "/tasks/%00",
        "/tasks/%0A/x",
        "/%0A",
        "/tasks/x/cancel",
        "/task",
    ],
)
def test_an_unknown_address_is_a_problem_too(acme: ApiClient, path: str) -> None:
    for method in ("GET", "POST", "PUT"):
        response = acme.send(method, path)
        assert (response.status_code, response.json()["code"]) == (404, "not_found")


def test_an_answer_has_the_id_of_its_request(acme: ApiClient) -> None:
    chosen = acme.get("/tasks", X_Request_Id="order-7")
    assert chosen.headers["X-Request-Id"] == "order-7"
    made = acme.get("/nowhere", X_Request_Id="a b\tc")
    assert made.headers["X-Request-Id"] == made.json()["request_id"] != "a b\tc"


def test_no_answer_is_cached_or_shared_with_other_origins(acme: ApiClient) -> None:
    response = acme.get("/tasks", Origin="https://evil.example")
    assert response.headers["Cache-Control"] == "no-store"
    assert not [name for name in response.headers if name.startswith("Access-Control")]


def test_the_type_of_a_problem_is_an_address_that_explains_it(acme: ApiClient) -> None:
    problem = acme.get("/nowhere").json()
    explained = Client().get(problem["type"]).json()
    assert (explained["status"], explained["code"]) == (404, "not_found")
    assert explained["remedy"]
    assert acme.get("/problems/nothing").status_code == 404


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (OperationalError("server closed the connection"), 503, "unavailable"),
        (DatabaseError("unexpected"), 500, "internal_error"),
        (KeyError("unexpected"), 500, "internal_error"),
    ],
)
def test_an_unexpected_error_is_a_problem_without_its_text(
    acme: ApiClient, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str
) -> None:
    def fail(*_arguments: object, **_more: object) -> None:
        raise error

    monkeypatch.setattr(TaskPagination, "rows_of", fail)
    response = acme.get("/tasks")
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert "unexpected" not in response.json()["detail"].lower().replace("an unexpected error", "")
    assert ("Retry-After" in response.headers) == (status == 503)


def test_each_write_opens_its_own_transaction_in_a_project_with_atomic_requests() -> None:
    view: Any = resolve(f"{ROOT}/tasks").func
    assert view._non_atomic_requests == {"default"}


def test_a_dry_run_shows_the_changes_and_writes_nothing(acme: ApiClient) -> None:
    created = acme.post("/tasks?dry_run=1", call())
    assert created.json()["would_answer"] == 201
    assert created.json()["would_return"]["status"] in ("PENDING", "QUEUED")
    assert not Task.objects.exists()
    row = a_task(tenant=acme.tenant)
    cancelled = acme.post(f"/tasks/{row.pk}/cancel?dry_run=1", {"reason": "test"})
    assert cancelled.json()["changes"]["status"] == {"before": "PENDING", "after": "CANCELLED"}
    edited = acme.patch(f"/tasks/{row.pk}?dry_run=1", {"priority": 4}, If_Match="*")
    assert edited.json()["changes"]["priority"] == {"before": 0, "after": 4}
    row.refresh_from_db()
    assert (row.status, row.priority, row.epoch) == ("PENDING", 0, 0)
    refused = acme.post(f"/tasks/{row.pk}/cancel?dry_run=yes", {})
    assert pointers(refused) == ["dry_run"]


@pytest.mark.urls("tests.project.nested_urls")
def test_the_addresses_follow_the_namespace_of_the_project(acme: ApiClient) -> None:
    created = acme.post("/jobs/api/v1/tasks", call())
    assert created.status_code == 201, created.content
    path = created.headers["Location"]
    assert path.startswith("/api/v1/jobs/api/v1/tasks/")
    assert acme.get(path).status_code == 200
    unknown = acme.get("/jobs/api/v1/no-such-address")
    assert unknown.json()["type"].startswith("/api/v1/jobs/api/v1/problems/")
    assert acme.get("/jobs/api/v1/schema").json()["servers"] == [{"url": "/api/v1/jobs/api/v1"}]

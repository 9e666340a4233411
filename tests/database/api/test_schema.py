"""The OpenAPI document is valid, and requests that are generated from it get documented answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from django.test import Client
from django.utils import timezone
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import Failure, FailureGroup

from django_durable_tasks.contrib.api import urls
from django_durable_tasks.models import SchedulerLease
from django_durable_tasks.schedules.timetables.rrule import MOST_COUNTED, MOST_DATES, MOST_LINES
from tests.database.api.client import ROOT, ApiClient, a_client
from tests.factories import many_tasks
from tests.repetitions import repetitions
from tests.runs import ROOT as ROOT_FOLDER

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]
SEED = 20_261_123
_WANTED = int(os.environ.get("TEST_SCHEMATHESIS_EXAMPLES") or 0)
EXAMPLES = {
    GenerationMode.POSITIVE: _WANTED or repetitions(4),
    GenerationMode.NEGATIVE: _WANTED or repetitions(4, least=1),
}
"""Requests per operation. More of them take longer and find more."""
SECONDS = 150.0
"""The time budget; operations that begin later are not tried."""
_REFUSALS = [400, 401, 403, 404, 405, 406, 409, 412, 413, 415, 422, 428, 429]
# The seed does not fix the requests: hypothesis also takes constants from the modules that are
# imported, which differ with the tests that ran before.


def test_the_document_describes_every_endpoint(acme: ApiClient) -> None:
    document = Client().get(f"{ROOT}/schema").json()
    assert document["openapi"].startswith("3.1")
    assert document["servers"] == [{"url": ROOT}]
    described = {path.replace("{", "<").replace("}", ">") for path in document["paths"]}
    for pattern in urls.urlpatterns:
        if pattern.name != "unknown":
            path = str(pattern.pattern)
            for kind in ("uuid:", "int:", "str:", "slug:"):
                path = path.replace(kind, "")
            assert f"/{path}" in described
    names = [
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    ]
    assert len(set(names)) == len(names)


def test_the_document_says_the_limits_of_timetables(acme: ApiClient) -> None:
    schemas = Client().get(f"{ROOT}/schema").json()["components"]["schemas"]
    bodies = [schema["properties"] for schema in schemas.values() if "properties" in schema]
    found = [body for body in bodies if {"rrule", "cron"} <= set(body)]
    assert found
    for described in found:
        for number in (MOST_LINES, MOST_DATES, MOST_COUNTED, described["rrule"]["maxLength"]):
            assert f"{number:,}" in described["rrule"]["description"]
        assert "Five fields" in described["cron"]["description"]


def test_the_page_to_try_the_api_loads_nothing_from_other_sites() -> None:
    page = Client().get(f"{ROOT}/docs", headers={"Accept": "text/html"}).content.decode()
    assert f'data-schema="{ROOT}/schema"' in page
    assert "http://" not in page
    assert "https://" not in page


def _operations(client: ApiClient) -> list[Any]:
    config = SchemathesisConfig.from_dict(
        {
            "seed": SEED,
            "checks": {
                "positive_data_acceptance": {
                    "expected-statuses": ["2xx", 304, 400, 404, 409, 412, 422, 503]
                },
                "negative_data_rejection": {"expected-statuses": _REFUSALS},
            },
        }
    )
    schema = schemathesis.openapi.from_wsgi(f"{ROOT}/schema", get_wsgi_application(), config=config)
    return [found.ok() for found in schema.get_all_operations()]


def test_generated_requests_get_documented_answers(acme: ApiClient) -> None:
    client = a_client(acme.tenant)
    many_tasks(2, due=3_600, tenant=acme.tenant)
    many_tasks(2, "FAILED", tenant=acme.tenant)
    later = timezone.now() + timedelta(hours=1)
    SchedulerLease.objects.update_or_create(name="leader", defaults={"expires_at": later})
    end = time.monotonic() + SECONDS
    operations = _operations(client)
    assert len(operations) > 50
    headers = {"Authorization": f"Bearer {client.key}"}
    failures = list[str]()
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            strategy = operation.as_strategy(generation_mode=mode)
            found = _failure(strategy, headers, EXAMPLES[mode]) if time.monotonic() < end else ""
            if found:
                failures.append(f"{operation.label}, {mode}: {found}")
    assert not failures, "\n\n".join(failures)


def _failure(strategy: Any, headers: dict[str, str], examples: int) -> str:
    """Send generated requests; return the first wrong answer, or an empty text."""

    @hypothesis.seed(SEED)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=strategy)
    def act(case: Any) -> None:
        case.call_and_validate(headers=headers)

    try:
        act()
    except hypothesis.errors.Unsatisfiable:
        return ""
    except (FailureGroup, Failure, ExceptionGroup) as wrong:
        return "".join(traceback.format_exception_only(wrong))[:1_500]
    return ""


def test_the_example_project_writes_the_document_without_warnings(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    command = [sys.executable, "example_project/manage.py", "spectacular", "--format"]
    ended = subprocess.run(
        [*command, "openapi-json", "--fail-on-warn", "--validate", "--file", str(file)],
        cwd=ROOT_FOLDER,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "config.settings"}
        | {"BILLING_FOLDER": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    document = json.loads(file.read_text())
    assert document["openapi"].startswith("3.1")
    assert "/api/v1/tasks" in document["paths"]
    assert "callback" in document["webhooks"]

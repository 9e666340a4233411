"""A dry run of any write leaves every table as it was and publishes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.db.models import Q

from django_durable_tasks import ports
from tests.database.api.client import ApiClient, call
from tests.database.api.endpoints import VALID, WITH_ID, WITHOUT_ID, filled, rows_of
from tests.process_state import new_process_state

pytestmark = pytest.mark.django_db(transaction=True)
_WRITES = sorted(
    {(address, method) for address, method in [*WITH_ID, *WITHOUT_ID] if method != "GET"}
)
_BODIES: dict[str, Any] = {
    "tasks": call(),
    "tasks/bulk": {"items": [call(), call(3)]},
    "workflows": {"name": "flow", "steps": [{"step": "a", **call()}]},
    "recurring-tasks": {"name": "new", "interval_seconds": 60, **call()},
    "calendars": {"name": "new"},
}
"""Bodies that are accepted."""
_CHANGED = {"limit_bucket": Q(scope__startswith="requests:"), "api_key": Q(pk__isnull=False)}
"""Rows of tables that count requests and the use of a key."""
_ANSWERS = (200, 400, 404, 409, 422)
"""The object may not be in the status that the operation needs."""


def _tables() -> dict[str, list[dict[str, Any]]]:
    return {
        model._meta.db_table: list(
            model._default_manager.exclude(
                _CHANGED.get(model._meta.db_table.removeprefix("durable_tasks_"), Q(pk=None))
            )
            .order_by("pk")
            .values()
        )
        for model in apps.get_models()
        if "durable_tasks" in model._meta.app_label
    }


def test_a_dry_run_writes_and_publishes_nothing(
    acme: ApiClient, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    ids = rows_of(acme)
    published = list[Any]()
    monkeypatch.setattr(ports, "publish", published.extend)
    for address, method in _WRITES:
        with subtests.test(f"{method} {address}"):
            new_process_state()
            before = _tables()
            path = filled(address, ids)
            path += ("&" if "?" in path else "?") + "dry_run=1"
            body = _BODIES.get(address) or VALID.get(address, {})
            answer = acme.send(method, path, body, If_Match="*", Idempotency_Key="k")
            accepted = (200,) if address in _BODIES else _ANSWERS
            assert answer.status_code in accepted, answer.content
            assert answer.status_code != 200 or answer.json()["dry_run"] is True
            assert address not in _BODIES or answer.json()["would_answer"] in (200, 201)
            assert _tables() == before
            assert published == []

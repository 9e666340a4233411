"""Shared fixtures of the admin tests."""

from typing import Any

import pytest
from django.conf import settings as project_settings
from django.test import Client, override_settings

from django_durable_tasks.admin import recurring_tasks
from tests.database.admin.full_tenant import a_full_tenant, hostile_rows, shared_rows
from tests.database.admin.site import operator

ZONES = frozenset({"UTC", "Europe/Berlin", "America/New_York"})


def _with_open_notifications() -> dict[str, Any]:
    return {
        **project_settings.DURABLE_TASKS,
        "NOTIFICATION_EMAIL_ALLOW": ["*@example.com"],
    }


@pytest.fixture(autouse=True)
def few_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the form of a schedule offer few zones: each of 600 options is a template to render."""
    monkeypatch.setattr(recurring_tasks, "zone_names", lambda: ZONES)


@pytest.fixture
def ann() -> Client:
    """Return a client logged in as a superuser."""
    return operator("ann")


@pytest.fixture
def open_notifications(settings: Any) -> None:
    """Permit the addresses of the notification settings."""
    settings.DURABLE_TASKS = _with_open_notifications()


@pytest.fixture(scope="module")
def full_rows(few_committed_rows: object) -> dict[str, Any]:
    """Create a row of each kind once for the tests of a module, and return them by model."""
    with override_settings(DURABLE_TASKS=_with_open_notifications()):
        return {**a_full_tenant("acme"), **shared_rows()}


@pytest.fixture(scope="module")
def hostile(few_committed_rows: object) -> dict[str, Any]:
    """Create ``hostile_rows()`` once for the tests of a module, and return them by model."""
    with override_settings(DURABLE_TASKS=_with_open_notifications()):
        return hostile_rows()

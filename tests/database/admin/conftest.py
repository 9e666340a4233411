"""Shared fixtures of the admin tests."""

from typing import Any

import pytest
from django.test import Client

from tests.database.admin.site import operator


@pytest.fixture
def ann() -> Client:
    """Return a client logged in as a superuser."""
    return operator("ann")


@pytest.fixture
def open_notifications(settings: Any) -> None:
    """Permit the addresses of the notification settings."""
    settings.DURABLE_TASKS = {
        **settings.DURABLE_TASKS,
        "NOTIFICATION_EMAIL_ALLOW": ["*@example.com"],
    }

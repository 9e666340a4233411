"""Notifications are on in these tests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.database.notifications.sending import SETTINGS
from tests.process_state import read_notification_settings


@pytest.fixture(autouse=True)
def notifications_are_on(settings: Any) -> None:
    """Record events, and open the local servers of the tests."""
    read_notification_settings()
    settings.DURABLE_TASKS = dict(SETTINGS)

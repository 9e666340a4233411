"""Notifications are on in these tests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.database.notifications.sending import SETTINGS


@pytest.fixture(autouse=True)
def notifications_are_on(settings: Any) -> None:
    """Switch notifications on, and open the local servers of the tests."""
    settings.DURABLE_TASKS = dict(SETTINGS)

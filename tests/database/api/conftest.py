"""Fixtures of the API: it is open, and two tenants have keys."""

from __future__ import annotations

from typing import Any

import pytest

from tests.database.api.client import SETTINGS, ApiClient, a_client, a_tenant


@pytest.fixture(autouse=True)
def api_is_open(settings: Any) -> None:
    """Open the API for the tasks of the test project."""
    settings.DURABLE_TASKS = dict(SETTINGS)


@pytest.fixture
def acme(db: None) -> ApiClient:
    """Return the client of a tenant that may do everything."""
    return a_client(a_tenant("acme"))


@pytest.fixture
def globex(db: None) -> ApiClient:
    """Return the client of another tenant."""
    return a_client(a_tenant("globex"))

"""Shared fixtures of the admin tests."""

import pytest
from django.test import Client

from tests.database.admin.site import operator


@pytest.fixture
def ann() -> Client:
    """Return a client logged in as a superuser."""
    return operator("ann")

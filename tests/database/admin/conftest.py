"""The browser of an operator, for the tests of the admin."""

import pytest
from django.test import Client

from tests.database.admin.site import operator


@pytest.fixture
def ann() -> Client:
    """Give the browser of an operator who has every permission."""
    return operator("ann")

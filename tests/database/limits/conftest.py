"""Ids in the order of creation, by which a waitlist sorts tasks of one priority."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stateful import ids_in_creation_order


@pytest.fixture(autouse=True)
def ordered_ids() -> Iterator[None]:
    """Order the ids of one millisecond too, so that tests can name the task that goes next."""
    with ids_in_creation_order():
        yield

"""The simulated death of a process in the property tests leaves a usable connection."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from tests.database.dependencies.random_graphs import Crash, dying_at


@pytest.mark.django_db
@pytest.mark.parametrize("point", range(4))
def test_an_operation_that_fails_and_dies_leaves_a_usable_connection(point: int) -> None:
    def fails() -> None:
        with dying_at(point), transaction.atomic():
            connection.cursor().execute("SELECT 1")
            raise ValueError

    with pytest.raises((Crash, ValueError)):
        fails()
    assert not connection.needs_rollback
    connection.cursor().execute("SELECT 1")


@pytest.mark.django_db
@pytest.mark.parametrize("point", range(3))
def test_a_process_dies_at_each_statement_of_a_transaction(point: int) -> None:
    with pytest.raises(Crash), dying_at(point), transaction.atomic():
        connection.cursor().execute("SELECT 1")

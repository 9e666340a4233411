"""Connections of our own: their limits, and what they must not leave behind a pooler."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, connections

from django_durable_tasks.lifecycle.connections import own

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


def _limits() -> dict[str, str]:
    with own(), connections["default"].cursor() as cursor:
        cursor.execute(
            "SELECT name, source FROM pg_settings WHERE name IN"
            " ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout')"
        )
        return dict(cursor.fetchall())


def test_a_connection_of_ours_waits_for_nothing_without_a_limit() -> None:
    assert set(_limits().values()) == {"session"}


def test_behind_a_pooler_no_limit_is_left_on_a_session_that_others_will_use(monkeypatch: pytest.MonkeyPatch) -> None:
    behind_a_pooler: dict[str, Any] = {**connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS": True}
    monkeypatch.setitem(connections.settings, "default", behind_a_pooler)
    assert "session" not in _limits().values()

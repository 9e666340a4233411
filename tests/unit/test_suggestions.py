"""The similar name that an error about an unknown task suggests."""

from __future__ import annotations

import pytest

from django_durable_tasks.texts import nearest_function

KNOWN = ("accounts.tasks.send_welcome", "billing.tasks.charge", "billing.tasks.refund_all")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accounts.tasks.send_welcom", "accounts.tasks.send_welcome"),
        ("accounts.task.send_welcome", "accounts.tasks.send_welcome"),
        ("billing.tasks.chargee", "billing.tasks.charge"),
        ("accounts.tasks.tick", ""),
        ("billing.tasks.report", ""),
        ("billing.tasks.ref", ""),
    ],
)
def test_another_function_of_the_module_is_not_suggested(name: str, expected: str) -> None:
    assert nearest_function(name, KNOWN) == expected

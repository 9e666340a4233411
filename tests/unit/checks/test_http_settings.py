"""The settings of HTTP callbacks and queue messages are checked."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, current_app
from kombu import Queue

from django_durable_tasks.checks.configuration import check_settings, retry_queue_findings


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"HTTP_ALLOW": "10.0.0.0/8"}, "give a list of hosts"),
        ({"HTTP_ALLOW": ["10.0.0.0/33"]}, "give a host, host:port or a network"),
        ({"HTTP_ALLOW": ["http://host"]}, "give a host"),
        ({"HTTP_PORTS": [0]}, "give a list of ports"),
        ({"HTTP_PORTS": 443}, "give a list of ports"),
        ({"HTTP_SIGNING_KEYS": ["short"]}, "at least 32 characters"),
        ({"QUEUE_ALLOW": "invoices"}, "give a list of names"),
        ({"HTTP_TIMEOUT": 0}, "give seconds > 0"),
        ({"NOTIFICATIONS": 1}, "give True or False"),
        ({"NOTIFICATION_EMAIL_ALLOW": "*@example.com"}, "give a list of names"),
        ({"HTTP_RETRY_QUEUE": ""}, "give a non-empty text"),
        ({"WATCHDOG_URL": "ftp://example.com/"}, "http:// or https://"),
        ({"WATCHDOG_URL": "http://10.0.0.1/"}, "not a public address"),
    ],
)
def test_an_unusable_setting_is_reported(given: dict[str, Any], part: str, settings: Any) -> None:
    settings.DURABLE_TASKS = given
    found = check_settings()
    assert [one.id for one in found] == ["durable_tasks.E001"]
    assert part in found[0].msg
    assert "short" not in found[0].msg.replace("shortest", "")


def test_usable_settings_are_accepted(settings: Any) -> None:
    settings.DURABLE_TASKS = {
        "HTTP_ALLOW": ["billing.internal:8080", "10.1.0.0/16", "fd00::/8", "[fd00::1]:8080", "::1"],
        "HTTP_PORTS": (443,),
        "HTTP_SIGNING_KEYS": ["k" * 32],
        "QUEUE_ALLOW": ("invoices", "exchange:events"),
    }
    assert not [one for one in check_settings() if one.id == "durable_tasks.E001"]


@pytest.mark.parametrize(("queue", "expected"), [("retries", []), ("nowhere", ["E021"])])
def test_a_retry_queue_that_is_not_declared_is_an_error(queue: str, expected: list[str]) -> None:
    before = current_app._get_current_object()
    app = Celery("retries", set_as_current=False, broker="memory://")
    app.conf.update(task_queues=[Queue("retries")], task_create_missing_queues=False)
    app.set_current()
    try:
        found = retry_queue_findings(queue)
        assert [one.id for one in found] == [f"durable_tasks.{name}" for name in expected]
    finally:
        before.set_current()

"""Celery's configuration is read without connecting, and an unavailable broker is named without its
password.
"""

from __future__ import annotations

import os

import pytest

from django_durable_tasks import registry
from django_durable_tasks.celery import inspect
from tests.celery_settings import celery_configured


@pytest.mark.parametrize(
    "url", ["redis://:hunter2@127.0.0.1:1/0", "amqp://ann:hunter2@127.0.0.1:1//"]
)
def test_an_unavailable_broker_is_named_without_its_password(url: str) -> None:
    with celery_configured(broker_url=url):
        problem = inspect.broker_problem()
    assert problem is not None
    assert "127.0.0.1:1" in problem
    assert "hunter2" not in problem


def test_a_broker_that_answers_is_no_problem() -> None:
    assert inspect.broker_problem() is None


@pytest.mark.parametrize(
    ("url", "transport", "visibility"),
    [
        ("redis://localhost/0", "redis", 3600.0),
        ("rediss://localhost/0", "rediss", 3600.0),
        ("sentinel://localhost", "sentinel", 3600.0),
        ("amqp://localhost", "amqp", None),
        ("durable-filesystem://", "durable-filesystem", None),
    ],
)
def test_a_transport_is_detected_by_its_name(
    url: str, transport: str, visibility: float | None
) -> None:
    with celery_configured(broker_url=url, broker_transport_options={}):
        config = inspect.read()
    assert (config.transport, config.visibility_timeout, config.broker_is_set) == (
        transport,
        visibility,
        True,
    )


def test_the_tasks_of_the_project_are_read_without_running_the_checks_again() -> None:
    before = os.environ.get("CELERY_SKIP_CHECKS")
    assert inspect.load_tasks() is None
    assert "tests.project.tasks.add" in registry.names()
    assert os.environ.get("CELERY_SKIP_CHECKS") == before

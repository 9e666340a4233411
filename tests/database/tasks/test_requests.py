"""Requests to RUNNING tasks made in a transaction are also applied in tests that run the hooks of
their transaction.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from django_durable_tasks.choices import Status
from django_durable_tasks.models import Task, TaskRequest
from django_durable_tasks.tasks import operator_actions
from tests.database.transitions.transition_calls import question
from tests.factories import many_tasks


@pytest.mark.django_db
def test_a_hook_that_has_run_does_not_apply_later_requests(
    django_capture_on_commit_callbacks: Any,
) -> None:
    for row in many_tasks(2, Status.RUNNING):
        with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
            operator_actions.cancel(question(row))
    assert Task.objects.exclude(cancel_requested_at=None).count() == 2
    assert not TaskRequest.objects.exists()

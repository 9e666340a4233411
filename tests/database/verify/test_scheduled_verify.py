"""The scheduled verification: a task for a schedule of the project, without repairs."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.verify.runner import CHECKS, VERIFY_TASK
from django_durable_tasks.models import DeadLetter, RecurringTask, Task
from django_durable_tasks.schedules import sync
from tests.database.verify.corruptions import DAMAGES
from tests.database.verify.healthy_rows import led
from tests.delivery import deliver
from tests.factories import a_task

pytestmark = pytest.mark.django_db(transaction=True)


def _schedule() -> Any:
    row = a_task(Status.QUEUED, name=VERIFY_TASK)
    deliver(row)
    row.refresh_from_db()
    assert row.status == "SUCCESS"
    return row.result


def test_a_schedule_of_the_project_may_run_the_verification(settings: Any) -> None:
    settings.DURABLE_TASKS = {"SCHEDULES": {"verify": {"task": VERIFY_TASK, "cron": "40 3 * * *"}}}
    sync.apply()
    row = RecurringTask.objects.get(name="verify")
    assert (row.task, row.status, row.source) == (VERIFY_TASK, "ACTIVE", "settings")


def test_a_verification_of_healthy_tables_finds_nothing() -> None:
    led()
    result = _schedule()
    assert (result["findings"], result["by_check"]) == (0, {})
    assert result["checks"] == len(CHECKS)


def test_a_verification_logs_and_counts_findings_and_repairs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    led()
    key = DAMAGES["dead-letters-missing"]()
    with caplog.at_level(logging.ERROR, logger="django_durable_tasks.verify"):
        result = _schedule()
    assert (result["findings"], result["by_check"]) == (1, {"dead-letters-missing": 1})
    assert f"dead-letters-missing (BROKEN): task {key}: dead_letters" in caplog.text
    assert "1 finding in total. Run `manage.py durable verify` for the list." in caplog.text
    assert (DeadLetter.objects.count(), Task.objects.get(pk=key).status) == (0, "FAILED")

"""The scheduled verification: declared with the cron of VERIFY_CRON, run as a durable task, without
repairs.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from django_durable_tasks import conf
from django_durable_tasks.choices import Status
from django_durable_tasks.conf import InvalidSetting
from django_durable_tasks.contrib.verify.runner import CHECKS
from django_durable_tasks.models import DeadLetter, RecurringTask, Task
from django_durable_tasks.schedules import sync
from django_durable_tasks.task_names import VERIFY_TASK
from tests.database.verify.corruptions import DAMAGES
from tests.database.verify.healthy_rows import led
from tests.delivery import deliver
from tests.factories import a_task

pytestmark = pytest.mark.django_db(transaction=True)


def _steps() -> dict[str, str]:
    return {
        step.name: f"{step.act} {step.reason}".strip()
        for step in sync.diff()
        if step.name == VERIFY_TASK
    }


def _schedule() -> Any:
    row = a_task(Status.QUEUED, name=VERIFY_TASK)
    deliver(row)
    row.refresh_from_db()
    assert row.status == "SUCCESS"
    return row.result


def test_without_the_setting_no_verification_is_declared() -> None:
    assert _steps() == {}


def test_the_setting_declares_the_verification_and_removing_it_pauses_it(settings: Any) -> None:
    settings.DURABLE_TASKS = {"VERIFY_CRON": "40 3 * * *"}
    assert _steps() == {VERIFY_TASK: "CREATE"}
    sync.apply()
    row = RecurringTask.objects.get(name=VERIFY_TASK)
    assert (row.task, row.status, row.source) == (VERIFY_TASK, "ACTIVE", "settings")
    assert row.next_run_at is not None
    assert (row.next_run_at.hour, row.next_run_at.minute) == (3, 40)
    settings.DURABLE_TASKS = {}
    assert _steps()[VERIFY_TASK].startswith("PAUSE")


def test_an_invalid_cron_is_refused(settings: Any) -> None:
    settings.DURABLE_TASKS = {"VERIFY_CRON": "now and then"}
    assert _steps()[VERIFY_TASK].startswith("REFUSE")
    settings.DURABLE_TASKS = {"VERIFY_CRON": 5}
    with pytest.raises(
        InvalidSetting, match=r"DURABLE_TASKS\['VERIFY_CRON'\] is 5: give a cron text"
    ):
        conf.settings()


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
    assert "1 findings in total. Run `manage.py durable verify` to list them." in caplog.text
    assert (DeadLetter.objects.count(), Task.objects.get(pk=key).status) == (0, "FAILED")

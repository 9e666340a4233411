"""Crons such as `0 0 31 2 *`, which never fire, are accepted on paused rows only."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.models import RecurringTask
from tests.project import tasks

pytestmark = pytest.mark.django_db
NEVER = "0 0 31 2 *"


def _declare(**given: Any) -> RecurringTask:
    found: RecurringTask = RecurringTask.objects.upsert(name="off", task=tasks.noop, **given)
    return found


def test_a_cron_that_never_fires_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match=r"'0 0 31 2 \*' can never fire.*pause it instead"):
        _declare(cron=NEVER)
    assert not RecurringTask.objects.exists()


def test_a_cron_that_never_fires_is_accepted_on_a_paused_row_which_cannot_be_resumed() -> None:
    row = _declare(cron=NEVER, paused=True)
    assert (row.status, row.next_run_at) == ("PAUSED", None)
    assert _declare(cron=NEVER, paused=True).revision == row.revision
    with pytest.raises(InvalidSchedule, match="would never fire"):
        row.resume()
    assert RecurringTask.objects.get().status == "PAUSED"


def test_an_active_row_does_not_accept_such_a_cron() -> None:
    _declare(interval=60)
    with pytest.raises(InvalidSchedule, match="would never fire"):
        _declare(cron=NEVER, paused=True)
    assert RecurringTask.objects.get().timetable == [{"interval": 60.0}]

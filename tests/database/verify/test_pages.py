"""``durable verify`` reads every row once, in pages, within its limit."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.verify import check as verify_check
from django_durable_tasks.contrib.verify import runner
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import DeadLetter, EndingEvent
from tests.database.verify.healthy_rows import a_waiting_task, led
from tests.factories import a_task, many_tasks

pytestmark = pytest.mark.django_db


def test_every_row_is_read_once_whatever_the_page_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = many_tasks(7, Status.FAILED)
    DeadLetter.objects.unguarded().all().delete()
    monkeypatch.setattr(verify_check, "PAGE", 3)
    reported: list[tuple[str, float]] = []
    [answer] = runner.verify(
        runner.chosen(["dead-letters-missing"]),
        progress=lambda table, part: reported.append((table, part)),
    )
    assert [finding.key for finding in answer.findings] == [row.pk for row in rows]
    assert answer.looked_at == 7
    assert [table for table, _ in reported] == ["tasks"] * 3
    assert reported[-1][1] == 1.0
    assert [part for _, part in reported] == sorted(part for _, part in reported)


def test_the_limit_ends_the_search() -> None:
    many_tasks(5, Status.FAILED)
    DeadLetter.objects.unguarded().all().delete()
    [answer] = runner.verify(runner.chosen(["dead-letters-missing"]), limit=2)
    assert (len(answer.findings), answer.more) == (2, True)
    [answer] = runner.verify(runner.chosen(["dead-letters-missing"]), limit=5)
    assert (len(answer.findings), answer.more) == (5, False)


def test_the_number_of_statements_does_not_grow_with_the_rows() -> None:
    led()
    numbers = []
    for _ in range(2):
        for _ in range(10):
            _write_one_of_each()
        with CaptureQueriesContext(connection) as captured:
            assert [answer.findings for answer in runner.verify() if answer.findings] == []
        numbers.append(len(captured))
    assert numbers[0] == numbers[1]


def _write_one_of_each() -> None:
    """Create a task of most statuses, a blocked one, and an ending event."""
    for status in set(Status) - {Status.BLOCKED}:
        a_task(status, due=3_600 if status == Status.PENDING else None)
    a_waiting_task()
    EndingEvent.objects.create(task_id=a_task(Status.SUCCESS).pk, epoch=3, status="SUCCESS")


def test_checks_are_selected_by_name_and_group_and_an_unknown_one_is_refused_with_the_nearest() -> (
    None
):
    assert [check.name for check in runner.chosen(["attempts"])] == ["attempts"]
    assert {check.group for check in runner.chosen(["orphans", "attempts"])} == {"orphans", "tasks"}
    with pytest.raises(InvalidOption, match="Did you mean 'watermarks'"):
        runner.chosen(["watermark"])

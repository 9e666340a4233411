"""The Python interface for operators: methods of managers and querysets, each with ``by`` and
``reason``.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from django.template import Context, Template
from django.utils import timezone

from django_durable_tasks import SpecialDay, Workflow
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.models import (
    Calendar,
    QueueControl,
    RecurringTask,
    Task,
)
from django_durable_tasks.models import SpecialDay as SpecialDayOfModels
from tests.database.dependencies.worker_and_leader import fail, of, resolve_all
from tests.factories import a_task
from tests.project.tasks import add, noop

pytestmark = pytest.mark.django_db
WHY: dict[str, Any] = {"by": "ada", "reason": "typing error"}


def _now(row: Task) -> Task:
    found: Task = Task.objects.get(pk=row.pk)
    return found


def test_an_ended_task_is_replayed_with_other_arguments() -> None:
    row = a_task("FAILED", name=add.name, args=[1, "x"])
    assert Task.objects.filter(pk=row.pk).replay(**WHY, args=[1, 2]) == [row.pk]
    replayed, letter = _now(row), row.dead_letters.get()
    assert (replayed.status, replayed.args, replayed.reason) == (
        "PENDING",
        [1, 2],
        "replayed by ada: typing error",
    )
    assert (letter.resolution, letter.resolved_by, letter.comment) == (
        "REPLAYED",
        "ada",
        "typing error",
    )


def test_only_the_ended_tasks_of_a_queryset_are_replayed() -> None:
    failed, cancelled, waiting = a_task("FAILED"), a_task("CANCELLED"), a_task("PENDING")
    assert set(Task.objects.filter(queue="test").replay()) == {failed.pk, cancelled.pk}
    assert _now(waiting).epoch == waiting.epoch


def test_a_queryset_with_a_join_and_an_order_can_be_replayed() -> None:
    failed, other = a_task("FAILED"), a_task("FAILED")
    letters = other.dead_letters.all()
    letters.discard(**WHY)
    question = Task.objects.filter(dead_letters__resolution="").order_by("-priority")
    assert question.replay() == [failed.pk]


def test_replaced_arguments_do_not_apply_to_dependents_that_run_again() -> None:
    wf = Workflow("edited")
    first = wf.add(add, 1, "x", step="first")
    wf.add(noop, step="second", after=first)
    run = wf.start()
    fail(of(run, "first"))
    resolve_all()
    assert of(run, "second").status == "SKIPPED"
    Task.objects.filter(pk=of(run, "first").pk).replay(**WHY, args=[1, 2])
    assert (of(run, "first").args, of(run, "second").args) == ([1, 2], [])
    assert of(run, "second").status == "BLOCKED"


def test_tasks_are_cancelled_by_queryset_and_by_key() -> None:
    first, keyed, running = a_task(), a_task(key="k"), a_task("RUNNING")
    assert Task.objects.filter(pk__in=[first.pk, running.pk]).cancel(**WHY) == 2
    assert Task.objects.cancel("k", **WHY) == 1
    for row in (first, keyed):
        assert (_now(row).status, _now(row).reason) == (
            "CANCELLED",
            "CANCELLED by ada: typing error",
        )
    assert (_now(running).status, _now(running).cancel_requested_at is not None) == (
        "RUNNING",
        True,
    )


def test_tasks_are_rescheduled_by_queryset_and_by_key() -> None:
    later = timezone.now() + timedelta(days=1)
    first, keyed = a_task(), a_task("QUEUED", key="k")
    assert Task.objects.filter(pk=first.pk).reschedule(later, **WHY) == 1
    assert Task.objects.reschedule("k", later, **WHY) == 1
    for row in (first, keyed):
        assert (_now(row).status, _now(row).run_at) == ("PENDING", later)
        assert _now(row).reason == "rescheduled by ada: typing error"


def test_without_user_and_reason_the_reason_is_empty() -> None:
    row = a_task("FAILED")
    Task.objects.filter(pk=row.pk).replay()
    assert _now(row).reason == ""


def test_a_queue_is_paused_and_resumed() -> None:
    QueueControl.objects.pause("mail", **WHY)
    row = QueueControl.objects.get(name="mail")
    assert (row.paused_at is not None, row.paused_by, row.reason) == (True, "ada", "typing error")
    assert QueueControl.objects.resume("mail", by="bob", reason="it is right again") is True
    assert QueueControl.objects.resume("mail") is False
    row.refresh_from_db()
    assert (row.paused_at, row.paused_by, row.reason) == (None, "bob", "it is right again")


def test_a_calendar_is_written_as_a_whole_and_removed() -> None:
    christmas = SpecialDay(date(2030, 12, 25), name="Christmas")
    assert SpecialDay is SpecialDayOfModels
    calendar = Calendar.objects.upsert("office", working_days=[1, 2], days=[christmas], **WHY)
    assert (calendar.working_days, calendar.updated_by, calendar.reason) == (
        [1, 2],
        "ada",
        "typing error",
    )
    assert calendar.special == (christmas,)
    RecurringTask.objects.upsert(name="daily", task=noop, cron="0 9 * * *", calendar="office")
    with pytest.raises(TransitionRefused, match="daily"):
        Calendar.objects.remove("office", **WHY)
    RecurringTask.objects.get().cancel(**WHY)
    assert Calendar.objects.remove("office", **WHY) is True
    assert Calendar.objects.remove("office") is False


def test_a_schedule_stores_who_resumed_and_triggered_it_and_why() -> None:
    row = RecurringTask.objects.upsert(name="daily", task=noop, cron="0 9 * * *")
    row.pause(**WHY)
    row.resume(by="bob", reason="it is right again")
    assert (row.status_by, row.status_reason) == ("bob", "it is right again")
    row.trigger_now(**WHY)
    assert row.occurrences.get(outcome="MANUAL").reason == "by ada: typing error"


@pytest.mark.parametrize(
    "action", ["replay", "retry", "cancel", "force_complete", "delete", "update"]
)
def test_a_template_does_not_call_methods_that_change_tasks(action: str) -> None:
    row = a_task("FAILED")
    shown = Template("{{ tasks." + action + " }}").render(Context({"tasks": Task.objects.all()}))
    assert (shown, _now(row).epoch) == ("", row.epoch)

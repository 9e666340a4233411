"""An operator in a real browser finds out why a task did not run, replays it, edits its arguments,
pauses its queue.
"""

import pytest
from django.urls import reverse

from django_durable_tasks.choices import Resolution, Status
from django_durable_tasks.models import DeadLetter, QueueControl, Task
from tests.browser.conftest import Visit
from tests.factories import a_log_row, a_node, a_paused_queue, a_task, many_tasks

pytestmark = pytest.mark.timeout(300)

APP = "/admin/django_durable_tasks/"
TRACEBACK = (
    "Traceback (most recent call last):\n  File tasks.py, line 41\nBroken: the card was declined"
)
EVIL = "<script>window.stolen=1</script></script><img src=x onerror=window.stolen=1>"


def test_an_operator_sees_why_a_task_failed_and_replays_it(visit: Visit) -> None:
    task = a_task(Status.FAILED, queue="payments", last_error="Broken: declined")
    a_log_row(task, traceback=TRACEBACK, worker="celery@worker-1")
    visit.log_in()
    visit.go(APP)
    visit.press("Overview")
    visit.shows("1 dead letter is open.")
    visit.follow("Dead letters")
    visit.shows("EXHAUSTED")
    visit.find("#result_list th a").click()
    visit.shows("Replay tasks")
    assert "the card was declined" not in visit.text()
    visit.find(".durable-fold summary").click()
    visit.shows("the card was declined")
    visit.press("Replay tasks…")
    visit.shows("This changes 1 row.")
    visit.find("input[type='submit'][value^='Yes']").click()
    visit.shows("Replayed 1 task.")
    assert Task.objects.get(pk=task.pk).status == Status.PENDING
    letter = DeadLetter.objects.get()
    assert (letter.resolution, letter.resolved_by) == (Resolution.REPLAYED, "ann")


def test_an_operator_pauses_a_queue_with_a_reason_and_resumes_it(visit: Visit) -> None:
    many_tasks(3, queue="payments")
    visit.log_in()
    visit.go(f"{APP}queuecontrol/")
    visit.find("a[href$='pause/?queue=payments']").click()
    visit.shows("3 tasks wait.")
    visit.write("reason", "the bank is down")
    visit.find("[type='submit'][value='Pause queue']").click()
    visit.shows("Paused queue payments.")
    assert "by ann: the bank is down" in visit.text()
    assert QueueControl.objects.get().paused_at is not None
    visit.press("Resume")
    visit.shows("Resumed queue payments.")
    assert QueueControl.objects.get().paused_at is None


def test_an_operator_cancels_selected_tasks_after_confirmation(visit: Visit) -> None:
    many_tasks(3)
    visit.log_in()
    visit.go(f"{APP}task/")
    visit.find("#action-toggle").click()
    visit.find("select[name='action'] option[value='cancel']").click()
    visit.find("button[name='index']").click()
    visit.shows("This changes 3 rows")
    assert Task.objects.filter(status=Status.PENDING).count() == 3
    visit.write("reason", "wrong tariff")
    visit.press("Yes: Cancel tasks (3)")
    visit.shows("Cancelled 3 tasks.")
    assert Task.objects.filter(status=Status.CANCELLED).count() == 3


def test_an_operator_edits_the_arguments_of_a_failed_task(visit: Visit) -> None:
    task = a_task(Status.FAILED, name="tests.project.tasks.add", args=[1, "x"])
    visit.log_in()
    visit.go(reverse("admin:django_durable_tasks_task_change", args=[task.pk]))
    visit.press("Replay with edited arguments")
    visit.shows("A JSON list of the positional arguments.")
    visit.write("args", "[1, 2, 3]")
    visit.find("[type='submit'][value='Replay with edited arguments']").click()
    visit.shows("too many positional arguments")
    visit.write("args", "[1, 2]")
    visit.find("[type='submit'][value='Replay with edited arguments']").click()
    visit.shows("Replayed the task with edited arguments.")
    assert Task.objects.get(pk=task.pk).args == [1, 2]


def _addresses() -> list[str]:
    task = a_task(
        Status.FAILED, name=EVIL, queue=EVIL, args=[EVIL], kwargs={EVIL: EVIL}, last_error=EVIL
    )
    log = a_log_row(task, error_message=EVIL, traceback=EVIL, worker=EVIL)
    node = a_node(name=EVIL, queues=[EVIL])
    a_paused_queue(EVIL, reason=EVIL)
    rows = [task, log, DeadLetter.objects.get(), node]
    lists = (
        "task",
        "taskexecutionlog",
        "deadletter",
        "queuecontrol",
        "node",
        "schedulerlease",
        "tenant",
    )
    return [
        *(f"{APP}{row._meta.model_name}/{row.pk}/change/" for row in rows),
        *(f"{APP}{name}/" for name in lists),
        f"{APP}task/overview/",
        f"{APP}task/charts/?period=24h",
        f"{APP}task/{task.pk}/replay/",
        APP,
    ]


def test_no_page_violates_the_strictest_policy_and_hostile_text_is_escaped(
    visit: Visit,
) -> None:
    addresses = _addresses()
    visit.log_in()
    visit.console_errors()
    for address in addresses:
        visit.go(address)
        assert visit.console_errors() == [], address
        assert visit.chrome.execute_script("return window.stolen") is None, address
        assert visit.find("#content h1").is_displayed()

"""An operator in a real browser finds out why a task did not run, replays it, edits its arguments,
pauses its queue.
"""

from typing import Any

import pytest

from django_durable_tasks.choices import Resolution, Status
from django_durable_tasks.models import DeadLetter, QueueControl, Task
from tests.browser.conftest import Visit
from tests.database.admin.full_tenant import MODEL_ADMINS, hostile_rows, pages_of
from tests.database.admin.site import list_of
from tests.database.notifications.sending import SETTINGS
from tests.factories import a_log_row, a_task, many_tasks

pytestmark = pytest.mark.timeout(300)

APP = "/admin/django_durable_tasks/"
TRACEBACK = (
    "Traceback (most recent call last):\n  File tasks.py, line 41\nBroken: the card was declined"
)


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
    visit.shows("Replay task")
    visit.shows("the card was declined")
    visit.press("Replay task…")
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


def test_no_page_violates_the_strictest_policy_and_hostile_text_is_escaped(
    visit: Visit, settings: Any
) -> None:
    settings.DURABLE_TASKS = dict(SETTINGS)
    rows = hostile_rows()
    visit.log_in()
    for model_admin in MODEL_ADMINS:
        address = list_of(str(model_admin.opts.model_name))
        pages = [
            address,
            f"{address}add/",
            *pages_of(model_admin, rows[str(model_admin.opts.model_name)]),
        ]
        for page in (page for page in pages if not page.endswith(".svg")):
            visit.go(page)
            # Chromium reports a page that is refused or not found here, too.
            refused = [text for text in visit.console_errors() if "status of 40" not in text]
            assert refused == [], page
            assert visit.chrome.execute_script("return window.stolen") is None, page
    visit.go(f"{APP}task/overview/")
    assert visit.console_errors() == []

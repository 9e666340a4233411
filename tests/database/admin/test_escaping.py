"""User input is escaped on every page, and no page needs inline scripts or styles."""

from datetime import date
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from django_durable_tasks.choices import SpecialDay, Status
from django_durable_tasks.models import (
    Calendar,
    DeadLetter,
    Node,
    OccurrenceRecord,
    QueueControl,
    RecurringTask,
    Task,
    TaskExecutionLog,
    Tenant,
)
from django_durable_tasks.schedules import calendars
from tests.database.admin.site import act, list_of, operator, page_of
from tests.database.recurring.schedules import a_schedule, at, fire
from tests.factories import a_log_row, a_node, a_paused_queue, a_task, a_tenant
from tests.project import tasks

pytestmark = pytest.mark.django_db

EVIL = "<script>alert(1)</script></pre></script><img src=x onerror=alert(1)>\"'"
MARK = "&lt;script&gt;alert(1)&lt;/script&gt;"
LISTS = (
    "task",
    "taskexecutionlog",
    "deadletter",
    "queuecontrol",
    "node",
    "schedulerlease",
    "tenant",
    "recurringtask",
    "occurrencerecord",
    "calendar",
)
DATA = ("application/json", "importmap")


class _Inline(HTMLParser):
    """Collects what a strict Content-Security-Policy would refuse, and elements that only EVIL
    could have created.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        inline = tag == "script" and "src" not in given and given.get("type") not in DATA
        handlers = [name for name in given if name == "style" or name.startswith("on")]
        link = (given.get("href") or "").lower().startswith("javascript:")
        if inline or tag == "style" or handlers or link or given.get("src") == "x":
            self.found.append(self.get_starttag_text() or tag)


def _refused(page: str) -> list[str]:
    return _Inline(page).found


def _schedule() -> list[Any]:
    """Return a schedule, ledger entries and a calendar with EVIL in every field that users can
    write.
    """
    calendars.upsert(
        EVIL, days=[SpecialDay(date(2026, 3, 4), name=EVIL)], description=EVIL, origin=EVIL
    )
    row = a_schedule(
        EVIL,
        task=tasks.echo,
        args=[EVIL],
        kwargs={EVIL: EVIL},
        calendar=EVIL,
        description=EVIL,
        overlap_key=EVIL.replace("{", ""),
        misfire_grace=5,
    )
    fire(at(3600 + 30))
    row.refresh_from_db()
    row.override(at(7, days=9_999), "ADD", reason=EVIL, by=EVIL)
    row.pause(EVIL, by=EVIL)
    RecurringTask.objects.unguarded().update(error=EVIL, source="<i>x</i>")
    OccurrenceRecord.objects.unguarded().update(reason=EVIL)
    return [row, *OccurrenceRecord.objects.all(), Calendar.objects.get()]


def _task_rows() -> list[Any]:
    """Create a task in each status with EVIL in every text field. The failed task is the first."""
    tenant = a_tenant(name=EVIL)
    node = a_node(name=EVIL, host=EVIL, pool=EVIL[:50], version=EVIL[:50], queues=[EVIL])
    texts: dict[str, Any] = {
        "name": EVIL,
        "queue": EVIL,
        "args": [EVIL, {EVIL: EVIL}],
        "kwargs": {EVIL: EVIL},
        "last_error": EVIL,
        "reason": EVIL,
        "key": EVIL,
        "tenant": tenant,
    }
    task = a_task(
        Status.FAILED, idempotency_key=EVIL, options={EVIL: EVIL}, progress={EVIL: EVIL}, **texts
    )
    a_task(Status.RUNNING, **{**texts, "key": None})
    a_task(Status.SUCCESS, result={EVIL: [EVIL]}, **{**texts, "key": None})
    log = a_log_row(task, error_message=EVIL, traceback=EVIL, worker=EVIL, celery_id=EVIL)
    DeadLetter.objects.unguarded().update(
        error_message=EVIL,
        comment=EVIL,
        resolved_by=EVIL,
        reason="<i>x</i>",
        fingerprint="<b>x</b>",
    )
    a_paused_queue(EVIL, reason=EVIL)
    QueueControl.objects.update(paused_by=EVIL)
    return [task, *Task.objects.exclude(pk=task.pk), log, *DeadLetter.objects.all(), node, tenant]


def _addresses() -> list[str]:
    task, *of_tasks = _task_rows()
    schedule, *others = _schedule()
    rows = [task, *of_tasks, schedule, *others]
    operations = ("pause", "resume", "run_now", "override", "backfill", "remove_override", "cancel")
    return [
        *map(list_of, LISTS),
        *map(page_of, rows),
        *(
            reverse("admin:django_durable_tasks_recurringtask_do", args=[schedule.pk, operation])
            for operation in operations
        ),
        *(
            reverse(f"admin:django_durable_tasks_{row._meta.model_name}_edit", args=[row.pk])
            for row in (schedule, others[-1])
        ),
        f"{page_of(schedule)}?at={EVIL}",
        (
            f"{reverse('admin:django_durable_tasks_recurringtask_do', args=[schedule.pk, 'override'])}?fire_time={EVIL}"
        ),
        reverse("admin:django_durable_tasks_overview"),
        f"{reverse('admin:durable_tasks_metrics_metricminute_changelist')}?queue={EVIL}",
        reverse("admin:django_durable_tasks_task_replay", args=[task.pk]),
        reverse("admin:django_durable_tasks_task_history", args=[task.pk]),
        f"{reverse('admin:django_durable_tasks_queuecontrol_pause')}?queue=%3Cscript%3Ealert(1)%3C/script%3E",
        reverse("admin:app_list", args=["django_durable_tasks"]),
    ]


def test_user_input_is_escaped_on_every_page_and_no_page_contains_a_script_or_style() -> None:
    ann = operator(EVIL[:100])
    seen = 0
    for address in _addresses():
        page = ann.get(address, follow=True).content.decode()
        assert "<script>alert" not in page, address
        assert "<img src=x" not in page, address
        assert "<i>x</i>" not in page, address
        assert "<b>x</b>" not in page, address
        assert not _refused(page), address
        seen += MARK in page
    assert seen > 15


def test_confirmations_messages_and_history_escape_user_input() -> None:
    ann = operator()
    task = a_task(name=EVIL)
    asked = act(
        ann, "cancel", task, confirm=False, durable_from_page=EVIL, select_across=EVIL
    ).content.decode()
    refused = act(ann, "force_complete", task, reason="").content.decode()
    act(ann, "cancel", task, reason=EVIL)
    content = ann.get(list_of("task")).content.decode()
    history = ann.get(
        reverse("admin:django_durable_tasks_task_history", args=[task.pk])
    ).content.decode()
    for page in (asked, refused, content, history):
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert not _refused(page)
    assert EVIL in LogEntry.objects.get().change_message
    assert MARK in history


def test_the_pages_of_a_node_and_a_tenant_with_long_names_open() -> None:
    ann = operator()
    long = "n" * 255
    for row in (a_node(name=long, host=long), a_tenant(name=long[:200])):
        assert ann.get(page_of(row)).status_code == 200
    assert Node.objects.exists()
    assert Tenant.objects.count() == 2
    assert not TaskExecutionLog.objects.exists()


def test_the_checker_finds_what_a_strict_policy_refuses() -> None:
    for page in (
        "<script>x</script>",
        "<p style='x'>",
        "<style>",
        "<img src=x onerror=y>",
        "<a href='JavaScript:x'>",
    ):
        assert _refused(page), page
    assert not _refused('<script src="/static/x.js"></script><p title="style=">onerror=</p>')

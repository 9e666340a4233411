"""User input is escaped on every page, and no page needs inline scripts or styles."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from django_durable_tasks import Workflow
from tests.database.admin.full_tenant import EVIL, MARK, MODEL_ADMINS, pages_of
from tests.database.admin.site import act, list_of, page_of
from tests.database.admin.workflow_actions import choose, do
from tests.database.dependencies.worker_and_leader import of
from tests.factories import a_task
from tests.project.tasks import noop

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("open_notifications")]

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
    raw = [text for text in ("<script>window", "<img src=x", "<i>x</i>") if text in page]
    return raw + _Inline(page).found


@pytest.mark.parametrize("model_admin", MODEL_ADMINS, ids=lambda one: one.opts.model_name)
def test_user_input_is_escaped_on_every_page(
    ann: Client, model_admin: Any, hostile: dict[str, Any]
) -> None:
    model = str(model_admin.opts.model_name)
    row = type(hostile[model]).objects.get(pk=hostile[model].pk)
    marked = 0
    listed = [list_of(model), f"{list_of(model)}?q={EVIL}", f"{list_of(model)}add/?task={EVIL}"]
    pages = [
        *listed,
        *pages_of(model_admin, row),
        f"{page_of(row)}?at={EVIL}&state={EVIL}&p={EVIL}",
    ]
    for page in pages:
        answers = [ann.get(page, follow=True)]
        if "/do/" in page:
            answers += [ann.post(page, follow=True)]
        for answer in answers:
            content = answer.content.decode()
            assert answer.status_code in (200, 400, 403, 404), page
            assert answer["Content-Type"].startswith("image/") or not _refused(content), page
            marked += MARK in content
    # Nobody writes into the lease.
    assert marked >= (0 if model == "schedulerlease" else 2)


@pytest.mark.usefixtures("hostile")
def test_user_input_is_escaped_on_pages_without_a_row(ann: Client) -> None:
    queue_page = reverse("admin:django_durable_tasks_queuecontrol_pause")
    metrics = reverse("admin:durable_tasks_metrics_metricminute_changelist")
    for page in (
        reverse("admin:django_durable_tasks_overview"),
        reverse("admin:app_list", args=["django_durable_tasks"]),
        f"{metrics}?queue={EVIL}",
        f"{queue_page}?queue={EVIL}",
        f"{list_of('task')}?status__exact=FAILED&name={EVIL}&queue={EVIL}",
    ):
        assert not _refused(ann.get(page, follow=True).content.decode()), page


def test_confirmations_previews_messages_and_history_escape_user_input(ann: Client) -> None:
    task = a_task(name=EVIL)
    wf = Workflow("outer")
    wf.add(noop, step=f"last {EVIL}", after=wf.add(noop, step=EVIL, approval=EVIL))
    run = wf.start(key=EVIL)
    first, last = of(run, EVIL), of(run, f"last {EVIL}")
    cycle = {"task": str(first.pk), "upstream": str(last.pk), "type": "MUST_SUCCEED", "_look": "1"}
    history = reverse("admin:django_durable_tasks_task_history", args=[task.pk])
    hostile = {"durable_from_page": EVIL, "select_across": EVIL}
    answers = [
        act(ann, "cancel", task, confirm=False, **hostile),
        act(ann, "force_complete", task, reason=""),
        act(ann, "cancel", task, reason=EVIL),
        ann.get(list_of("task")),
        ann.get(history),
        choose(ann, "force_run", last, run=EVIL),
        ann.post(reverse("admin:django_durable_tasks_taskdependency_add"), cycle),
        do(ann, run, "cancel", reason=EVIL),
    ]
    pages = [answer.content.decode() for answer in answers]
    assert not [_refused(page) for page in pages if _refused(page)]
    assert sum(MARK in page for page in pages) >= 6
    assert LogEntry.objects.filter(change_message__contains=EVIL).count() == 2


def test_a_downloaded_diagram_is_not_served_as_a_page(ann: Client) -> None:
    wf = Workflow("outer")
    wf.add(noop, step=EVIL)
    run = wf.start()
    for ending in ("svg", "json", "mmd", "txt"):
        answer = ann.get(
            reverse("admin:django_durable_tasks_workflowrun_graph", args=[run.pk, ending])
        )
        assert answer["Content-Disposition"].startswith("attachment")
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert ending != "svg" or "<script>" not in answer.content.decode()


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

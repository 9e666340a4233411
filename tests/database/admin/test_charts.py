"""The page of charts: what it shows, to whom, and what it says when it shows nothing."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_durable_tasks.contrib.metrics import admin as metrics_admin
from django_durable_tasks.models import Tenant
from django_durable_tasks.store.clock import database_now
from tests.database.admin.site import limited_staff, list_of, staff, text
from tests.database.metrics.counting import a_minute
from tests.factories import a_paused_queue

pytestmark = pytest.mark.django_db
EVIL = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def metrics(settings: Any) -> None:
    """Keep the counts for eight days."""
    settings.DURABLE_TASKS = {"RETENTION": {"METRICS": 8 * 86_400}}


@pytest.fixture
def now() -> datetime:
    return database_now()


def _open(client: Client, **query: str) -> Any:
    return client.get(reverse("admin:durable_tasks_metrics_metricminute_changelist"), query)


def _table(answer: Any, number: int) -> list[list[str]]:
    """Return the cells of a table of the page, without its header."""
    table = re.findall(
        r"<table class=.durable-table.*?</table>", answer.content.decode(), re.DOTALL
    )[number]
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)[1:]
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


def test_the_page_shows_endings_and_durations_as_drawings_and_tables(
    ann: Client, now: datetime
) -> None:
    a_minute(now - timedelta(minutes=2), 30, seconds=0.2)
    a_minute(now - timedelta(minutes=2), 3, status="FAILED")
    answer = _open(ann)
    shown = text(answer)
    for title in ("Endings per minute", "Run time of attempts", "Wait for a scheduler"):
        assert title in shown
    assert "SUCCESS 30" in shown
    assert "FAILED 3" in shown
    endings, run_time = _table(answer, 0), _table(answer, 1)
    assert len(endings) == len(run_time) == 60
    assert endings[-3][1:] == ["30", "3"]
    assert endings[-1][1:] == ["0", "0"]
    assert run_time[-3][1:] == ["175 ms", "242 ms"]
    assert run_time[-1][1:] == ["-", "-"]
    drawings = re.findall(
        r"<svg [^>]*aria-labelledby=.*?</svg>", answer.content.decode(), re.DOTALL
    )
    assert len(drawings) == 4
    ids = [ET.fromstring(one).attrib["aria-labelledby"] for one in drawings]
    assert len(set(ids)) == 4


@pytest.mark.parametrize(("period", "points"), [("1h", 60), ("24h", 96), ("7d", 168)])
def test_a_period_is_chosen(ann: Client, now: datetime, period: str, points: int) -> None:
    a_minute(now, 1)
    answer = _open(ann, period=period)
    assert len(_table(answer, 0)) == points
    assert f'href="?period={period}" aria-current="page"' in answer.content.decode()


def test_a_queue_and_a_task_are_chosen(ann: Client, now: datetime) -> None:
    a_minute(now, 1, queue="mail", name="send")
    a_minute(now, 2, queue="bulk", name="send")
    assert "SUCCESS 3" in text(_open(ann, name="send"))
    answer = _open(ann, queue="bulk", period="24h")
    assert "SUCCESS 2" in text(answer)
    assert '<option value="bulk" selected>' in answer.content.decode()
    assert 'href="?period=7d&amp;queue=bulk"' in answer.content.decode()
    assert "No attempt ended in this period." in text(_open(ann, queue="bulk", name="other"))


def test_an_empty_page_says_why(ann: Client) -> None:
    assert "No attempt ended in this period." in text(_open(ann))


def test_a_period_longer_than_the_retention_is_explained(
    ann: Client, now: datetime, settings: Any
) -> None:
    settings.DURABLE_TASKS = {}
    a_minute(now)
    assert "METRICS in RETENTION" not in text(_open(ann, period="24h"))
    assert "Counts are kept for 2 d (METRICS in RETENTION)." in text(_open(ann, period="7d"))


def test_a_shortened_period_is_explained(
    ann: Client, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_admin, "ROWS_MAX", 1)
    for ago in range(3):
        a_minute(now - timedelta(minutes=ago))
    assert "The charts begin at" in text(_open(ann))


@pytest.mark.parametrize("value", ["\x00", "é" * 300, EVIL, "7D"])
@pytest.mark.parametrize("name", ["period", "queue", "name"])
def test_any_query_string_is_answered(ann: Client, now: datetime, name: str, value: str) -> None:
    a_minute(now)
    answer = _open(ann, **{name: value})
    assert answer.status_code == 200
    assert EVIL not in answer.content.decode()


def test_names_are_escaped(ann: Client, now: datetime) -> None:
    a_minute(now, queue=EVIL, name=EVIL, status=EVIL[:16])
    page = _open(ann).content.decode()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_a_limited_user_sees_the_counts_of_assigned_tenants_only(
    now: datetime, settings: Any
) -> None:
    settings.DURABLE_TASKS = {"METRICS_TENANTS": True}
    acme, globex = (Tenant.objects.create(slug=slug, name=slug) for slug in ("acme", "globex"))
    for number, tenant in enumerate((0, acme.pk, globex.pk), start=1):
        a_minute(now, number, tenant=tenant, queue=f"queue-{tenant}", name=f"task-{tenant}")
    bob = limited_staff(acme)
    for query in ({}, {"queue": f"queue-{globex.pk}"}, {"name": f"task-{globex.pk}"}):
        answer = _open(bob, **query)
        expected = "No attempt ended" if query else "SUCCESS 2"
        assert expected in text(answer)
        choices = re.findall(r'<option value="([^"]+)"(?! selected)', answer.content.decode())
        assert set(choices) == {f"queue-{acme.pk}", f"task-{acme.pk}"}


def test_a_limited_user_is_told_that_tenants_are_not_counted(now: datetime) -> None:
    a_minute(now)
    shown = text(_open(limited_staff(Tenant.objects.create(slug="acme", name="acme"))))
    assert "METRICS_TENANTS is not set" in shown
    assert "SUCCESS" not in shown


def test_the_charts_need_the_permission_to_view_tasks(now: datetime) -> None:
    assert _open(staff()).status_code == 403
    assert _open(staff("view_task")).status_code == 200


def test_the_page_needs_as_many_statements_for_one_series_as_for_fifty(
    ann: Client, now: datetime
) -> None:
    counts = set()
    for number in (1, 50):
        for series in range(number):
            a_minute(now - timedelta(minutes=number), queue=f"queue{series}", seconds=0.1)
        with CaptureQueriesContext(connection) as captured:
            _open(ann)
        counts.add(len(captured))
    assert len(counts) == 1
    assert counts.pop() <= 8


def test_other_pages_link_to_the_charts(ann: Client) -> None:
    a_paused_queue("mail & more")
    address = reverse("admin:durable_tasks_metrics_metricminute_changelist")
    for page in (
        list_of("task"),
        reverse("admin:django_durable_tasks_overview"),
        reverse("admin:app_list", args=["django_durable_tasks"]),
    ):
        assert f'href="{address}"' in ann.get(page).content.decode(), page
    of_queue = f'href="{address}?queue=mail%20%26%20more"'
    assert of_queue in ann.get(list_of("queuecontrol")).content.decode()
    without = staff("view_queuecontrol").get(list_of("queuecontrol")).content.decode()
    assert "mail &amp; more" in without
    assert address not in without

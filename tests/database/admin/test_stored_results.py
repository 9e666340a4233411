"""If django-celery-results is installed, an attempt links to its stored result; otherwise the page
works without it.
"""

from __future__ import annotations

import html
import re

import pytest
from django.apps import apps
from django_celery_results.models import TaskResult

from django_durable_tasks.admin import display
from django_durable_tasks.choices import Status
from django_durable_tasks.models import TaskExecutionLog
from tests.database.admin.site import operator, page_of
from tests.factories import a_log_row, a_task

pytestmark = pytest.mark.django_db


def _log_row() -> TaskExecutionLog:
    task = a_task(Status.FAILED)
    return a_log_row(task, celery_id=f"{task.pk}.3.1")


def test_an_attempt_links_to_the_result_of_django_celery_results() -> None:
    row = _log_row()
    TaskResult.objects.create(task_id=row.celery_id, status="FAILURE")
    TaskResult.objects.create(task_id="another", status="SUCCESS")
    ann = operator()
    for page in (page_of(row), page_of(row.task)):
        content = ann.get(page).content.decode()
        (address,) = re.findall(rf'href="([^"]*)">{re.escape(row.celery_id)}<', content)
        results = ann.get(html.unescape(address)).context["cl"].result_list
        assert [result.task_id for result in results] == [row.celery_id]


def test_an_attempt_shows_only_its_celery_id_if_results_are_not_stored() -> None:
    # Other than a change of INSTALLED_APPS, this calls no `ready()` a second time.
    apps.set_available_apps(
        {one.name for one in apps.get_app_configs()} - {"django_celery_results"}
    )
    try:
        assert display.stored_result("some.3.1") == "some.3.1"
        assert display.stored_result("") == display.NOTHING
    finally:
        apps.unset_available_apps()


def test_hostile_celery_ids_are_escaped() -> None:
    assert "<b>" not in display.stored_result("<b>")
    assert "%3Cb%3E" in display.stored_result("<b>")

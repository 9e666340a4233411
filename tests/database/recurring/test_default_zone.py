"""The default zone of a schedule: CELERY_TIMEZONE, otherwise TIME_ZONE."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import current_app

from django_durable_tasks.celery.inspect import schedule_zone
from django_durable_tasks.checks import check_settings
from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.schedules import sync
from django_durable_tasks.schedules.explain import preview
from tests.celery_settings import celery_configured
from tests.database.admin.site import operator
from tests.database.commands.durable_command import json_of
from tests.project import tasks

pytestmark = pytest.mark.django_db

NAME = "tests.project.tasks.noop"


@pytest.fixture
def berlin(settings: Any) -> None:
    """Set the project's time zone to Europe/Berlin."""
    settings.TIME_ZONE = "Europe/Berlin"


def _upsert() -> RecurringTask:
    return RecurringTask.objects.upsert(name="daily", task=tasks.noop, cron="0 9 * * *")


def test_the_most_specific_setting_is_used(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    assert schedule_zone() == "Europe/Berlin"
    with celery_configured(timezone="Asia/Tokyo"):
        assert schedule_zone() == "Asia/Tokyo"


def test_celerys_zone_may_be_an_object_or_only_a_setting(settings: Any) -> None:
    with celery_configured(timezone=ZoneInfo("Asia/Tokyo")):
        assert schedule_zone() == "Asia/Tokyo"
    assert current_app.conf.get("timezone") is None
    settings.CELERY_TIMEZONE = "Asia/Tokyo"
    assert schedule_zone() == "Asia/Tokyo"


@pytest.mark.parametrize("name", ["Mars/Phobos", "localtime"])
def test_a_setting_with_an_unknown_zone_is_refused_with_its_name(settings: Any, name: str) -> None:
    settings.CELERY_TIMEZONE = name
    with pytest.raises(InvalidSchedule, match=r"^CELERY_TIMEZONE names no time zone: "):
        _upsert()
    assert not RecurringTask.objects.exists()


def test_nine_o_clock_is_nine_in_the_zone_of_the_project(berlin: None) -> None:
    row = _upsert()
    assert row.time_zone == "Europe/Berlin"
    assert row.next_run_at is not None
    assert row.next_run_at.astimezone(ZoneInfo("Europe/Berlin")).hour == 9


def test_a_schedule_keeps_its_zone_when_the_settings_change(settings: Any) -> None:
    _upsert()
    settings.TIME_ZONE = "Europe/Berlin"
    assert (
        RecurringTask.objects.upsert(name="daily", task=tasks.noop, cron="0 10 * * *").time_zone
        == "UTC"
    )
    row = RecurringTask.objects.upsert(name="daily", task=tasks.noop, timezone="Europe/Berlin")
    assert row.time_zone == "Europe/Berlin"


def test_declared_schedules_get_the_default_zone_on_creation_and_keep_it(settings: Any) -> None:
    settings.DURABLE_TASKS = {"SCHEDULES": {"declared": {"task": NAME, "cron": "0 9 * * *"}}}
    settings.TIME_ZONE = "Europe/Berlin"
    sync.apply()
    assert RecurringTask.objects.get(name="declared").time_zone == "Europe/Berlin"
    settings.TIME_ZONE = "Asia/Tokyo"
    assert [step for step in sync.diff() if step.name == "declared"] == []
    assert RecurringTask.objects.get(name="declared").time_zone == "Europe/Berlin"


def _previewed() -> str:
    return preview(name="new", task=tasks.noop, cron="0 9 * * *").row.time_zone


def _offered() -> str:
    page = operator().get("/admin/django_durable_tasks/recurringtask/add/")
    return str(page.context["form"]["timezone"].value())


def _drafted() -> str:
    fires = json_of(
        "preview", "--cron", "0 9 * * *", "--start", "2026-07-01T00:00:00Z", "--count", "1"
    )
    at = (fires["fires"] if isinstance(fires, dict) else fires)[0]["nominal"]
    return "Europe/Berlin" if datetime.fromisoformat(at).astimezone(UTC).hour == 7 else "another"


@pytest.mark.parametrize("shown", [_previewed, _offered, _drafted])
def test_a_preview_and_the_form_show_the_zone_that_saving_would_use(
    berlin: None, shown: Callable[[], str]
) -> None:
    assert shown() == "Europe/Berlin"


# The system check ---------------------------------------------------------------------------------


def test_a_check_reports_a_zone_that_differs_from_another_setting(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    assert check_settings() == []
    with celery_configured(timezone="UTC"):
        [message] = check_settings()
        assert message.id == "durable_tasks.W014"
        assert "use UTC (CELERY_TIMEZONE), but TIME_ZONE is Europe/Berlin" in message.msg
    settings.TIME_ZONE = "Etc/UTC"
    with celery_configured(timezone="UTC"):
        assert check_settings() == []


def test_an_unknown_zone_of_schedules_is_an_error(settings: Any) -> None:
    settings.CELERY_TIMEZONE = "Mars/Phobos"
    [message] = check_settings()
    assert message.id == "durable_tasks.E001"
    assert "CELERY_TIMEZONE" in message.msg

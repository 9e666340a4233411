"""Checks of whole projects, run as `manage.py check` runs them."""

from __future__ import annotations

from pathlib import Path

from tests.unit.checks.checked_projects import WIRED, _checked


def test_a_project_without_a_celery_application_is_told_how_to_make_one(tmp_path: Path) -> None:
    said = _checked(tmp_path)
    assert "durable_tasks.E007" in said
    assert "app.autodiscover_tasks()" in said


def test_an_application_that_only_the_first_thread_sees_is_none(tmp_path: Path) -> None:
    early = "from celery import current_app; current_app.conf; " + WIRED["__init__"]
    assert "durable_tasks.E007" in _checked(tmp_path, **{**WIRED, "__init__": early})


def test_a_wired_project_is_silent(tmp_path: Path) -> None:
    told = (
        "CELERY_BROKER_URL = 'durable-filesystem:///var/shop'\nCELERY_WORKER_PREFETCH_MULTIPLIER"
        " = 1\n"
    )
    assert "no issues" in _checked(tmp_path, told, **WIRED)


def test_a_project_without_a_broker_is_warned(tmp_path: Path) -> None:
    assert "durable_tasks.W009" in _checked(tmp_path, **WIRED)


def test_a_module_of_tasks_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    said = _checked(tmp_path, **WIRED, tasks="raise LookupError('no such shop')")
    assert "durable_tasks.E018" in said
    assert "LookupError: no such shop" in said


def test_a_wrong_option_of_a_task_is_an_error_with_the_right_one(tmp_path: Path) -> None:
    tasks = (
        "from django_durable_tasks import durable_task\n@durable_task(time_limit=5)\ndef sell():"
        " ...\n"
    )
    said = _checked(tmp_path, **WIRED, tasks=tasks)
    assert "durable_tasks.E018" in said
    assert "no option 'time_limit'. Write timeout=" in said

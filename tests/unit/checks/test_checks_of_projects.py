"""Checks of whole projects, run as `manage.py check` runs them."""

from __future__ import annotations

from pathlib import Path

from tests.unit.checks.checked_projects import WIRED, _checked


def test_a_project_without_a_celery_application_gets_instructions(tmp_path: Path) -> None:
    said = _checked(tmp_path)
    assert "durable_tasks.E007" in said
    assert "app.autodiscover_tasks()" in said


def test_an_application_that_is_current_in_one_thread_only_does_not_count(tmp_path: Path) -> None:
    early = "from celery import current_app; current_app.conf; " + WIRED["__init__"]
    assert "durable_tasks.E007" in _checked(tmp_path, **{**WIRED, "__init__": early})


def test_a_valid_project_has_no_findings(tmp_path: Path) -> None:
    settings = (
        "CELERY_BROKER_URL = 'durable-filesystem:///var/shop'\nCELERY_WORKER_PREFETCH_MULTIPLIER"
        " = 1\n"
    )
    assert "no issues" in _checked(tmp_path, settings, **WIRED)


def test_a_project_without_a_broker_is_warned(tmp_path: Path) -> None:
    assert "durable_tasks.W009" in _checked(tmp_path, **WIRED)


def test_a_task_module_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    said = _checked(tmp_path, **WIRED, tasks="raise LookupError('no such shop')")
    assert "durable_tasks.E018" in said
    assert "LookupError: no such shop" in said


def test_an_invalid_task_option_is_an_error_with_the_valid_one(tmp_path: Path) -> None:
    tasks = (
        "from django_durable_tasks import durable_task\n@durable_task(time_limit=5)\ndef sell():"
        " ...\n"
    )
    said = _checked(tmp_path, **WIRED, tasks=tasks)
    assert "durable_tasks.E018" in said
    assert "no option 'time_limit'. Write timeout=" in said

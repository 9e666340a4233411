"""The plugin of pytest in the project of a user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import ROOT

SETTINGS = """
SECRET_KEY = "x"
INSTALLED_APPS = [
    "django.contrib.auth", "django.contrib.contenttypes", "django_durable_tasks", "shop",
]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
USE_TZ = True
CELERY_BROKER_URL = "redis://127.0.0.1:1/0"
DURABLE_TASKS = {}
"""
TASKS = """
from django_durable_tasks import durable_task

@durable_task
def add(a, b):
    return a + b
"""
TESTS = """
import pytest
from django.test import TestCase
from django_durable_tasks.celery import publisher
from django_durable_tasks.ports import TaskMessage
from shop.tasks import add


def message(task):
    return TaskMessage(task_id=task.pk, epoch=1, number=1, name=task.name, queue=task.queue,
                       priority=0)


@pytest.mark.django_db
def test_drained(durable_tasks, durable_drain):
    add.schedule(1, 2)
    durable_tasks.assert_scheduled(add, args=(1, 2))
    assert [attempt.task.result for attempt in durable_drain()] == [3]


@pytest.mark.django_db
def test_sending():
    publisher.publish([message(add.schedule(1, 2))])


@pytest.mark.django_db
@pytest.mark.durable_tasks(broker=True)
def test_allowed():
    with pytest.raises(Exception, match="broker"):
        publisher.publish([message(add.schedule(1, 2))])


class Tests(TestCase):
    def test_of_unittest(self):
        from django_durable_tasks.testing import drain

        add.schedule(2, 2)
        self.assertEqual(drain()[0].status, "SUCCESS")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Provide a project with a task and tests."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop_settings.py").write_text(SETTINGS)
    (tmp_path / "shop" / "tasks.py").write_text(TASKS)
    (tmp_path / "shop" / "test_shop.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nDJANGO_SETTINGS_MODULE = shop_settings\n")
    return tmp_path


def _pytest(project: Path, *arguments: str) -> tuple[int, str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TEST_", "PYTEST_", "DJANGO_"))
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis", *arguments]
    done = subprocess.run(
        command,
        cwd=project,
        env=environment | {"PYTHONPATH": f"{project}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_test_that_would_reach_the_broker_fails_and_names_the_remedy(project: Path) -> None:
    code, output = _pytest(project)
    assert code == 1, output
    assert "4 passed, 1 error" in output, output
    assert "would have sent 1 message to redis://127.0.0.1:1/0: shop.tasks.add" in output
    assert "durable_tasks(broker=True)" in output


def test_the_guard_can_be_switched_off_and_refuses_other_values(project: Path) -> None:
    code, output = _pytest(project, "-o", "durable_tasks_broker=allow", "-k", "sending")
    assert code == 1
    assert "BrokerUnavailable" in output
    code, output = _pytest(project, "-o", "durable_tasks_broker=never")
    assert code == 4
    assert "give 'refuse' or 'allow'" in output

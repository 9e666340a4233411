"""What a process loads when Django starts, before it needs anything: every command, test run and
probe pays for it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from tests.runs import ROOT

LOADED_WHEN_NEEDED = ("redis", "kombu.transport.redis", "rest_framework", "holidays", "ephem")


def test_django_starts_without_clients_that_the_project_does_not_use() -> None:
    code = """
import sys
import celery, django
from django.conf import settings
apps = ["auth", "contenttypes", "admin", "sessions", "messages"]
settings.configure(
    INSTALLED_APPS=[*(f"django.contrib.{name}" for name in apps), "django_durable_tasks"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    CELERY_BROKER_URL="durable-filesystem://",
)
app = celery.Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
django.setup()
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "django_durable_tasks.decorators" in loaded
    assert loaded & set(LOADED_WHEN_NEEDED) == set()


def test_notifications_say_that_they_need_callbacks() -> None:
    without = [name for name in settings.INSTALLED_APPS if not name.endswith(".callbacks")]
    with (
        pytest.raises(ImproperlyConfigured, match="add it to INSTALLED_APPS"),
        override_settings(INSTALLED_APPS=without),
    ):
        pass

"""What a process loads when Django starts, before it needs anything: every command, test run and
probe pays for it. And what it loads without the optional packages.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from tests.runs import ROOT

_WITHOUT = """
import importlib, os, pkgutil, sys

missing, left_out, needing = (words.split(",") for words in sys.argv[1:])
for name in missing:
    sys.modules[name] = None
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
import django

django.setup()
import django_durable_tasks

package = "django_durable_tasks."
left_out = tuple(package + name for name in ("migrations", *left_out))
for found in pkgutil.walk_packages(django_durable_tasks.__path__, package):
    if not found.name.startswith(left_out):
        importlib.import_module(found.name)
for name in needing:
    try:
        importlib.import_module(package + name)
    except ImportError:
        print(name)
"""
LOADED_WHEN_NEEDED = ("redis", "kombu.transport.redis", "rest_framework", "holidays", "ephem")


def _output(*arguments: str) -> str:
    """Run Python with these arguments; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    loaded = set(_output(code).split())
    assert "django_durable_tasks.decorators" in loaded
    assert loaded & set(LOADED_WHEN_NEEDED) == set()


def test_notifications_say_that_they_need_callbacks() -> None:
    without = [name for name in settings.INSTALLED_APPS if not name.endswith(".callbacks")]
    with (
        pytest.raises(ImproperlyConfigured, match="add it to INSTALLED_APPS"),
        override_settings(INSTALLED_APPS=without),
    ):
        pass


def test_models_of_an_optional_app_name_the_app_that_is_missing() -> None:
    code = """
from importlib import import_module
import django
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import module_has_submodule
import pkgutil
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_durable_tasks"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
before = set(apps.get_models())
contrib = import_module("django_durable_tasks.contrib")
for package in pkgutil.iter_modules(contrib.__path__, "django_durable_tasks.contrib."):
    if module_has_submodule(import_module(package.name), "models"):
        try:
            import_module(package.name + ".models")
        except ImproperlyConfigured as error:
            assert f"{package.name!r}: add it to INSTALLED_APPS" in str(error), error
            print(package.name)
assert set(apps.get_models()) == before
try:
    from django_durable_tasks import http_callback
except ImproperlyConfigured as error:
    print(error)
"""
    refused = _output(code)
    for app in ("api", "callbacks", "database_transport", "metrics", "notifications"):
        assert f"django_durable_tasks.contrib.{app}\n" in refused, refused
    assert "needs the app 'django_durable_tasks.contrib.callbacks'" in refused


@pytest.mark.parametrize(
    ("missing", "left_out", "needing"),
    [
        (
            "prometheus_client,opentelemetry",
            "contrib.metrics.exposition,contrib.metrics.tracing",
            "contrib.metrics.exposition,contrib.metrics.tracing",
        ),
        ("rest_framework,drf_spectacular", "contrib.api", "contrib.api.urls"),
    ],
    ids=["metrics and tracing", "API"],
)
def test_everything_but_what_needs_an_optional_package_is_imported_without_it(
    missing: str, left_out: str, needing: str
) -> None:
    assert _output(_WITHOUT, missing, left_out, needing).split() == needing.split(",")

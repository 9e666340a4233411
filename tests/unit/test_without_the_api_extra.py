"""The package works without REST framework; only `api/` needs it."""

import subprocess
import sys

from tests.runs import ROOT

_PROGRAM = """
import importlib, os, pkgutil, sys

for name in ("rest_framework", "drf_spectacular"):
    sys.modules[name] = None
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
import django

django.setup()
import django_durable_tasks

for found in pkgutil.walk_packages(django_durable_tasks.__path__, "django_durable_tasks."):
    if not found.name.startswith(("django_durable_tasks.contrib.api", "django_durable_tasks.migrations")):
        importlib.import_module(found.name)
try:
    importlib.import_module("django_durable_tasks.contrib.api.urls")
except ImportError:
    print("only the API needs them")
"""


def test_everything_but_the_api_is_imported_without_rest_framework() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stdout.strip() == "only the API needs them", ended.stderr

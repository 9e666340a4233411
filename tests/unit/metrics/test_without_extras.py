"""The package works without the client of Prometheus and without OpenTelemetry."""

import subprocess
import sys

from tests.runs import ROOT

_PROGRAM = """
import importlib, os, pkgutil, sys

for name in ("prometheus_client", "opentelemetry"):
    sys.modules[name] = None
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
import django

django.setup()
import django_durable_tasks

package = "django_durable_tasks."
left_out = tuple(package + name for name in ("contrib.metrics.exposition", "contrib.metrics.tracing", "migrations"))
for found in pkgutil.walk_packages(django_durable_tasks.__path__, package):
    if not found.name.startswith(left_out):
        importlib.import_module(found.name)
for name in ("contrib.metrics.exposition", "contrib.metrics.tracing"):
    try:
        importlib.import_module(package + name)
    except ImportError:
        print(name)
"""


def test_everything_but_metrics_and_tracing_is_imported_without_the_extras() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    expected = ["contrib.metrics.exposition", "contrib.metrics.tracing"]
    assert ended.stdout.split() == expected, ended.stderr

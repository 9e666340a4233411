"""x"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.architecture.sources import ROOT

_SETTINGS = """
SECRET_KEY = "only for tests"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["django_durable_tasks", *%r]
"""


_CELERY = """
from celery import Celery
app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""


def _checked(folder: Path, settings: str = "", **files: str) -> str:
    """Run Django's checks in a project with these files, and return their output."""
    apps = ["shop"] if files else []
    (folder / "shop_settings.py").write_text(_SETTINGS % apps + settings)
    if files:
        (folder / "shop").mkdir()
        for name, text in files.items():
            (folder / "shop" / f"{name}.py").write_text(text)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TEST_", "CELERY_"))
    }
    environment |= {
        "DJANGO_SETTINGS_MODULE": "shop_settings",
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
    }
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-m", "django", "check"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = answer.stdout + answer.stderr
    assert "Traceback" not in said, said
    return said


WIRED = {"__init__": "from shop.celery import app as celery_app", "celery": _CELERY}

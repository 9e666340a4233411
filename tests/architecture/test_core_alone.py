"""``INSTALLED_APPS += ["django_durable_tasks"]`` is enough: no optional app is imported, no table of
one is created, and admin and command line work. So does the API as the only optional app.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from django.apps import apps

from django_durable_tasks.cluster.status import ALERT_SOURCES
from django_durable_tasks.command.subcommand import OPTIONAL_SUBCOMMANDS
from django_durable_tasks.operations import OPERATIONS
from django_durable_tasks.scheduler.jobs import OPTIONAL_JOBS
from django_durable_tasks.states.guarded_update import RECORDERS
from tests.runs import ROOT

PROJECT = """
import sys

import django
from celery import Celery
from django.conf import settings

CORE = ["auth", "contenttypes", "sessions", "messages", "admin"]
WITH_API = "api" in sys.argv
settings.configure(
    INSTALLED_APPS=[
        *(f"django.contrib.{name}" for name in CORE),
        "django_durable_tasks",
        *(["django_durable_tasks.contrib.api"] if WITH_API else []),
    ],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "alone.sqlite3"}},
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    ROOT_URLCONF="alone_urls",
    SECRET_KEY="a key of a test",
    STATIC_URL="/static/",
    ALLOWED_HOSTS=["testserver"],
    USE_TZ=True,
    DURABLE_TASKS={"API_SESSIONS": True} if WITH_API else {},
)
app = Celery("alone", broker="memory://", set_as_current=True)
app.set_default()
django.setup()

from django.core.management import call_command
from django.db import connection

call_command("check")
call_command("migrate", verbosity=0)
call_command("durable", "list")
call_command("run_scheduler", "--once")
try:
    call_command("durable", "calendars", "delete", "--name", "office", "--tenant", "default")
except SystemExit as ended:
    assert ended.code == 2  # there is no such calendar
tables = {name for name in connection.introspection.table_names() if name.startswith("durable")}
assert len(tables) == (23 if WITH_API else 18), tables
loaded = [name for name in sys.modules if name.startswith("django_durable_tasks.contrib.")]
# The API documents the messages of notifications, whose types need no model.
types = "django_durable_tasks.contrib.notifications.messages"
apps = {name.split(".")[2] for name in loaded if name.count(".") > 2 and name != types}
assert apps == ({"api"} if WITH_API else set()), loaded

from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client

User.objects.create_superuser("ada", "ada@example.com", "secret")
client = Client()
client.login(username="ada", password="secret")
for model in admin.site._registry:
    page = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
    assert client.get(page).status_code == 200, page
if WITH_API:
    assert client.get("/api/v1/tasks").status_code == 200
    assert client.get("/api/v1/notification-settings").status_code == 404
print("ALONE")
"""

URLS = """
from django.apps import apps
from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls)]
if apps.is_installed("django_durable_tasks.contrib.api"):
    urlpatterns.append(path("api/v1/", include("django_durable_tasks.contrib.api.urls")))
"""


def _output(folder: Path, *arguments: str) -> str:
    """Run Python with these arguments in the folder; return its output."""
    answer = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.mark.parametrize("app", ["none", "api"])
def test_the_core_works_without_optional_apps(tmp_path: Path, app: str) -> None:
    pytest.importorskip("rest_framework")
    program = tmp_path / "alone.py"
    program.write_text(PROJECT)
    (tmp_path / "alone_urls.py").write_text(URLS)
    assert "ALONE" in _output(tmp_path, str(program), app)


WITHOUT_ADMIN = """
import sys

import django
from celery import Celery
from django.conf import settings

OPTIONAL = ["api", "callbacks", "metrics", "notifications", "verify", "beat", "diagrams"]
settings.configure(
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django_durable_tasks",
        *(f"django_durable_tasks.contrib.{name}" for name in OPTIONAL),
    ],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    SECRET_KEY="a key of a test",
    USE_TZ=True,
)
app = Celery("alone", broker="memory://", set_as_current=True)
app.set_default()
django.setup()
parts = ("django.contrib.admin", "django_durable_tasks.admin", "rest_framework")
assert not [name for name in sys.modules if name.startswith(parts)]

from django.core.management import call_command

call_command("check")
call_command("migrate", verbosity=0)
call_command("run_scheduler", "--once")
print("ALONE")
"""


def test_every_optional_app_works_in_a_project_without_the_admin(tmp_path: Path) -> None:
    assert "ALONE" in _output(tmp_path, "-c", WITHOUT_ADMIN)


def test_an_optional_app_registers_once_however_often_it_is_made_ready() -> None:
    """Django calls ``ready()`` again if a test of a project changes INSTALLED_APPS."""

    def registered() -> list[int]:
        places = (OPTIONAL_JOBS, OPTIONAL_SUBCOMMANDS, RECORDERS, ALERT_SOURCES, OPERATIONS)
        return [len(place) for place in places]

    before = registered()
    optional = [app for app in apps.get_app_configs() if ".contrib." in app.name]
    ours = [app for app in optional if app.name.startswith("django_durable_tasks.")]
    assert len(ours) >= 4
    for app in ours:
        app.ready()
    assert registered() == before


# Each app in a fork, because Django is set up once in a process.
_WITHOUT_CORE = """
import os
import sys

import django
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

for app in sys.argv[1:]:
    if not os.fork():
        settings.configure(
            INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", app],
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        )
        try:
            django.setup()
        except ImproperlyConfigured as error:
            print(app, str(error).replace("\\n", " "), flush=True)
        os._exit(0)
    os.wait()
"""


def test_an_optional_app_without_the_core_says_which_app_to_add(tmp_path: Path) -> None:
    folders = sorted((ROOT / "django_durable_tasks/contrib").glob("*/apps.py"))
    names = [f"django_durable_tasks.contrib.{path.parent.name}" for path in folders]
    lines = _output(tmp_path, "-c", _WITHOUT_CORE, *names).splitlines()
    assert [line.partition(" ")[0] for line in lines] == names
    for line in lines:
        assert "add 'django_durable_tasks' to INSTALLED_APPS" in line, line

"""Every block of settings of README and docs, pasted at the end of the settings of a fresh project,
does what its page describes: Django and Celery know its names, nothing of the project is removed,
and `manage.py check` has no finding.
"""

from __future__ import annotations

import ast
import base64
import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery.app.defaults import DEFAULTS
from django.conf import global_settings
from django.core.management import call_command

from django_durable_tasks import conf
from tests.documentation.pages import DOCS, Block, blocks, name_of, pages, set_names
from tests.runs import ROOT

INSTALL = DOCS / "how-to" / "install.md"
_CELERY_FILES = ("# shop/celery.py\n", "# shop/__init__.py\n")
_FOR_TESTS = {"durable_tasks.W002"}
"""Eager mode is set by the page about tests, whose settings are not those of a site."""
_TASKS = """from django_durable_tasks import durable_task


@durable_task
def build_report() -> None: ...
"""
# Reads settings from its input, a line of JSON each, and writes what Django then reads and finds. Each
# runs in a fork, in which Django is set up once. Imports that need no settings are done before.
_READER = """
import importlib, json, os, sys, tempfile, traceback
import django
from django.conf import settings
from django.core import checks
for name in sys.argv[1:]:
    importlib.import_module(name)

def read(number, request):
    path = os.path.join("shop", f"settings_{number}.py")
    with open(path, "w") as file:
        file.write(request["settings"])
    os.environ["DJANGO_SETTINGS_MODULE"] = f"shop.settings_{number}"
    django.setup()
    found = checks.run_checks(databases=["default"] if request["database"] else [])
    return {
        "applications": settings.INSTALLED_APPS,
        "middleware": settings.MIDDLEWARE,
        "findings": [str(finding.id) for finding in found],
        "texts": [str(finding) for finding in found],
    }

for number, line in enumerate(sys.stdin):
    if not (child := os.fork()):
        try:
            answer = read(number, json.loads(line))
        except BaseException:
            answer = {"failed": [traceback.format_exc()]}
        print(json.dumps(answer), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
_PRELOADED = (
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.task",
    "celery.backends.base",
    "celery.fixups.django",
    "celery.loaders.app",
    "celery.schedules",
    "celery.worker",
    "croniter",
    "cryptography.hazmat.primitives.ciphers.aead",
    "cryptography.hazmat.primitives.asymmetric.rsa",
    "dateutil.rrule",
    "django.contrib.admin.checks",
    "django.contrib.messages.middleware",
    "django.contrib.staticfiles.finders",
    "django.core.management.commands.migrate",
    "django.db.backends.sqlite3.base",
    "django.db.migrations.autodetector",
    "django.forms",
    "django.template.engine",
    "django.views.debug",
    "drf_spectacular",
    "kombu.transport.redis",
    "psycopg",
    "requests",
    "rest_framework",
    "unittest.mock",
)


def _settings_blocks() -> list[Block]:
    return [block for page in pages() for block in blocks(page) if set_names(block)]


def _install_block() -> Block:
    return next(block for block in blocks(INSTALL) if set_names(block))


def _apps_of_page(block: Block) -> list[str]:
    """Return the blocks above this one in which its page adds applications of this package; none if
    this one adds them itself. If this one adds a key to DURABLE_TASKS, the blocks that assign it too.
    """
    if "INSTALLED_APPS" in set_names(block):
        return []
    above = [found for found in blocks(block.page) if found.line < block.line]
    adds_key = block.text.startswith("DURABLE_TASKS[")
    return [
        found.text
        for found in above
        if (set_names(found) == {"INSTALLED_APPS"} and '"django_durable_tasks.' in found.text)
        or (adds_key and set_names(found) == {"DURABLE_TASKS"})
    ]


class Project:
    """A new project with the Celery application of the page "Install"."""

    def __init__(self, folder: Path) -> None:
        for command, name, place in (
            ("startproject", "shop", folder),
            ("startapp", "accounts", folder / "accounts"),
            ("startapp", "reports", folder / "reports"),
        ):
            place.mkdir(exist_ok=True)
            call_command(command, name, str(place))
        for block in blocks(INSTALL):
            for name in _CELERY_FILES:
                if block.text.startswith(name):
                    (folder / name.removeprefix("# ").strip()).write_text(block.text)
        (folder / "reports" / "tasks.py").write_text(_TASKS)
        self.settings = (folder / "shop" / "settings.py").read_text()
        ours = ("TEST_", "DJANGO_", "CELERY_", "PYTEST_")
        environment = {key: text for key, text in os.environ.items() if not key.startswith(ours)}
        environment |= {
            "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
            "DURABLE_TASKS_KEYS": "2026-11:" + base64.b64encode(os.urandom(32)).decode(),
        }
        self.reader = subprocess.Popen(
            [sys.executable, "-c", _READER, *_PRELOADED],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def checked(self, *pasted: str, database: bool = False) -> dict[str, list[str]]:
        """Paste these texts at the end of the settings, and return what Django then reads and
        finds.
        """
        assert self.reader.stdin is not None
        assert self.reader.stdout is not None
        text = "\n".join([self.settings, *pasted])
        self.reader.stdin.write(json.dumps({"settings": text, "database": database}) + "\n")
        self.reader.stdin.flush()
        found: dict[str, list[str]] = json.loads(self.reader.stdout.readline())
        assert "failed" not in found, found["failed"][0]
        return found


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Return a new project."""
    project = Project(tmp_path_factory.mktemp("fresh"))
    yield project
    project.reader.communicate(timeout=60)


@pytest.fixture(scope="module")
def unchanged(fresh: Project) -> dict[str, list[str]]:
    """Return what Django reads from the settings of a new project."""
    return fresh.checked()


_KEY = re.compile(r"""DURABLE_TASKS\[["']([A-Z_]+)["']\]""")


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_key_of_durable_tasks_that_a_page_names_exists(page: Path) -> None:
    named = set(_KEY.findall(page.read_text(encoding="utf-8")))
    for block in blocks(page):
        if "DURABLE_TASKS" in set_names(block):
            named |= _keys_of(block)
    assert named - {field.name for field in dataclasses.fields(conf.Settings)} == set()


def _keys_of(block: Block) -> set[str]:
    """Return the keys of the dictionary that a block assigns to DURABLE_TASKS."""
    return {
        key.value
        for statement in ast.parse(block.text).body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict)
        if any(isinstance(one, ast.Name) and one.id == "DURABLE_TASKS" for one in statement.targets)
        for key in statement.value.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def test_the_settings_for_customers_can_be_pasted_one_after_the_other() -> None:
    page = DOCS / "how-to" / "open_the_scheduler_to_customers.md"
    first, *further = [block for block in blocks(page) if "DURABLE_TASKS" in set_names(block)]
    assert {"QUOTAS", "HTTP_SIGNING_KEYS", "QUEUE_ALLOW"} <= _keys_of(first)
    # An assignment would replace the quotas and the allow lists.
    assert [block.line for block in further if not block.text.startswith("DURABLE_TASKS[")] == []


def _known_names() -> set[str]:
    celery = {f"CELERY_{name.upper()}" for name in DEFAULTS}
    django = {name for name in dir(global_settings) if name.isupper()}
    return celery | django | {"DURABLE_TASKS", "TASKS"}  # Django 5.2 has no TASKS


@pytest.mark.parametrize(
    "block", _settings_blocks(), ids=lambda block: f"{name_of(block.page)}:{block.line}"
)
def test_a_block_of_settings_can_be_pasted_into_a_fresh_project(
    block: Block, fresh: Project, unchanged: dict[str, list[str]]
) -> None:
    assert set_names(block) - _known_names() == set(), "no program reads these names"
    assert "no-run:" not in block.info, "settings are pasted here, not run: remove the mark"
    before = ['INSTALLED_APPS += ["reports"]\n']  # a schedule in the settings names its task
    installs = '"django_durable_tasks"' in block.text  # the page Install, and the tutorial
    before += [] if installs else [_install_block().text, *_apps_of_page(block)]
    found = fresh.checked(*before, block.text)
    assert set(unchanged["applications"]) <= set(found["applications"])
    assert set(unchanged["middleware"]) <= set(found["middleware"])
    assert "django_durable_tasks" in found["applications"]
    assert set(found["findings"]) - _FOR_TESTS == set(), "\n".join(found["texts"])


def test_the_page_install_sets_up_sqlite(fresh: Project) -> None:
    database = next(b for b in blocks(INSTALL) if "transaction_mode" in b.text)
    before = fresh.checked(_install_block().text, database=True)
    assert "durable_tasks.W008" in before["findings"]
    after = fresh.checked(_install_block().text, database.text, database=True)
    assert after["findings"] == [], "\n".join(after["texts"])

"""Type checkers accept a project's code that is right, and find each wrong call in it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from django_durable_tasks.decorators import _CELERY
from django_durable_tasks.tasks.options import (
    TASK_OPTIONS,
    CallOptions,
    DecoratorOptions,
    UsingOptions,
)
from tests.runs import ROOT

USER_CODE = Path(__file__).with_name("user_code.py")
# mypy does not report errors in packages that pip installed. `silent` is the same for a clone.
MYPY = """[mypy]
strict = true
python_version = 3.11
{plugin}
[mypy-django_durable_tasks.*]
follow_imports = silent
"""
PLUGIN = """plugins = mypy_django_plugin.main
[mypy.plugins.django-stubs]
django_settings_module = tests.settings
"""


@pytest.mark.parametrize("plugin", ["", PLUGIN], ids=["without a plugin", "with django-stubs"])
def test_mypy_in_strict_mode_finds_the_wrong_calls_and_nothing_else(
    plugin: str, tmp_path: Path
) -> None:
    (tmp_path / "user_code.py").write_text(USER_CODE.read_text())
    (tmp_path / "mypy.ini").write_text(MYPY.format(plugin=plugin))
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "user_code.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_pyright_finds_the_wrong_calls_and_nothing_else(tmp_path: Path) -> None:
    tool = next(filter(find_spec, ("pyright", "basedpyright")), None)
    if tool is None:
        pytest.skip("NO TYPE CHECK BY PYRIGHT: pip install basedpyright, which brings its Node.js")
    (tmp_path / "user_code.py").write_text(USER_CODE.read_text())
    options = {
        "include": ["user_code.py"],
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.11",
        "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(options))
    found = subprocess.run(
        [sys.executable, "-m", tool, "--project", ".", "--pythonpath", sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_options_that_have_types_are_those_that_exist() -> None:
    assert {*DecoratorOptions.__annotations__, "bind"} == TASK_OPTIONS | _CELERY
    assert {*UsingOptions.__annotations__} == {one.name for one in dataclasses.fields(CallOptions)}

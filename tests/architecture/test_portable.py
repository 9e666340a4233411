"""The database tests that give the same on each database, and run on one by default."""

from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.portable import MODULES, is_portable


@pytest.mark.parametrize(
    ("path", "marks", "fixtures", "portable"),
    [
        ("tests/database/admin/test_new.py", {"django_db"}, {"client"}, True),
        ("tests/database/admin/test_new.py", {"postgresql"}, {"client"}, False),
        ("tests/database/commands/test_durable_command_list.py", set[str](), {"vendor"}, False),
        ("tests/database/tasks/test_new.py", {"django_db"}, set[str](), False),
        ("tests/database/test_new.py", {"django_db"}, set[str](), False),
        ("tests/concurrency/test_new.py", {"django_db"}, set[str](), False),
    ],
)
def test_a_new_test_runs_on_each_database_unless_its_module_is_listed_as_portable(
    path: str, marks: set[str], fixtures: set[str], portable: bool
) -> None:
    assert is_portable(path, marks, fixtures) == portable


@pytest.mark.parametrize("pattern", MODULES)
def test_portable_modules_exist_and_do_not_use_the_vendor(pattern: str) -> None:
    modules = [file for file in ROOT.glob(pattern) if file.name.startswith("test_")]
    assert modules
    assert [file.name for file in modules if _uses_the_vendor(file.read_text())] == []


def _uses_the_vendor(source: str) -> bool:
    return "connection.vendor" in source or "connection.features" in source


def test_a_use_of_the_vendor_is_found() -> None:
    assert _uses_the_vendor('if connection.vendor == "sqlite":')


def test_no_test_has_the_mark_portable_itself() -> None:
    mark = "mark." + "portable"
    assert [
        str(file) for file in Path(ROOT / "tests").rglob("*.py") if mark in file.read_text()
    ] == []

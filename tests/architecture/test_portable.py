"""Each database runs the tests of the store by default; portable tests run on one."""

from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.portable import PORTABLE, STORE, mark_of


@pytest.mark.parametrize(
    ("path", "marks", "fixtures", "mark"),
    [
        ("tests/database/admin/test_new.py", {"django_db"}, {"client"}, "portable"),
        ("tests/database/admin/test_new.py", {"postgresql"}, {"client"}, "store"),
        ("tests/database/commands/test_durable_command_list.py", set[str](), {"vendor"}, "store"),
        ("tests/database/store/test_new.py", {"django_db"}, set[str](), "store"),
        ("tests/database/workflows/test_new.py", {"mariadb"}, set[str](), "store"),
        ("tests/database/tasks/test_new.py", {"django_db"}, set[str](), None),
        ("tests/database/test_new.py", {"django_db"}, {"vendor"}, None),
        ("tests/concurrency/test_new.py", {"django_db"}, set[str](), None),
    ],
)
def test_a_new_test_depends_on_the_database_unless_its_module_is_listed(
    path: str, marks: set[str], fixtures: set[str], mark: str | None
) -> None:
    assert mark_of(path, marks, fixtures) == mark


@pytest.mark.parametrize("pattern", [*PORTABLE, *STORE])
def test_listed_modules_exist_and_portable_ones_do_not_use_the_vendor(pattern: str) -> None:
    modules = [file for file in ROOT.glob(pattern) if file.name.startswith("test_")]
    assert modules
    if pattern in PORTABLE:
        assert [file.name for file in modules if _uses_the_vendor(file.read_text())] == []


def test_no_module_is_listed_twice() -> None:
    modules = [file for pattern in (*PORTABLE, *STORE) for file in ROOT.glob(pattern)]
    assert len(modules) == len(set(modules))


def _uses_the_vendor(source: str) -> bool:
    return "connection.vendor" in source or "connection.features" in source


def test_a_use_of_the_vendor_is_found() -> None:
    assert _uses_the_vendor('if connection.vendor == "sqlite":')


@pytest.mark.parametrize("name", ["portable", "store"])
def test_no_test_has_these_marks_itself(name: str) -> None:
    mark = f"pytest.mark.{name}"
    assert [
        str(file) for file in Path(ROOT / "tests").rglob("*.py") if mark in file.read_text()
    ] == []

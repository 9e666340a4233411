"""The wheel contains the whole package and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGE, ROOT, expect_none

PROJECT_FILES = ("pyproject.toml", "setup.cfg", "README.md", "LICENSE")


def _absent(contents: set[str], files: list[str]) -> list[str]:
    return sorted(set(files) - contents)


def _foreign(contents: set[str]) -> list[str]:
    return sorted(name for name in contents if not name.startswith((f"{PACKAGE}/", f"{PACKAGE}-")))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel without the network, from a copy, so that nothing is left in the working
    tree.
    """
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / PACKAGE, source / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    for other in ("tests", "example_project"):
        (source / other).mkdir()
        (source / other / "__init__.py").touch()
    for name in PROJECT_FILES:
        shutil.copy(ROOT / name, source)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-qq",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        ".",
    ]
    answer = subprocess.run(
        command, cwd=source, capture_output=True, text=True, timeout=110, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return next(source.glob("*.whl"))


def test_the_wheel_contains_every_file_of_the_package(wheel: Path) -> None:
    files = [
        file
        for file in (ROOT / PACKAGE).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    ]
    contents = set(zipfile.ZipFile(wheel).namelist())
    expect_none(_absent(contents, [file.relative_to(ROOT).as_posix() for file in files]))
    expect_none(_absent(contents, [f"{PACKAGE}/py.typed"]))


def test_the_wheel_contains_nothing_else(wheel: Path) -> None:
    expect_none(_foreign(set(zipfile.ZipFile(wheel).namelist())))


def test_a_missing_and_a_foreign_file_are_found() -> None:
    assert _absent({f"{PACKAGE}/apps.py"}, [f"{PACKAGE}/store/sql/claim.postgresql.sql"])
    assert _foreign({"tests/settings.py"})

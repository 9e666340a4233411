"""The import contracts hold, and would fail for an import from a higher layer or a module without a
layer.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGE, ROOT

LINTER = Path(sys.executable).with_name("lint-imports")


def _lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        str(LINTER),
        "--no-cache",
        "--config",
        str(folder / "pyproject.toml"),
    ]
    environment = {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "COLUMNS": "120"}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the package and its contracts, to be broken."""
    shutil.copytree(
        ROOT / PACKAGE, tmp_path / PACKAGE, ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_import_contracts_hold() -> None:
    answer = _lint(ROOT)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_a_module_without_a_layer_breaks_a_contract(copy: Path) -> None:
    (copy / PACKAGE / "attic.py").write_text('"""No layer contains this module."""\n')
    answer = _lint(copy)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert "attic" in answer.stdout


def test_a_rule_that_imports_a_model_breaks_a_contract(copy: Path) -> None:
    machine = copy / PACKAGE / "states" / "machine.py"
    machine.write_text(machine.read_text() + f"\nimport {PACKAGE}.models.tasks\n")
    answer = _lint(copy)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert f"{PACKAGE}.states.machine -> {PACKAGE}.models.tasks" in answer.stdout

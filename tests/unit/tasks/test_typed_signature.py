"""A wrong argument of a durable task is a type error in every calling form."""

import subprocess
import sys
from pathlib import Path

SNIPPET = """
from datetime import datetime
from django_durable_tasks import durable_task

@durable_task(queue="reports")
def build(day: str, copies: int = 1) -> str: return day

@durable_task
def plain(number: int) -> None: ...

@durable_task(bind=True, max_attempts=3)
def bound(self: object, day: str) -> int: return 1

build.delay("2026-11-20", copies=2)
plain.schedule(1)
bound.delay("2026-11-20")
build.schedule("2026-11-20", run_at=datetime.now())
length: int = bound("2026-11-20")
"""

WRONG = [
    "build.delay(5)",
    "plain.schedule(1, 2)",
    "bound.delay(3)",
    "text: str = bound('2026-11-20')",
]


def _errors(tmp_path: Path, source: str) -> list[str]:
    file = tmp_path / "snippet.py"
    file.write_text(source)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-incremental",
        "--config-file",
        "pyproject.toml",
        str(file),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3]
    )
    return [line for line in done.stdout.splitlines() if "snippet.py" in line and "error:" in line]


def test_a_wrong_argument_is_a_type_error_and_a_right_one_is_not(tmp_path: Path) -> None:
    lines = len(SNIPPET.splitlines())
    errors = _errors(tmp_path, SNIPPET + "\n".join(WRONG) + "\n")
    found = sorted(int(error.split(":")[1]) for error in errors)
    assert found == [lines + 1 + index for index in range(len(WRONG))], errors

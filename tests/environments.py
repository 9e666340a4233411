"""Virtual environments of the test runs, and the constraints files with the tested versions.

`.venv` contains the oldest supported Django and Celery and runs everything. `.venv-newest` contains
the newest ones with the newest Python of this machine and runs a part. `python -m
tests.environments` updates both constraints files.
"""

from __future__ import annotations

import argparse
import functools
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP_SECONDS = 900
NEWER = ("3.14", "3.13", "3.12")
PROBE = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
VERSIONS = (
    "from importlib.metadata import version as v; print(', '.join(f'{n} {v(n)}' for n in ('Django',"
    " 'celery')))"
)


class CannotBuild(Exception):
    """An environment could not be built. The message is the end of pip's output."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment; ``ranges`` are the requirements beside those of pyproject.toml."""

    name: str
    folder: Path
    ranges: tuple[str, ...] = ()

    @property
    def constraints(self) -> Path:
        """The file with the tested version of each package."""
        return ROOT / "constraints" / f"{self.name}.txt"

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.folder / "bin" / "python"


OLDEST = Environment(
    "oldest", ROOT / ".venv", ("Django>=5.2,<5.3", "celery[redis]>=5.6,<5.7", "kombu>=5.6,<5.7")
)
NEWEST = Environment("newest", ROOT / ".venv-newest")


def newest_interpreter() -> tuple[Path, str] | None:
    """Return the newest CPython on this machine that is newer than the running one, and its
    version, or None.
    """
    for version in NEWER:
        if tuple(map(int, version.split("."))) <= sys.version_info[:2]:
            return None
        found = shutil.which(f"python{version}")
        pyenv = sorted(
            Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python{version}"),
            reverse=True,
        )
        for place in [*([Path(found)] if found else []), *pyenv]:
            if number := _version_of(place):
                return place, number
    return None


def _version_of(python: Path) -> str:
    """Return the version of an interpreter; empty if it does not run, as a shim without a selected
    version.
    """
    try:
        answer = subprocess.run(
            [python, "-c", PROBE], capture_output=True, text=True, timeout=30, check=False
        )
    except OSError:
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


@functools.lru_cache(maxsize=1)
def newest(interpreter: Path) -> Path:
    """Build `.venv-newest` with this interpreter unless it is up to date; return its python. Raises
    CannotBuild.
    """
    stamp, wanted = (
        NEWEST.folder / ".built",
        [ROOT / "pyproject.toml", ROOT / "setup.cfg", NEWEST.constraints],
    )
    if stamp.exists() and all(stamp.stat().st_mtime > file.stat().st_mtime for file in wanted):
        return NEWEST.python
    _build(NEWEST.folder, interpreter, "-c", str(NEWEST.constraints))
    stamp.touch()
    return NEWEST.python


def versions(python: Path) -> str:
    """Return the versions of Django and Celery in an environment."""
    return subprocess.run(
        [python, "-c", VERSIONS], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


def pin(environment: Environment, interpreter: Path) -> int:
    """Write the constraints file of an environment from a fresh installation, and return its number
    of packages.
    """
    with tempfile.TemporaryDirectory(prefix="durable-pins-") as place:
        folder = Path(place) / "venv"
        _build(folder, interpreter, *environment.ranges)
        freeze = [
            str(folder / "bin" / "python"),
            "-m",
            "pip",
            "freeze",
            "--all",
            "--exclude-editable",
        ]
        lines = subprocess.run(
            freeze, capture_output=True, text=True, timeout=60, check=True
        ).stdout.splitlines()
    pins = [line for line in lines if re.fullmatch(r"(?!pip=)[\w.-]+==\S+", line)]
    head = f"# Tested versions ({environment.name}), written by `make constraints`."
    environment.constraints.write_text("\n".join([head, *pins]) + "\n")
    return len(pins)


def _build(folder: Path, interpreter: Path, *wishes: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    install = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
    ]
    for command in (
        [str(interpreter), "-m", "venv", str(folder)],
        [*install, *wishes, "-e", f"{ROOT}[test]"],
    ):
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=PIP_SECONDS, check=False
        )
        if answer.returncode:
            raise CannotBuild("\n".join((answer.stdout + answer.stderr).strip().splitlines()[-5:]))


def main() -> None:
    """Write the constraints files of both environments."""
    parser = argparse.ArgumentParser(prog="python -m tests.environments", description=main.__doc__)
    parser.parse_args()
    found = newest_interpreter()
    print(f"{OLDEST.constraints.name}: {pin(OLDEST, Path(sys.executable))} packages")
    if found is None:
        print(
            f"{NEWEST.constraints.name} stays as it is: no Python newer than"
            f" {sys.version.split()[0]} was found."
        )
        return
    print(f"{NEWEST.constraints.name}: {pin(NEWEST, found[0])} packages, for Python {found[1]}")


if __name__ == "__main__":
    main()

"""Virtual environments of the test runs, and the constraints files with the tested versions.

`.venv` contains the oldest supported Django and Celery and runs everything. `.venv-newest` contains
the newest ones with the newest Python of this machine and runs a part. `.venv-alternatives` contains
what neither of them has: the Python and the Django between them, and psycopg 2. `python -m
tests.environments` updates the constraints files.
"""

from __future__ import annotations

import argparse
import functools
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP_SECONDS = 900
PROBE = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
VERSIONS = (
    "from importlib.metadata import version as v; print(', '.join(f'{n} {v(n)}' for n in ('Django',"
    " 'celery')))"
)


class CannotBuild(Exception):
    """An environment could not be built. The message is the end of pip's output."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment. ``ranges`` are the requirements beside those of pyproject.toml,
    ``without`` the packages of pyproject.toml that it does not have, ``pythons`` the versions of
    its interpreter, the preferred one first.
    """

    name: str
    folder: Path
    ranges: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()

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
NEWEST = Environment("newest", ROOT / ".venv-newest", pythons=("3.14", "3.13", "3.12"))
ALTERNATIVES = Environment(
    "alternatives",
    ROOT / ".venv-alternatives",
    ("Django>=6.0,<6.1", "psycopg2-binary>=2.9.9"),
    without=("psycopg", "psycopg-binary"),
    pythons=("3.12", "3.13", "3.14"),
)
OTHERS = {environment.name: environment for environment in (NEWEST, ALTERNATIVES)}


def interpreter(environment: Environment) -> tuple[Path, str] | None:
    """Return the CPython on this machine that an environment prefers among those that are newer
    than the running one, and its version, or None.
    """
    for version in environment.pythons:
        if tuple(map(int, version.split("."))) <= sys.version_info[:2]:
            continue
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


def built(environment: Environment, python: Path) -> Path:
    """Build an environment with this interpreter unless it is up to date; return its python.

    Raises CannotBuild.
    """
    with _building:
        return _built(environment, python)


# Parallel runs use one environment.
_building = threading.Lock()


@functools.cache
def _built(environment: Environment, python: Path) -> Path:
    stamp, wanted = (
        environment.folder / ".built",
        [ROOT / "pyproject.toml", ROOT / "setup.cfg", environment.constraints],
    )
    if stamp.exists() and all(stamp.stat().st_mtime > file.stat().st_mtime for file in wanted):
        return environment.python
    pins = ("-c", str(environment.constraints))
    _build(environment, environment.folder, python, *environment.ranges, *pins)
    stamp.touch()
    return environment.python


def versions(python: Path) -> str:
    """Return the versions of Django and Celery in an environment."""
    return subprocess.run(
        [python, "-c", VERSIONS], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


def pin(environment: Environment, python: Path) -> int:
    """Write the constraints file of an environment from a fresh installation, and return its number
    of packages.
    """
    with tempfile.TemporaryDirectory(prefix="durable-pins-") as place:
        folder = Path(place) / "venv"
        _build(environment, folder, python, *environment.ranges)
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


def _build(environment: Environment, folder: Path, python: Path, *wishes: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check"]
    commands = [
        [str(python), "-m", "venv", str(folder)],
        [*pip, "install", *wishes, "-e", f"{ROOT}[test]"],
    ]
    if environment.without:
        commands.append([*pip, "uninstall", "-y", *environment.without])
    for command in commands:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=PIP_SECONDS, check=False
        )
        if answer.returncode:
            raise CannotBuild("\n".join((answer.stdout + answer.stderr).strip().splitlines()[-5:]))


def main() -> None:
    """Write the constraints files of all environments."""
    parser = argparse.ArgumentParser(prog="python -m tests.environments", description=main.__doc__)
    parser.parse_args()
    print(f"{OLDEST.constraints.name}: {pin(OLDEST, Path(sys.executable))} packages")
    for environment in OTHERS.values():
        found, name = interpreter(environment), environment.constraints.name
        if found is None:
            print(
                f"{name} stays as it is: no Python newer than {sys.version.split()[0]} was found."
            )
        else:
            print(f"{name}: {pin(environment, found[0])} packages, for Python {found[1]}")


if __name__ == "__main__":
    main()

"""Virtual environments of the peers, created on demand under .benchmarks/ in the checkout."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import ROOT, Failed

CACHE = ROOT / ".benchmarks"


def _same(*names: str) -> tuple[str, ...]:
    """Return requirements with the versions that are installed here."""
    return tuple(f"{name}=={importlib.metadata.version(name.partition('[')[0])}" for name in names)


@dataclass(frozen=True)
class Peer:
    """The requirements of a peer, and the oldest Python version that it supports."""

    name: str
    requirements: tuple[str, ...]
    python: tuple[int, int] = (3, 11)


def known() -> dict[str, Peer]:
    """Return the peers by name."""
    peers = (
        Peer("celery", _same("celery[redis]", "kombu", "redis")),
        Peer("procrastinate", ("procrastinate>=3.10,<4", "psycopg[binary,pool]")),
        Peer("django-ox", ("django-ox>=1.9,<2", "psycopg[binary]"), (3, 12)),
        Peer(
            "django-celery-beat",
            (
                *_same("celery[redis]", "kombu", "redis", "django"),
                "django-celery-beat>=2.9,<3",
                "psycopg[binary]",
                "packaging",
            ),
        ),
        Peer("pgqueuer", ("pgqueuer>=0.25,<2", "asyncpg")),
        Peer("dbos", ("dbos>=3.4,<4", "psycopg[binary]")),
        Peer("oban", ("oban>=0.7,<1", "psycopg[binary,pool]"), (3, 12)),
    )
    return {peer.name: peer for peer in peers}


def _installed() -> list[str]:
    """Return interpreters: the current one, those on PATH, and those of pyenv."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    pyenv = sorted(str(path) for path in root.glob("versions/3.*/bin/python3"))
    return [sys.executable, *(f"python3.{minor}" for minor in range(12, 15)), *pyenv]


def _interpreter(peer: Peer, wished: str | None) -> str:
    candidates = [wished] if wished else _installed()
    test = f"import sys; sys.exit(sys.version_info < {peer.python!r})"
    for candidate in candidates:
        path = shutil.which(candidate)
        if (
            path
            and subprocess.run(
                [path, "-c", test], check=False, stderr=subprocess.DEVNULL
            ).returncode
            == 0
        ):
            return path
    needed = ".".join(map(str, peer.python))
    raise Failed(
        f"{peer.name} needs Python {needed} or newer, and none was found; name one with --python"
        " PATH"
    )


def python_of(peer: Peer, wished: str | None) -> str:
    """Return the interpreter of a peer's environment, and create the environment if it does not
    exist. Raises Failed.
    """
    python = _interpreter(peer, wished)
    key = hashlib.sha256(repr((python, peer.requirements)).encode()).hexdigest()[:8]
    folder = CACHE / f"{peer.name}-{key}"
    inside = folder / "bin" / "python"
    if (folder / ".built").exists():
        return str(inside)
    print(f"building an environment for {peer.name} ...", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    _run([python, "-m", "venv", str(folder)])
    _run(
        [
            str(inside),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            *peer.requirements,
        ]
    )
    (folder / ".built").touch()
    return str(inside)


def pythons_of(peers: Sequence[str], wished: str | None) -> tuple[dict[str, str], dict[str, str]]:
    """Return the interpreters of the peers, and why the others have none."""
    found, missing = {}, {}
    for name in peers:
        try:
            found[name] = python_of(known()[name], wished)
        except Failed as error:
            missing[name] = str(error)
    return found, missing


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")

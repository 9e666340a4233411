"""``python -m tests.kombu_conformance --database postgresql``: Kombu's own integration classes.

They come from the source distribution of the installed version of Kombu, which pip downloads, or
from ``--source``, a folder that contains its ``t/``. ``--url`` runs them on another broker.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import kombu

from tests.runs import DATABASES, ROOT


def main() -> int:
    """Run the classes and return pytest's status."""
    parser = argparse.ArgumentParser(prog="python -m tests.kombu_conformance", description=__doc__)
    parser.add_argument("--database", choices=DATABASES, default="postgresql")
    parser.add_argument("--url", default="database", help="another broker, for comparison")
    parser.add_argument("--source", type=Path, help="the unpacked source distribution of Kombu")
    arguments, further = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="kombu-conformance-") as folder:
        source = arguments.source or _download(Path(folder))
        environment = os.environ | {
            "TEST_DATABASE": arguments.database,
            "TEST_BROKER": "memory",
            "KOMBU_BROKER": arguments.url,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(source))),
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rA",
        ]
        command += ["-o", "filterwarnings=", *further, "tests/kombu_conformance/classes.py"]
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def _download(folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        ":all:",
    ]
    command += ["--no-build-isolation", "--dest", str(folder), f"kombu=={kombu.__version__}"]
    subprocess.run(command, check=True)
    (archive,) = folder.glob("kombu-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder / f"kombu-{kombu.__version__}"


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.conformance kombu --database mariadb``: the integration tests of Kombu, or of
Celery, on the broker in the database.

They come from the source distribution of the installed version, which pip downloads, or from
``--source``, a folder that contains its ``t/``. ``--url`` runs them on another broker. ``tox -e
celery-conformance`` builds the environment for those of Celery and runs them. Their results are in
Redis.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

from tests.backends import address
from tests.runs import DATABASES, ROOT

OURS = "durable-database://default"
RESULTS = "12"
"""The number of Redis's database for the results of Celery's tasks."""
OF_CELERY = ("test_inspect.py", "test_tasks.py", "test_canvas.py")


def main() -> int:
    """Run the tests and return pytest's status."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("package", choices=["kombu", "celery"])
    parser.add_argument("--database", choices=DATABASES, default="postgresql")
    parser.add_argument("--url", default=OURS, help="another broker, for comparison")
    parser.add_argument("--source", type=Path, help="the unpacked source distribution")
    arguments, further = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="durable-conformance-") as folder:
        source = (arguments.source or _download(arguments.package, Path(folder))).resolve()
        paths = os.pathsep.join((str(ROOT), str(source)))
        os.environ.update(TEST_DATABASE=arguments.database, PYTHONPATH=paths)
        command = [sys.executable, "-m", "pytest", "-q", *further]
        if arguments.package == "kombu":
            os.environ.update(TEST_BROKER="memory", KOMBU_BROKER=arguments.url)
            command += ["-rA", "-o", "filterwarnings=", "tests/conformance/kombu_classes.py"]
            return subprocess.run(command, cwd=ROOT, check=False).returncode
        os.environ.update(TEST_RUN=str(os.getpid()), TEST_FOLDER=folder)
        os.environ.update(
            TEST_BROKER=arguments.url, TEST_BACKEND=f"{address('redis').rstrip('/')}/{RESULTS}"
        )
        # Only now, because it configures Django by these variables.
        importlib.import_module("tests.conformance.celery_plugin")
        creation = importlib.import_module("django.db").connection.creation
        creation.create_test_db(verbosity=0, autoclobber=True)
        try:
            # pytest-django would refuse the database to tests that do not ask for it.
            command += ["-rfEs", "-p", "no:django", "-p", "tests.conformance.celery_plugin"]
            command += ["-p", "celery.contrib.pytest"]
            if not any("t/integration" in argument for argument in further):
                command += [f"t/integration/{name}" for name in OF_CELERY]
            return subprocess.run(command, cwd=source, check=False).returncode
        finally:
            creation.destroy_test_db(creation.connection.settings_dict["NAME"], verbosity=0)


def _download(package: str, folder: Path) -> Path:
    release = version(package)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", ":all:", "--dest", str(folder), f"{package}=={release}"]
    subprocess.run(command, check=True)
    (archive,) = folder.glob(f"{package}-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder / f"{package}-{release}"


if __name__ == "__main__":
    sys.exit(main())

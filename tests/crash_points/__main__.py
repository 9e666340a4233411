"""`python -m tests.crash_points`: every crash point of the scenarios, with the result of a fault
before and after it.

TEST_DATABASE selects the database. The exit code is 1 if a guarantee was violated. The broker is a
folder, so messages published by a dead process survive it. With ``--listen`` the scenario names are
read from standard input, one per line.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.crash_points.explorer import Verdict

NAMES = (
    "create",
    "dispatch",
    "start",
    "ending",
    "steps",
    "release",
    "trigger",
    "batch",
    "hand over",
    "take",
)
KEPT = dict.fromkeys(("SUCCESS", "FAILED", "CANCELLED", "SKIPPED", "EXPIRED"))
SHORT: dict[str, object] = {
    "LEASE": 10,
    "HEARTBEAT": 5,
    "NODE_HEARTBEAT": 10,
    "RESULT_WRITE_TIMEOUT": 20,
    "BROKER_BACKOFF": 0.05,
    "RETENTION": KEPT,
}
"""One heartbeat check suffices for the lease of a run: the scenarios move timestamps in the rows
instead of waiting.
"""


def main(arguments: list[str]) -> int:
    """Explore the requested scenarios, print the result, and return the exit code."""
    options = _options(arguments)
    inherited = "TEST_RUN" in os.environ
    with tempfile.TemporaryDirectory(prefix="durable-crash-points-") as folder:
        _set_up(Path(folder))
        with _database(inherited):
            return _listen(options) if options.listen else _explore(options)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.crash_points", description=__doc__)
    parser.add_argument(
        "--scenario", action="append", choices=NAMES, help="which scenario; all of them by default"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument(
        "--full",
        action="store_true",
        help="every fault at every point, not only those that can differ",
    )
    parser.add_argument(
        "--listen",
        action="store_true",
        help="answer each scenario named on standard input by a line",
    )
    return parser.parse_args(arguments)


def _set_up(folder: Path) -> None:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    os.environ["TEST_BROKER"] = "filesystem"
    os.environ["TEST_DURABLE_TASKS"] = json.dumps(SHORT)
    os.environ.setdefault("TEST_FOLDER", str(folder))
    django.setup()
    from django.conf import settings

    from tests.crash_points import bodies  # noqa: F401 - the rows name them
    from tests.project import celery  # noqa: F401 - Celery's configuration is that of the test project

    settings.CELERY_BROKER_TRANSPORT_OPTIONS["data_folder"] = str(folder / "messages")
    (folder / "messages").mkdir()
    logging.disable(logging.ERROR)  # the engine's log lines of each fault
    _without_fsync()
    _send_every_notification()
    _without_time_limits_of_batches()


def _send_every_notification() -> None:
    """Disable the rate limit of notifications: a point must not depend on whether the previous one
    is 50 ms ago.
    """
    from django_durable_tasks.scheduler import notifier

    def always(self: notifier.Limiter) -> bool:
        return True

    notifier.Limiter.allows = always  # type: ignore[method-assign]


def _without_time_limits_of_batches() -> None:
    """Do what batches do after some time only where a scenario does it: a point must not depend on
    the speed of the machine.
    """
    from django_durable_tasks.celery import batch_runs

    batch_runs.DURATION = batch_runs.GROUP_AGE = batch_runs.SLOW = 60.0
    batch_runs._TICK = 60.0


def _without_fsync() -> None:
    """Do not wait for the disk: processes die here, the machine does not."""
    from django.db import connection

    options = connection.settings_dict["OPTIONS"]
    if connection.vendor == "postgresql":
        options["options"] = "-c synchronous_commit=off"
    elif connection.vendor == "sqlite":
        options["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF"


@contextmanager
def _database(inherited: bool) -> Iterator[None]:
    """Use the database of the run that started this process, otherwise create one."""
    from django.db import connection

    if inherited:
        yield
        return
    name = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        yield
    finally:
        connection.creation.destroy_test_db(name, verbosity=0)


def _verdicts(options: argparse.Namespace, names: Iterable[str]) -> Iterator[Verdict]:
    from tests.crash_points.explorer import explore

    for name in names:
        yield from explore(name, full=options.full)


def _listen(options: argparse.Namespace) -> int:
    for line in sys.stdin:
        found = _up_to_the_first_violation(_verdicts(options, [line.strip()]))
        _print(json.dumps([asdict(verdict) for verdict in found]))
    return 0


def _up_to_the_first_violation(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    for verdict in verdicts:
        yield verdict
        if verdict.broken:
            return


def _explore(options: argparse.Namespace) -> int:
    from tests.crash_points.table import table

    found = list(_verdicts(options, options.scenario or NAMES))
    if options.format == "json":
        _print(json.dumps([asdict(verdict) for verdict in found], indent=1))
    else:
        _print(table(found))
    return int(any(verdict.broken for verdict in found))


def _print(text: Any) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

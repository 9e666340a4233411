"""`python -m tests`: checks and tests, on the databases and brokers that are found or can be
started.

Without an option it runs the default selection, with `--all` the whole matrix (`tests.runs`).
"""

import argparse
import math
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic

from tests.changed import affected, changed_files
from tests.execution import PARALLEL, QUIET_PARALLEL, Execution, write
from tests.report import closing, servers_that_did_not_run
from tests.runs import KILL_TRIALS, RUNS, Run
from tests.servers import missing_programs, servers


def main(arguments: list[str]) -> int:
    """Run the requested runs and return the exit code."""
    options = parsed(arguments)
    runs = selected(options)
    if options.list:
        write("\n".join(run.title for run in runs))
        return 0
    if not runs:
        print("Nothing to run: --list --all names every run.", file=sys.stderr)
        return 0 if options.changed else 2
    end = monotonic() + 60 * options.begin_within
    with (
        servers(dict.fromkeys(name for run in runs for name in run.servers)) as found,
        tempfile.TemporaryDirectory(prefix="durable-reports-") as folder,
        Execution(found, Path(folder)) as execution,
    ):
        for server in found.values():
            write(f"{server.name}: {server.origin}")
        results = execution.results(runs, options.parallel, end)
        execution.repeat_failures(results, options.repeat_failures)
    is_default = not (options.all or options.changed or options.only or options.kill_trials)
    rest = [run for run in RUNS if is_default and run not in runs]
    write("\n" + "\n".join(closing(results, rest)))
    unused = servers_that_did_not_run(results) if options.strict else []
    absent = missing_programs() if options.strict else []
    if unused:
        write(f"STRICT: no test ran on {', '.join(unused)}")
    if absent:
        write(f"STRICT: tests were skipped, because these are not installed: {', '.join(absent)}")
    return int(bool(unused or absent or any(result.failed for result in results)))


def selected(options: argparse.Namespace) -> list[Run]:
    """Return the selected runs. `--only` selects from the whole matrix, or from the runs of changed
    files.
    """
    default = [run.shortened for run in RUNS if run.default]
    runs = list(RUNS) if options.all or options.only else default
    if options.kill_trials:
        runs = list(KILL_TRIALS)
    elif options.changed:
        try:
            choices = affected(changed_files())
        except subprocess.CalledProcessError as problem:
            write(f"Git cannot compare, so the default selection runs: {problem.stderr.strip()}")
            return default
        for run, because in choices.items():
            more = f" and {len(because) - 3} more" if len(because) > 3 else ""
            write(f"{run.title}: because of {', '.join(because[:3])}{more}")
        runs = list(choices)
    names = set(options.only.split(",")) if options.only else None
    return [run for run in runs if names is None or run.chosen(names)]


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="run the whole matrix")
    which.add_argument(
        "--changed",
        action="store_true",
        help="run what tests the files changed since the main branch",
    )
    which.add_argument("--kill-trials", action="store_true", help="run only the long kill trials")
    parser.add_argument(
        "--only",
        metavar="NAMES",
        help="of the whole matrix only these databases, brokers or suites: postgresql,redis",
    )
    parser.add_argument("--list", action="store_true", help="print what would run")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="fail if no test ran on one of the servers, or without promtool",
    )
    parser.add_argument(
        "--begin-within",
        type=float,
        metavar="MINUTES",
        default=math.inf,
        help=(
            "after this time begin no run whose tests run on other servers too, and of the others"
            " their brief selection if they have one; name each"
        ),
    )
    parser.add_argument(
        "--repeat-failures",
        type=int,
        metavar="NUMBER",
        default=0,
        help="repeat failed tests alone, if at most NUMBER; what passes then is named as UNSTABLE",
    )
    parser.add_argument(
        "--parallel",
        type=int,
        choices=range(1, 9),
        metavar="NUMBER",
        default=PARALLEL,
        help=(
            f"runs at the same time, by default {PARALLEL}, and at most {QUIET_PARALLEL} of those"
            " that measure time"
        ),
    )
    options = parser.parse_args(arguments)
    if options.kill_trials:
        options.parallel = 1
    return options


def accept_interrupts() -> None:
    """Let SIGINT end the runs although a background shell started this program with SIGINT ignored.

    Programs inherit that. A run that ignores SIGINT is killed only after a grace time, and leaves
    its database behind.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    accept_interrupts()
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

"""`python -m tests`: checks and tests, on the databases and brokers that are found or can be
started.

Without an option it runs the default selection (`tests.selection`), with `--all` the whole matrix.
"""

import argparse
import math
import os
import signal
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic

from tests import repetitions
from tests.changed import affected
from tests.command_pool import CommandPool
from tests.environments import OTHERS, CannotBuild, built, versions
from tests.progress import Progress, about, seconds_left
from tests.report import Result, closing, lasted, node_id, servers_that_did_not_run
from tests.runs import KILL_TRIALS, SERVERS, WHEELS, Run, in_turn, kill_trials, planned
from tests.selection import default_runs, left_out_by
from tests.servers import Server, missing_programs, servers, variable_of
from tests.worktree import CannotCompare, changes

RUN_SECONDS = 45 * 60
KILL_TRIAL_SECONDS = 4 * 60 * 60
NO_TESTS = 5
"""The exit code of pytest if no test was left after deselection."""
QUIET_PARALLEL = min(4, max(2, os.cpu_count() or 2))
"""For runs that measure time or interrupt processes: no more than there are processors."""
PARALLEL = min(4, QUIET_PARALLEL + 1)
"""For all others: most of their tests wait for processes, commits and leases, and two parallel runs
use 63 % of two processors. More than four would need more connections than a database allows by
default.
"""
QUIET_PYTEST = ("-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit2")


def main(arguments: list[str]) -> int:
    """Run the requested runs and return the exit code."""
    options = _options(arguments)
    runs = _selected(options)
    parallel = _parallel(options)
    if runs and not options.kill_trials:
        _print(f"{len(runs)} runs, about {about(_expected(runs, parallel))}")
    if options.list:
        print("\n".join(f"{run.title} ({about(run.seconds)})" for run in runs))
        return 0
    if not runs:
        print("Nothing to run: --list --all names every run.", file=sys.stderr)
        return 0 if options.changed else 2
    wanted = [
        name for name in (*SERVERS, *WHEELS, *OTHERS) if any(name in run.servers for run in runs)
    ]
    with servers(wanted) as found, tempfile.TemporaryDirectory(prefix="durable-reports-") as folder:
        for server in found.values():
            _print(f"{server.name}: {server.origin}")
        end = monotonic() + 60 * options.begin_within
        results = _results(runs, found, Path(folder), parallel, end)
        if options.repeat_failures:
            _repeat_failures(results, found, Path(folder), options.repeat_failures)
    unused = servers_that_did_not_run(results, SERVERS) if options.strict else []
    absent = missing_programs() if options.strict else []
    rest = left_out_by(runs) if _is_default(options) else []
    _print("\n" + "\n".join(closing(results, found, rest)))
    if unused:
        _print(f"STRICT: no test ran on {', '.join(unused)}")
    if absent:
        _print(f"STRICT: tests were skipped, because these are not installed: {', '.join(absent)}")
    return 1 if unused or absent or any(result.failed for result in results) else 0


def _is_default(options: argparse.Namespace) -> bool:
    return not (options.all or options.changed or options.only or options.kill_trials)


def _parallel(options: argparse.Namespace) -> int:
    if options.kill_trials:
        return 1
    number: int = options.parallel or PARALLEL
    return number


def _phases(runs: list[Run], number: int) -> list[tuple[int, list[Run]]]:
    """Return the runs in their order, with the number of parallel ones: those that need quiet come
    after all others.
    """
    return [
        (number, in_turn(runs, quiet=False)),
        (min(number, QUIET_PARALLEL), in_turn(runs, quiet=True)),
    ]


def _expected(runs: list[Run], number: int) -> float:
    return sum(
        seconds_left([], [run.seconds for run in some], width)
        for width, some in _phases(runs, number)
    )


def _selected(options: argparse.Namespace) -> list[Run]:
    """Return the selected runs. `--only` selects from the whole matrix, or from the runs of changed
    files.
    """
    if options.kill_trials:
        runs = kill_trials()
    elif options.changed:
        runs = _changed()
    else:
        runs = default_runs() if _is_default(options) else planned()
    names = frozenset(options.only.split(",")) if options.only else None
    return [run for run in runs if names is None or run.chosen(names)]


def _changed() -> list[Run]:
    """Return the runs of the changed files and print the reason, or the default selection if git
    cannot compare.
    """
    try:
        found = changes()
    except CannotCompare as problem:
        _print(f"The changed files are not known, so the default selection runs: {problem}")
        return default_runs()
    choices = affected(found.paths)
    _print(f"{len(found.paths)} files differ from {found.since}.")
    for choice in choices:
        _print(f"    {choice.line}")
    return [choice.run for choice in choices]


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--all", action="store_true", help="run the whole matrix, not the default selection"
    )
    which.add_argument(
        "--changed",
        action="store_true",
        help="run what tests the files changed since the main branch",
    )
    which.add_argument(
        "--kill-trials", action="store_true", help="only the long kill trials at default settings"
    )
    parser.add_argument(
        "--only",
        metavar="NAMES",
        help=(
            "of the whole matrix only these databases, brokers or suites, by comma:"
            " postgresql,redis or checks"
        ),
    )
    parser.add_argument(
        "--list", action="store_true", help="print what would run and its expected duration"
    )
    _add_limits(parser)
    options = parser.parse_args(arguments)
    if options.parallel is not None and options.parallel < 1:
        parser.error(f"--parallel {options.parallel}: the number must be at least 1.")
    return options


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options that limit a run: servers, time, repetitions and parallel runs."""
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
            "after this time begin no run whose tests run on other servers too; what is left out is"
            " named"
        ),
    )
    parser.add_argument(
        "--repeat-failures",
        type=int,
        metavar="NUMBER",
        default=0,
        help=(
            "run failed tests once more, alone, if at most NUMBER failed; what passes then is"
            " reported as UNSTABLE"
        ),
    )
    parser.add_argument(
        "--parallel",
        type=int,
        metavar="NUMBER",
        help=(
            f"runs at the same time, here {PARALLEL}; at most {QUIET_PARALLEL} of those that measure"
            " time (mutants, chaos, crash points)"
        ),
    )


def _results(
    runs: list[Run], found: dict[str, Server], folder: Path, number: int, end: float = math.inf
) -> list[Result]:
    """Run all, the long ones first and those that need quiet last. The results are in the order of
    runs.

    After ``end`` (of ``monotonic()``) no run begins that is marked ``last``.
    """
    reports = {run: folder / f"{place}.xml" for place, run in enumerate(runs)}
    results = dict[Run, Result]()
    phases = _phases(runs, number)
    progress = Progress([run for _, some in phases for run in some], number)
    try:
        with CommandPool() as pool:
            for width, some in phases:
                aside = min(width, len(some)) > 1
                work = partial(_result_unless_late, pool, found, reports, end, aside, progress)
                for result in pool.each(width, work, some):
                    results[result.run] = result
                    _print_output(result.run, lasted(result), reports)
                    _print(f"--- {progress.state()}")
    except BaseException:
        for run in reports.keys() - results.keys():
            _print_output(run, "broken off", reports)
        raise
    return [results[run] for run in runs]


def _result_unless_late(
    pool: CommandPool,
    found: dict[str, Server],
    reports: dict[Run, Path],
    end: float,
    aside: bool,
    progress: Progress,
    run: Run,
) -> Result:
    if run.last and monotonic() >= end:
        _print(f"left out, the time is over: {run.title}")
        progress.ends(run)
        return Result(run, left_out=True)
    _print(f"... {progress.begins(run)}")
    result = _result(pool, found, reports, aside, run)
    progress.ends(run)
    return result


def _result(
    pool: CommandPool, found: dict[str, Server], reports: dict[Run, Path], aside: bool, run: Run
) -> Result:
    """Run one. ``aside``: its output is written to a file beside its report, to be printed at its
    end.
    """
    report = reports[run]
    if not aside:
        _print(f"\n=== {run.title}")
    result = Result(run, missing=[name for name in run.servers if found[name].url is None])
    if result.missing:
        _print(f"not run: {', '.join(result.missing)} could not be had")
        return result
    limit = KILL_TRIAL_SECONDS if run.suite == KILL_TRIALS else RUN_SECONDS
    began, python = monotonic(), Path(sys.executable)
    if run.environment is not None:
        environment = OTHERS[run.environment]
        try:
            python = built(environment, Path(str(found[environment.name].url)))
        except CannotBuild as problem:
            _print(f"not run: {environment.folder.name} could not be built: {problem}")
            result.failed, result.failures = True, [run.title]
            return result
        _print(f"    with {found[environment.name].origin}, {versions(python)}")
    command = run.command or _pytest_command(run, report, python)
    code = pool.code(
        command, _environment(run, found, report), limit, _log(report) if aside else None
    )
    result.seconds, result.failed = (
        monotonic() - began,
        code not in {0, NO_TESTS if run.may_be_empty else 0},
    )
    if code is None:
        _print(f"stopped {run.title}: it took longer than {limit / 60:.0f} minutes")
    result.read(report)
    if result.failed and not run.folders:
        result.failures = [run.title]
    return result


def _repeat_failures(
    results: list[Result], found: dict[str, Server], folder: Path, most: int
) -> None:
    """Repeat the failed tests alone, unless more than ``most`` failed.

    A test that passes the second time is reported as unstable at the end. That is a defect of the
    test or of the package, but no reason to discard a whole run.
    """
    failed = [result for result in results if result.failed]
    if sum(len(result.failures) or most + 1 for result in failed) > most:
        return
    with CommandPool() as pool:
        for place, first in enumerate(failed):
            ids = tuple(node_id(name) for name in first.failures)
            again = replace(
                first.run,
                title=f"{first.run.title}: {len(ids)} failed tests once more",
                folders=ids,
            )
            if ids and first.run.folders:
                first.repeat(
                    _result(pool, found, {again: folder / f"again{place}.xml"}, False, again)
                )


def _print_output(run: Run, how: str, reports: dict[Run, Path]) -> None:
    """Print the stored output of a run."""
    log = _log(reports[run])
    if log.exists():
        _print(f"\n=== {run.title} ({how})\n{log.read_text(errors='replace')}")


def _log(report: Path) -> Path:
    return report.with_suffix(".log")


def _pytest_command(run: Run, report: Path, python: Path) -> tuple[str, ...]:
    marks = ("-m", run.marks) if run.marks else ()
    return (
        str(python),
        "-m",
        "pytest",
        *QUIET_PYTEST,
        f"--junitxml={report}",
        *marks,
        *run.folders,
    )


def _environment(run: Run, found: dict[str, Server], report: Path) -> dict[str, str]:
    """Return a run's environment: its servers and a separate folder, without leftovers of an
    earlier run.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TEST_", "DJANGO_", "CELERY_", "PYTHONDONTWRITEBYTECODE"))
    }
    kept |= {variable_of(name): server.url for name, server in found.items() if server.url}
    for name in {*run.servers} & {*WHEELS} & {*found}:
        kept[variable_of(WHEELS[name])] = str(found[name].url)
    kept["TEST_DATABASE"] = run.database or "sqlite"
    kept["TEST_BROKER"] = run.broker or "memory"
    if run.pooled:
        kept["TEST_POOLED"] = "yes"
    if run.few:
        kept[repetitions.VARIABLE] = repetitions.FEW
    kept["TEST_FOLDER"] = str(report.with_suffix(""))
    return kept


def _print(line: str) -> None:
    print(
        f"{line}\n", end="", flush=True
    )  # in one write, so that lines of parallel runs do not mix


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

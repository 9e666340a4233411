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

from tests.changed import affected
from tests.environments import NEWEST, CannotBuild, newest, versions
from tests.lanes import Lanes
from tests.progress import Progress, about, seconds_left
from tests.report import Result, closing, lasted, node_id, servers_that_did_not_run
from tests.runs import KILL_TRIALS, SERVERS, Run, in_turn, kill_trials, planned
from tests.selection import default_runs, left_out_by
from tests.servers import Server, servers, variable_of
from tests.worktree import CannotCompare, changes

RUN_SECONDS = 45 * 60
KILL_TRIAL_SECONDS = 4 * 60 * 60
NO_TESTS = 5
"""The exit code of pytest if no test was left after deselection."""
LANES = min(4, max(2, os.cpu_count() or 2))
"""More would ask more connections of a database than it has by default."""
DEFAULT_LANES = min(4, LANES + 1)
"""Of the default selection: most of its tests wait for processes, commits and leases, and two lanes
use 63 % of two processors. Mutants and chaos, which need `--all`, compare processes by the clock
and get no more lanes than processors.
"""
QUIET_PYTEST = ("-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit2")


def main(arguments: list[str]) -> int:
    """Run what was asked for and return the exit code."""
    options = _options(arguments)
    runs = _selected(options)
    lanes = _lanes(options)
    if runs and not options.kill_trials:
        order = [run.seconds for run in in_turn(runs, alone=False)]
        _say(f"{len(runs)} runs, about {about(seconds_left([], order, lanes))}")
    if options.list:
        print("\n".join(f"{run.title} ({about(run.seconds)})" for run in runs))
        return 0
    if not runs:
        print("Nothing to run: --list --all names every run.", file=sys.stderr)
        return 0 if options.changed else 2
    wanted = [name for name in (*SERVERS, NEWEST.name) if any(name in run.servers for run in runs)]
    with servers(wanted) as found, tempfile.TemporaryDirectory(prefix="durable-reports-") as folder:
        for server in found.values():
            _say(f"{server.name}: {server.origin}")
        end = monotonic() + 60 * options.begin_within
        results = _results(runs, found, Path(folder), lanes, end)
        if options.repeat_failures:
            _repeat_failures(results, found, Path(folder), options.repeat_failures)
    unused = servers_that_did_not_run(results, SERVERS) if options.strict else []
    rest = left_out_by(runs) if _is_default(options) else []
    _say("\n" + "\n".join(closing(results, found, rest)))
    if unused:
        _say(f"STRICT: no test ran on {', '.join(unused)}")
    return 1 if unused or any(result.failed for result in results) else 0


def _is_default(options: argparse.Namespace) -> bool:
    return not (options.all or options.changed or options.only or options.kill_trials)


def _lanes(options: argparse.Namespace) -> int:
    if options.kill_trials:
        return 1
    number: int = options.lanes or (DEFAULT_LANES if _is_default(options) else LANES)
    return number


def _selected(options: argparse.Namespace) -> list[Run]:
    """Return the runs that the options ask for; `--only` chooses from the whole matrix, or from
    what has changed.
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
    """Return the runs that the changed files affect, and print why; the default selection if git
    cannot compare.
    """
    try:
        found = changes()
    except CannotCompare as problem:
        _say(f"The changed files are not known, so the default selection runs: {problem}")
        return default_runs()
    choices = affected(found.paths)
    _say(f"{len(found.paths)} files differ from {found.since}.")
    for choice in choices:
        _say(f"    {choice.line}")
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
    if options.lanes is not None and options.lanes < 1:
        parser.error(f"--lanes {options.lanes}: at least one lane is needed.")
    return options


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options that bound a run: servers, time, repetitions and lanes."""
    parser.add_argument(
        "--strict", action="store_true", help="fail if no test ran on one of the servers"
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
        "--lanes",
        type=int,
        metavar="NUMBER",
        help=(
            f"runs at the same time; here {DEFAULT_LANES} of the default selection and {LANES} of"
            " others"
        ),
    )


def _results(
    runs: list[Run], found: dict[str, Server], folder: Path, number: int, end: float = math.inf
) -> list[Result]:
    """Run all, the long ones first and those that need quiet last and alone; the results stand in
    the order of runs.

    From ``end`` on (of ``monotonic()``) no run begins that is marked ``last``.
    """
    reports = {run: folder / f"{place}.xml" for place, run in enumerate(runs)}
    results = dict[Run, Result]()
    turns = [in_turn(runs, alone=alone) for alone in (False, True)]
    progress = Progress([run for turn in turns for run in turn], number)
    try:
        with Lanes() as lanes:
            for width, some in zip((number, 1), turns, strict=True):
                aside = min(width, len(some)) > 1
                work = partial(_result_unless_late, lanes, found, reports, end, aside, progress)
                for result in lanes.each(width, work, some):
                    results[result.run] = result
                    _tell(result.run, lasted(result), reports)
                    _say(f"--- {progress.state()}")
    except BaseException:
        for run in reports.keys() - results.keys():
            _tell(run, "broken off", reports)
        raise
    return [results[run] for run in runs]


def _result_unless_late(
    lanes: Lanes,
    found: dict[str, Server],
    reports: dict[Run, Path],
    end: float,
    aside: bool,
    progress: Progress,
    run: Run,
) -> Result:
    if run.last and monotonic() >= end:
        _say(f"left out, the time is over: {run.title}")
        progress.ends(run)
        return Result(run, left_out=True)
    _say(f"... {progress.begins(run)}")
    result = _result(lanes, found, reports, aside, run)
    progress.ends(run)
    return result


def _result(
    lanes: Lanes, found: dict[str, Server], reports: dict[Run, Path], aside: bool, run: Run
) -> Result:
    """Run one; ``aside``: what it says is kept in a file beside its report, to be told whole at its
    end.
    """
    report = reports[run]
    if not aside:
        _say(f"\n=== {run.title}")
    result = Result(run, missing=[name for name in run.servers if found[name].url is None])
    if result.missing:
        _say(f"not run: {', '.join(result.missing)} could not be had")
        return result
    limit = KILL_TRIAL_SECONDS if run.suite == KILL_TRIALS else RUN_SECONDS
    began, python = monotonic(), Path(sys.executable)
    if run.newest:
        try:
            python = newest(Path(str(found[NEWEST.name].url)))
        except CannotBuild as problem:
            _say(f"not run: .venv-newest could not be built: {problem}")
            result.failed, result.failures = True, [run.title]
            return result
        _say(f"    with {found[NEWEST.name].origin}, {versions(python)}")
    command = run.command or _pytest_command(run, report, python)
    code = lanes.code(
        command, _environment(run, found, report), limit, _log(report) if aside else None
    )
    result.seconds, result.failed = (
        monotonic() - began,
        code not in {0, NO_TESTS if run.may_be_empty else 0},
    )
    if code is None:
        _say(f"stopped {run.title}: it took longer than {limit / 60:.0f} minutes")
    result.read(report)
    if result.failed and not run.folders:
        result.failures = [run.title]
    return result


def _repeat_failures(
    results: list[Result], found: dict[str, Server], folder: Path, most: int
) -> None:
    """Run the failed tests once more, with nothing beside them, unless more than ``most`` failed.

    A test that passes the second time is kept as unstable, which the end of the report names: it is
    a defect of the test or of the package, but no reason to throw away the work of a whole run.
    """
    failed = [result for result in results if result.failed]
    if sum(len(result.failures) or most + 1 for result in failed) > most:
        return
    with Lanes() as lanes:
        for place, first in enumerate(failed):
            ids = tuple(node_id(name) for name in first.failures)
            again = replace(
                first.run,
                title=f"{first.run.title}: {len(ids)} failed tests once more",
                folders=ids,
            )
            if ids and first.run.folders:
                first.repeat(
                    _result(lanes, found, {again: folder / f"again{place}.xml"}, False, again)
                )


def _tell(run: Run, how: str, reports: dict[Run, Path]) -> None:
    """Tell what was kept of a run."""
    log = _log(reports[run])
    if log.exists():
        _say(f"\n=== {run.title} ({how})\n{log.read_text(errors='replace')}")


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
    """Give a run its servers and a folder of its own, and nothing that an earlier run may have left
    in ours.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TEST_", "DJANGO_", "CELERY_"))
    }
    kept |= {variable_of(name): server.url for name, server in found.items() if server.url}
    kept["TEST_DATABASE"] = run.database or "sqlite"
    kept["TEST_BROKER"] = run.broker or "memory"
    if run.pooled:
        kept["TEST_POOLED"] = "yes"
    kept["TEST_FOLDER"] = str(report.with_suffix(""))
    return kept


def _say(line: str) -> None:
    print(
        f"{line}\n", end="", flush=True
    )  # in one write, so that lines of several lanes do not mix


def accept_interrupts() -> None:
    """Let SIGINT end the runs also where a shell started this program in the background, and so
    with SIGINT ignored.

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

"""Executes the runs of the matrix: some at a time, each in a process group of its own."""

import functools
import math
import os
import shlex
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Self

from tests import repetitions
from tests.backends import variable_of
from tests.report import Result
from tests.runs import BIN, ENVIRONMENTS, KILL_TRIALS, QUIET, ROOT, WHEELS, Run
from tests.servers import Server

# Seconds until a run is stopped.
RUN_SECONDS = 45 * 60
KILL_TRIAL_SECONDS = 4 * 60 * 60
# Seconds that an interrupted run has to drop its databases.
GRACE_SECONDS = 20
# Seconds for the installation of an environment.
BUILD_SECONDS = 15 * 60
# Runs at the same time that measure time or interrupt processes: no more than processors.
QUIET_PARALLEL = min(4, max(2, os.cpu_count() or 2))
# All others at the same time. Most of their tests wait for processes, commits and leases: two use
# 63 % of two processors. More than four need more connections than a database allows by default.
PARALLEL = min(4, QUIET_PARALLEL + 1)
# Exit codes of pytest: all tests ran and some failed, no test was left after deselection.
TESTS_FAILED, NO_TESTS = 1, 5
# The environment variables that a run does not inherit.
OWN_VARIABLES = ("TEST_", "DJANGO_", "CELERY_", "PYTHONDONTWRITEBYTECODE")


class CannotBuild(Exception):
    """tox could not build an environment. The message is the end of its output."""


class Execution:
    """Executes runs, with their reports and logs in `folder`. No command survives the context."""

    def __init__(self, found: Mapping[str, Server], folder: Path) -> None:
        self._found, self._folder = found, folder
        self._lock, self._over = Lock(), False
        self._running: set[subprocess.Popen[bytes]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over = True
            running = list(self._running)
        self._end(running)

    def results(
        self, runs: Sequence[Run], parallel: int = PARALLEL, end: float = math.inf
    ) -> list[Result]:
        """Return the results of the runs as they ended. Runs of QUIET begin after all others.

        After ``end`` (of ``monotonic()``) no run begins that is marked ``late``, and the others run
        their brief selection if they have one. An error ends all runs and is raised.
        """
        results: list[Result] = []
        quiet = [run for run in runs if run.suite in QUIET]
        others = [run for run in runs if run.suite not in QUIET]

        def begin(run: Run) -> Result:
            is_over = monotonic() >= end
            if run.late and is_over:
                return Result(run, left_out=True)
            whole = run
            if is_over and run.brief:
                run = run.shortened
            write(f"... {run.title}")
            result = self._result(run, logged=min(parallel, len(runs)) > 1)
            result.instead_of = None if run == whole else whole
            return result

        for width, some in ((parallel, others), (min(parallel, QUIET_PARALLEL), quiet)):
            with ThreadPoolExecutor(width) as pool:
                try:
                    for future in as_completed([pool.submit(begin, run) for run in some]):
                        results.append(result := future.result())
                        self._print_log(result.run, f"{result.seconds / 60:.1f} min")
                        write(f"--- {len(results)} of {len(runs)} runs are over")
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    self.__exit__()
                    over = {result.instead_of or result.run for result in results}
                    for run in runs:
                        if run not in over:
                            self._print_log(run, "broken off")
                    raise
        return results

    def repeat_failures(self, results: Iterable[Result], most: int) -> None:
        """Repeat the failed tests alone, unless more than ``most`` or anything else failed.

        A test that passes the second time is reported as unstable. That is a defect of the test or
        of the package, but no reason to discard a whole run.
        """
        failed = [result for result in results if result.failed]
        number = sum(len(result.failures) for result in failed)
        if number <= most and all(result.repeatable for result in failed):
            for first in failed:
                write(f"\n=== {first.run.title}: {len(first.failures)} failed tests once more")
                first.repeat(self._result(first.run, "--last-failed", logged=False))

    def _result(self, run: Run, *options: str, logged: bool) -> Result:
        result = Result(run)
        result.missing = {
            name: self._found[name].origin for name in run.servers if not self._found[name].url
        }
        if result.missing:
            return result
        report, cache, began = self._path(run, "xml"), self._path(run, "cache"), monotonic()
        report.unlink(missing_ok=True)
        python: Path | None = BIN / "python"
        if run.suite in ENVIRONMENTS:
            try:
                python = python_of(run.suite)
            except CannotBuild as problem:
                write(f"{run.title} could not be built: {problem}")
                result.failed = True
                return result
            if python is None:
                result.missing = {run.suite: "no interpreter for it is installed"}
                return result
        pytest = [str(python), "-m", "pytest", "-q", f"--junitxml={report}", *run.paths, *options]
        pytest += ["-o", f"cache_dir={cache}", *(["-m", run.marks] if run.marks else [])]
        program, *arguments = shlex.split(run.command) or pytest
        command = [str(BIN / program), *arguments]
        limit = KILL_TRIAL_SECONDS if run in KILL_TRIALS else RUN_SECONDS
        log = self._path(run, "log") if logged else None
        code = self._code(command, self._environment(run), limit, log)
        if code is None:
            write(f"stopped {run.title}: it took longer than {limit / 60:.0f} minutes")
        result.seconds = monotonic() - began
        result.failed = code not in {0, NO_TESTS if run.may_be_empty else 0}
        result.read(report, cache)
        # Otherwise tests are missing in the report, because it was stopped, or it is no run of pytest.
        result.repeatable = code == TESTS_FAILED and bool(result.failures)
        return result

    def _code(
        self, command: Sequence[str], environment: dict[str, str], limit: float, log: Path | None
    ) -> int | None:
        """Run a command and return its exit code, or None if it was stopped after `limit` seconds.

        Its output goes to the file ``log``, or otherwise to that of this process.
        """
        with ExitStack() as stack:
            output = stack.enter_context(log.open("wb")) if log else None
            with self._lock:
                if self._over:
                    raise InterruptedError("No more commands are started.")
                process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=environment,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
                self._running.add(process)
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                self._end([process])

    def _end(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        """Interrupt running processes, and kill what a test may have left in their groups."""
        for process in processes:
            if process.poll() is None:
                _signal(process, signal.SIGINT)
        deadline = monotonic() + GRACE_SECONDS
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - monotonic()))
            _signal(process, signal.SIGKILL)
            process.wait()
            with self._lock:
                self._running.discard(process)

    def _environment(self, run: Run) -> dict[str, str]:
        """Return the environment of a run: its servers, and a folder of its own."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)
        }
        kept |= {
            variable_of(name): server.url for name, server in self._found.items() if server.url
        }
        for name in WHEELS.keys() & {*run.servers}:
            kept[variable_of(WHEELS[name])] = str(self._found[name].url)
        kept["TEST_DATABASE"] = run.database or "sqlite"
        kept["TEST_BROKER"] = run.broker or "memory"
        if run.suite == "pgbouncer":
            kept["TEST_POOLED"] = "yes"
        if run.few:
            kept[repetitions.VARIABLE] = repetitions.FEW
        kept["TEST_FOLDER"] = str(self._path(run, "files"))
        return kept

    def _path(self, run: Run, suffix: str) -> Path:
        name = "-".join(filter(None, (run.suite, run.database, run.broker)))
        return self._folder / f"{name}-{abs(hash(run)):x}.{suffix}"

    def _print_log(self, run: Run, how: str) -> None:
        log = self._path(run, "log")
        if log.exists():
            write(f"\n=== {run.title} ({how})\n{log.read_text(errors='replace')}")


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


# Parallel runs use one environment.
_building = Lock()


def python_of(environment: str) -> Path | None:
    """Return the Python of an environment of tox.ini, or None if no interpreter for it is installed.

    Raises CannotBuild.
    """
    with _building:
        return _built(environment)


@functools.cache
def _built(environment: str) -> Path | None:
    pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob("*/bin"), reverse=True)
    answer = subprocess.run(
        [BIN / "tox", "run", "-e", environment, "--notest"],
        cwd=ROOT,
        env=os.environ | {"PATH": os.pathsep.join([os.environ["PATH"], *map(str, pyenv)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if "could not find python interpreter" in answer.stdout:
        return None
    if answer.returncode:
        raise CannotBuild("\n".join(answer.stdout.strip().splitlines()[-5:]))
    return ROOT / ".tox" / environment / "bin" / "python"


def write(line: str) -> None:
    """Print a line in one call, so that lines of parallel runs do not mix."""
    print(f"{line}\n", end="", flush=True)

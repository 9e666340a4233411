"""`python -m tests`: checks, then every test on every database and broker that is found or can be started."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.report import Result, closing, servers_that_did_not_run
from tests.runs import ROOT, SERVERS, Run, kill_trials, planned
from tests.servers import Server, servers, variable_of

RUN_SECONDS = 45 * 60
KILL_TRIAL_SECONDS = 4 * 60 * 60
GRACE_SECONDS = 20
QUIET_PYTEST = ("-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit2")


def main(arguments: list[str]) -> int:
    """Run what was asked for and return the exit code."""
    options = _options(arguments)
    runs = kill_trials() if options.kill_trials else planned()
    if options.only:
        runs = [run for run in runs if run.chosen(frozenset(options.only.split(",")))]
    if options.list:
        print("\n".join(run.title for run in runs))
        return 0
    if not runs:
        print("There is nothing of that name to run; --list names everything.", file=sys.stderr)
        return 2
    wanted = [name for name in SERVERS if any(name in run.servers for run in runs)]
    with servers(wanted) as found, tempfile.TemporaryDirectory(prefix="durable-reports-") as folder:
        for server in found.values():
            _say(f"{server.name}: {server.origin}")
        limit = KILL_TRIAL_SECONDS if options.kill_trials else RUN_SECONDS
        results = [_result(run, found, Path(folder, f"{number}.xml"), limit) for number, run in enumerate(runs)]
    unused = servers_that_did_not_run(results, SERVERS) if options.strict else []
    _say("\n" + "\n".join(closing(results, found)))
    if unused:
        _say(f"STRICT: no test ran on {', '.join(unused)}")
    return 1 if unused or any(result.failed for result in results) else 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    parser.add_argument(
        "--only", metavar="NAMES", help="databases, brokers or suites by comma: postgresql,redis or checks"
    )
    parser.add_argument("--list", action="store_true", help="say what would run, and run nothing")
    parser.add_argument("--strict", action="store_true", help="fail if no test ran on one of the four servers")
    parser.add_argument("--kill-trials", action="store_true", help="only the long kill trials at default settings")
    return parser.parse_args(arguments)


def _result(run: Run, found: dict[str, Server], report: Path, limit: float) -> Result:
    _say(f"\n=== {run.title}")
    result = Result(run, missing=[name for name in run.servers if found[name].url is None])
    if result.missing:
        _say(f"not run: {', '.join(result.missing)} could not be had")
        return result
    command = run.command or _pytest_command(run, report)
    result.failed = _code(command, _environment(run, found, report), limit) != 0
    result.read(report)
    if result.failed and not run.folders:
        result.failures = [run.title]
    return result


def _pytest_command(run: Run, report: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "pytest", *QUIET_PYTEST, f"--junitxml={report}", *run.folders)


def _environment(run: Run, found: dict[str, Server], report: Path) -> dict[str, str]:
    """Give a run its servers and a folder of its own, and nothing that an earlier run may have left in ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEST_", "DJANGO_", "CELERY_"))}
    kept |= {variable_of(name): server.url for name, server in found.items() if server.url}
    kept["TEST_DATABASE"] = run.database or "sqlite"
    kept["TEST_BROKER"] = run.broker or "memory"
    kept["TEST_FOLDER"] = str(report.with_suffix(""))
    return kept


def _code(command: tuple[str, ...], environment: dict[str, str], limit: float) -> int:
    """Run one command to its end and return its exit code; past the limit its whole group is killed."""
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True) as process:
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            _say(f"stopped: it took longer than {limit / 60:.0f} minutes")
            return 1
        finally:
            _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Interrupt what still runs, and kill what a test may have left in its group."""
    with suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)


def _say(line: str) -> None:
    print(line, flush=True)


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

"""`python -m tests` obeys its options, and does not report as passed what failed or did not run."""

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from _pytest.terminal import TerminalReporter

from tests.__main__ import _repeat_failures, _results, accept_interrupts
from tests.command_pool import CommandPool
from tests.processor_time import ProcessorTimes
from tests.report import Result, closing, node_id, servers_that_did_not_run
from tests.runs import ROOT, Run, in_turn, planned
from tests.servers import Server, missing_programs
from tests.waiting import until

CHECK = Run("ruff check", "checks", ("ruff",))
DATABASE = Run("pytest on postgresql", "database", (), ("tests/database",), "postgresql")
PAIR = Run("pytest on postgresql × redis", "broker", (), ("tests/broker",), "postgresql", "redis")
FILES = Run(
    "pytest on sqlite × filesystem", "processes", (), ("tests/processes",), "sqlite", "filesystem"
)

SECOND_TIME = """
from pathlib import Path

def test_fails_the_first_time():
    began = Path(__file__).parent.parent / "began"
    if not began.exists():
        began.touch()
        raise AssertionError("the first time")
"""
REPORT = """<testsuites><testsuite>
<testcase classname="a" name="passes"/>
<testcase classname="a" name="fails"><failure message="no"/></testcase>
<testcase classname="a" name="breaks"><error message="no"/></testcase>
<testcase classname="a" name="waits"><skipped message="no Chromium here"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        ("checks", [CHECK]),
        ("postgresql", [DATABASE, PAIR]),
        ("postgresql,redis", [DATABASE, PAIR]),
        ("redis", [PAIR]),
        ("postgresql,rabbitmq", [DATABASE]),
        ("sqlite", [FILES]),
        ("processes,checks", [CHECK, FILES]),
    ],
)
def test_only_keeps_the_runs_of_the_given_names(names: str, kept: list[Run]) -> None:
    assert [
        run for run in (CHECK, DATABASE, PAIR, FILES) if run.chosen(frozenset(names.split(",")))
    ] == kept


def test_files_need_no_server() -> None:
    assert PAIR.servers == ["postgresql", "redis"]
    assert FILES.servers == []


def test_failures_errors_and_skips_are_reported_with_their_reasons(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    result = Result(PAIR, failed=True)
    result.read(tmp_path / "report.xml")
    lines = list(closing([result], {}))
    assert lines[-1] == "1 passed, 2 failed, 1 skipped"
    assert any("a.waits" in line and "no Chromium here" in line for line in lines)
    assert any(line.startswith("postgresql") and "FAILED 2 of 3" in line for line in lines)


def test_skips_with_the_same_reason_are_one_line_with_their_number() -> None:
    result = Result(
        PAIR,
        skips=[
            ("a.one", "no Chromium here"),
            ("a.two", "no Chromium here"),
            ("a.other", "no zone"),
        ],
    )
    assert [line for line in closing([result], {}) if line.startswith("SKIPPED")] == [
        f"SKIPPED 2 tests such as a.one ({PAIR.title}): no Chromium here",
        f"SKIPPED a.other ({PAIR.title}): no zone",
    ]


def test_a_run_that_died_without_a_report_counts_as_one_failure(tmp_path: Path) -> None:
    result = Result(PAIR, failed=True)
    result.read(tmp_path / "absent.xml")
    assert list(closing([result], {}))[-1] == "0 passed, 1 failed, 0 skipped"


def test_a_missing_server_is_named_with_the_runs_that_need_it() -> None:
    missing = Result(PAIR, missing=["redis"])
    lines = list(
        closing([missing], {"redis": Server("redis", None, "redis-server is not installed")})
    )
    assert "NOT RUN for want of redis: redis-server is not installed" in lines
    assert any(line.strip() == PAIR.title for line in lines)
    assert any("NOT RUN" in line for line in lines if line.startswith("postgresql"))


def test_a_repetition_that_would_begin_too_late_is_left_out_and_named(tmp_path: Path) -> None:
    first, late = Run("first", "checks", _script("")), replace(FILES, last=True)
    results = _results([late, first], {}, tmp_path, 2, end=0.0)
    assert [(result.run, result.left_out, result.failed) for result in results] == [
        (late, True, False),
        (first, False, False),
    ]
    (line,) = (line for line in closing(results, {}) if line.startswith("LEFT OUT,"))
    command = (
        "TEST_DATABASE=sqlite TEST_BROKER=filesystem .venv/bin/python -m pytest tests/processes"
    )
    assert line.endswith(f"{FILES.title}; run it by `{command}`")


STAYS = "tests.architecture.test_runner.test_a_check[x.y]"
GOES = "tests.architecture.test_runner.test_another"


@pytest.mark.parametrize(
    ("second", "failures", "unstable", "failed"),
    [
        (Result(PAIR, passes=2), [], [STAYS, GOES], False),
        (Result(PAIR, failed=True, passes=1, failures=[STAYS]), [STAYS], [GOES], True),
        (Result(PAIR, failed=True, failures=[STAYS, GOES]), [STAYS, GOES], [], True),
        (Result(PAIR, failed=True), [STAYS, GOES], [], True),
        (Result(PAIR, passes=1, skips=[(GOES, "no Chromium here")]), [STAYS, GOES], [], True),
    ],
)
def test_a_test_that_passes_on_repetition_is_unstable_and_others_stay_failed(
    second: Result, failures: list[str], unstable: list[str], failed: bool
) -> None:
    first = Result(PAIR, failed=True, passes=5, failures=[STAYS, GOES])
    first.repeat(second)
    assert (first.failures, first.unstable, first.failed) == (failures, unstable, failed)
    assert first.passes == 5 + len(unstable)
    lines = list(closing([first], {}))
    assert [line for line in lines if line.startswith("UNSTABLE")] == [
        f"UNSTABLE, failed once and passed once more: {name} ({PAIR.title})" for name in unstable
    ]
    assert lines[-1].startswith(f"{5 + len(unstable)} passed, {len(failures)} failed")


def test_a_case_of_the_report_is_converted_to_a_pytest_node_id() -> None:
    assert node_id(STAYS) == "tests/architecture/test_runner.py::test_a_check[x.y]"
    assert (
        node_id("tests.architecture.test_runner.TestClass.test_it")
        == "tests/architecture/test_runner.py::TestClass::test_it"
    )


def test_failed_tests_run_once_more_if_they_are_few(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    test = tmp_path / "tests" / "test_second_time.py"
    test.write_text(SECOND_TIME)
    run = Run("pytest", "architecture", (), (str(test),))
    for most, unstable in ((0, 0), (1, 1)):
        (tmp_path / "began").unlink(missing_ok=True)
        results = _results([run], {}, tmp_path, 1)
        assert results[0].failed
        results[0].failures = [
            f"{test.with_suffix('')}.test_fails_the_first_time"
        ]  # it is outside of the project
        _repeat_failures(results, {}, tmp_path, most)
        assert len(results[0].unstable) == unstable
        assert results[0].failed == (not unstable)


def test_the_modules_with_the_most_processor_time_are_printed(
    capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    times = ProcessorTimes(1, ROOT)
    for name, numbers in (("test_idle.py", 1), ("test_busy.py", 2_000_000), ("test_busy.py", 1)):
        item = SimpleNamespace(path=ROOT / "tests" / name)
        measured = times.pytest_runtest_protocol(cast("pytest.Item", item))
        next(measured)
        sum(range(numbers))
        next(measured, None)
    times.pytest_terminal_summary(TerminalReporter(pytestconfig, sys.stdout))
    title, _, *lines = capsys.readouterr().out.strip().splitlines()
    assert "in 2 modules" in title
    assert [line.split()[-2:] for line in lines] == [["2", "tests/test_busy.py"]]


def test_repetitions_come_after_all_others() -> None:
    order = in_turn(planned(), quiet=False)
    assert [run.last for run in order] == sorted(run.last for run in order)
    assert {run.database for run in order if not run.last} >= {"postgresql", "mariadb", "sqlite"}
    assert {run.broker for run in order if not run.last} >= {"rabbitmq", "redis", "filesystem"}


def test_a_server_counts_as_used_only_when_a_test_ran_on_it() -> None:
    idle, busy = Result(PAIR), Result(DATABASE, passes=1)
    assert servers_that_did_not_run([idle, busy], ["postgresql", "redis"]) == ["redis"]


def test_a_missing_program_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_programs() == ["promtool (apt-get install prometheus)"]
    program = tmp_path / "promtool"
    program.touch(0o755)
    assert missing_programs() == []


def test_until_returns_the_answer_or_raises_with_the_condition() -> None:
    answers = iter(["", "", "here"])
    assert until(lambda: next(answers), within=5) == "here"
    with pytest.raises(AssertionError, match="the leader to step down"):
        until(lambda: False, within=0.01, message="the leader to step down")


def test_long_runs_begin_first_alternating_with_waiting_ones_and_quiet_ones_are_separate() -> None:
    computing = sorted(
        (run for run in planned() if run.broker is None and not run.last and not run.quiet),
        key=_seconds,
        reverse=True,
    )
    waiting = sorted(
        (run for run in planned() if run.broker is not None and not run.last and not run.quiet),
        key=_seconds,
        reverse=True,
    )
    quiet = [run for run in planned() if run.quiet]
    assert {run.suite for run in quiet} == {"mutants", "chaos", "crash_points"}
    order = in_turn(planned(), quiet=False)
    assert order[:4] == [computing[0], waiting[0], computing[1], waiting[1]]
    assert sorted([*order, *quiet], key=repr) == sorted(planned(), key=repr)


def _seconds(run: Run) -> float:
    return run.seconds


def _script(words: str) -> tuple[str, ...]:
    return (sys.executable, "-c", words)


HOLDS = """
import pathlib, subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
pathlib.Path("{note}.new").write_text(str(child.pid))
pathlib.Path("{note}.new").rename("{note}")
threading.Event().wait()
"""


def _lives(pid: int) -> bool:
    """Return whether a process runs. One that ended and is not reaped does not count."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return sys.platform != "linux"


def test_runs_are_executed_concurrently_and_their_output_is_kept_separate(tmp_path: Path) -> None:
    """Each waits for the other: sequentially neither would end."""
    meets = """
import pathlib, sys
sys.path.insert(0, ".")
from tests.waiting import until
print("this is {me}")
pathlib.Path("{folder}/{me}").touch()
until(pathlib.Path("{folder}/{other}").exists, within=60)
"""
    pool, pairs = CommandPool(), [("one", "two"), ("two", "one")]

    def work(pair: tuple[str, str]) -> int | None:
        me, other = pair
        script = _script(meets.format(me=me, other=other, folder=tmp_path))
        return pool.code(script, os.environ, 60, tmp_path / f"{me}.log")

    assert list(pool.each(2, work, pairs)) == [0, 0]
    assert [(tmp_path / f"{me}.log").read_text().split() for me, _ in pairs] == [
        ["this", "is", me] for me, _ in pairs
    ]


def test_a_run_that_takes_too_long_is_ended_with_its_child_processes(tmp_path: Path) -> None:
    note = tmp_path / "child"
    pool = CommandPool()
    assert pool.code(_script(HOLDS.format(note=note)), os.environ, 3, tmp_path / "log") is None
    if note.exists():  # otherwise it had no time to start one
        until(partial(_is_gone, note), within=10)


@pytest.mark.parametrize("where", ["in a thread", "in the main thread"])
def test_an_error_of_the_runner_ends_all_runs_and_begins_no_more(
    tmp_path: Path, where: str
) -> None:
    notes = [tmp_path / f"note-{place}" for place in range(4)]

    def work(place: int) -> int | None:
        if place == 2:
            until(lambda: all(note.exists() for note in notes[:2]), within=60)
            if where == "in a thread":
                raise KeyboardInterrupt
            return None
        return pool.code(
            _script(HOLDS.format(note=notes[place])), os.environ, 600, tmp_path / f"{place}.log"
        )

    with pytest.raises(KeyboardInterrupt), CommandPool() as pool:
        _interrupted(pool.each(3, work, [0, 1, 2, 3]))
    for note in filter(Path.exists, notes):
        until(partial(_is_gone, note), within=10)
    with pytest.raises(InterruptedError):
        pool.code(_script(""), os.environ, 600, None)


def test_runs_accept_interrupts_although_a_background_shell_ignores_them() -> None:
    script = _script(
        "import signal; raise SystemExit(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    )
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert CommandPool().code(script, os.environ, 60, None) == 1
        accept_interrupts()
        assert CommandPool().code(script, os.environ, 60, None) == 0
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupted(answers: Iterator[int | None]) -> None:
    for _ in answers:
        raise KeyboardInterrupt


def _is_gone(note: Path) -> bool:
    return not _lives(int(note.read_text()))

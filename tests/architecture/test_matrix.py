"""`python -m tests` obeys its options, and does not report as passed what failed or did not run."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from tests import execution, repetitions
from tests.__main__ import accept_interrupts, parsed, selected
from tests.execution import CannotBuild, Execution, python_of
from tests.report import Result, closing, servers_that_did_not_run
from tests.runs import BROKERS, DATABASES, KILL_TRIALS, QUIET, ROOT, RUNS, SERVERS, Run
from tests.servers import Server, missing_programs
from tests.waiting import until

CHECK = Run("checks", command="ruff check")
DATABASE = Run("database", "database", "postgresql")
PAIR = Run("broker", "broker", "postgresql", "redis")
FILES = Run("processes", "processes", "sqlite", "filesystem")


def _selected(*arguments: str) -> list[Run]:
    return selected(parsed([*arguments]))


# Selection ----------------------------------------------------------------------------------------


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
    runs = (CHECK, DATABASE, PAIR, FILES)
    assert [run for run in runs if run.chosen(set(names.split(",")))] == kept


def test_options_select_the_runs() -> None:
    assert _selected("--all") == [*RUNS]
    assert _selected("--only", "mutants") == [run for run in RUNS if run.suite == "mutants"]
    assert _selected("--all", "--only", "checks") == [run for run in RUNS if run.suite == "checks"]
    assert _selected("--kill-trials") == [*KILL_TRIALS]
    assert all(run.few for run in _selected()), "races are repeated less by default"
    assert parsed(["--kill-trials"]).parallel == 1


@pytest.mark.parametrize(
    "arguments", [["--all", "--changed"], ["--changed", "--kill-trials"], ["--parallel", "0"]]
)
def test_contradicting_options_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(arguments)


def test_every_folder_of_tests_is_in_the_matrix() -> None:
    folders = {
        file.relative_to(ROOT / "tests").parts[0] for file in ROOT.glob("tests/*/**/test_*.py")
    }
    assert {name for run in (*RUNS, *KILL_TRIALS) for name in run.tests.split()} == folders


def test_the_default_selection_uses_every_database_broker_and_server() -> None:
    runs = _selected()
    assert {run.database for run in runs} >= {*DATABASES}
    assert {run.broker for run in runs} >= {*BROKERS}
    assert {server for run in runs for server in run.servers} == {*SERVERS}


def test_tests_that_a_time_limit_may_leave_out_run_on_another_pair_before() -> None:
    begun = {name for run in RUNS if not run.late for name in run.tests.split()}
    assert {name for run in RUNS if run.late for name in run.tests.split()} <= begun
    kept = [run for run in RUNS if not run.late]
    assert {run.database for run in kept} >= {*DATABASES}
    assert {run.broker for run in kept} >= {*BROKERS}
    for quiet in (False, True):
        order = [run.late for run in RUNS if (run.suite in QUIET) == quiet]
        assert order == sorted(order)


def test_the_report_names_the_runs_that_were_not_selected_with_their_commands() -> None:
    lines = list(closing([], [run for run in RUNS if not run.default]))
    assert 'make test ARGS="--all"' in lines[0]
    place = "    TEST_DATABASE=sqlite TEST_BROKER=memory .venv/bin/python -m pytest"
    assert f"{place} -m portable tests/database" in lines
    assert lines.count('    make test ARGS="--only newest"') == 1


# Execution ----------------------------------------------------------------------------------------


@contextmanager
def _executing(folder: Path) -> Iterator[Execution]:
    found = {
        "postgresql": Server("postgresql", "postgresql://127.0.0.1/", "listening here"),
        "redis": Server("redis", None, "redis-server is not installed"),
    }
    with Execution(found, folder) as executing:
        yield executing


def _script(folder: Path, name: str, text: str) -> Run:
    file = folder / f"{name}.py"
    file.write_text(
        f"import os, sys\nfrom pathlib import Path\nfolder = Path(__file__).parent\n{text}"
    )
    return Run("checks", command=f"python {file}")


OUTCOMES = """
import pytest
from pathlib import Path

def test_passes(): pass

def test_fails(): assert False

def test_fails_the_first_time():
    began = Path(__file__).with_suffix(".began")
    if not began.exists():
        began.touch()
        assert False

@pytest.fixture
def broken(): raise RuntimeError

def test_breaks(broken): pass

@pytest.mark.parametrize("number", [1, 2])
def test_waits(number): pytest.skip("no Chromium here")
"""


def test_outcomes_are_reported_and_few_failures_are_repeated_alone(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(OUTCOMES)
    run = Run("unit", os.path.relpath(tmp_path / "test_it.py", ROOT / "tests"), "sqlite")
    with _executing(tmp_path) as executing:
        results = executing.results([run])
        executing.repeat_failures(results, most=2)
        assert (*closing(results),)[-1] == "1 passed, 3 failed, 2 skipped"
        executing.repeat_failures(results, most=3)
    lines = [*closing(results)]
    assert lines[-1] == "2 passed, 2 failed, 2 skipped"
    (failed,) = (line for line in lines if line.startswith("FAILED"))
    assert re.findall(r"::(\w+)", failed) == ["test_fails", "test_breaks"]
    (unstable,) = (line for line in lines if line.startswith("UNSTABLE"))
    assert "::test_fails_the_first_time" in unstable
    (skipped,) = (line for line in lines if line.startswith("SKIPPED"))
    assert re.search(r"2 tests such as .*test_waits.*: no Chromium here", skipped)
    (row,) = (line for line in lines if line.startswith("sqlite"))
    assert "FAILED 2 of 4" in row


@pytest.mark.parametrize(
    ("second", "failures", "unstable", "failed"),
    [
        (Result(PAIR, passes=2), [], ["a", "b"], False),
        (Result(PAIR, failed=True, passes=1, failures=["a"]), ["a"], ["b"], True),
        (Result(PAIR, failed=True, failures=["a", "b"]), ["a", "b"], [], True),
        (Result(PAIR, failed=True), ["a", "b"], [], True),
        (Result(PAIR, passes=1, skips=[("b", "no Chromium here")]), ["a", "b"], [], True),
    ],
)
def test_a_test_that_passes_on_repetition_is_unstable_and_others_stay_failed(
    second: Result, failures: list[str], unstable: list[str], failed: bool
) -> None:
    first = Result(PAIR, failed=True, passes=5, failures=["a", "b"])
    first.repeat(second)
    assert (first.failures, first.unstable, first.failed) == (failures, unstable, failed)


def test_a_run_that_died_without_a_report_counts_as_one_failure(tmp_path: Path) -> None:
    died = _script(tmp_path, "died", "os.abort()")
    with _executing(tmp_path) as executing:
        results = executing.results([died])
        executing.repeat_failures(results, most=6)
    assert [*closing(results)] == [f"FAILED {died.title}", "0 passed, 1 failed, 0 skipped"]


def test_a_run_without_tests_fails_unless_it_is_a_part_of_a_suite(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text("")
    name = os.path.relpath(tmp_path / "test_nothing.py", ROOT / "tests")
    runs = [Run("unit", name, may_be_empty=part) for part in (False, True)]
    with _executing(tmp_path) as executing:
        failed = {result.run.may_be_empty: result.failed for result in executing.results(runs)}
    assert failed == {False: True, True: False}


def test_a_missing_server_is_named_with_the_runs_that_need_it(tmp_path: Path) -> None:
    with _executing(tmp_path) as executing:
        results = executing.results([PAIR])
    lines = [*closing(results)]
    assert f"NOT RUN for want of redis (redis-server is not installed): {PAIR.title}" in lines
    assert any(line.startswith("postgresql") and "NOT RUN" in line for line in lines)
    assert "redis" in servers_that_did_not_run([*results, Result(DATABASE, passes=1)])
    assert "postgresql" not in servers_that_did_not_run([Result(DATABASE, passes=1)])


def test_a_repetition_that_would_begin_too_late_is_left_out_and_named(tmp_path: Path) -> None:
    late, other = replace(FILES, late=True), _script(tmp_path, "other", "")
    with _executing(tmp_path) as executing:
        results = executing.results([late, other], end=0.0)
    assert {result.run: result.left_out for result in results} == {late: True, other: False}
    (line,) = (line for line in closing(results) if line.startswith("LEFT OUT,"))
    place = "TEST_DATABASE=sqlite TEST_BROKER=filesystem"
    assert line.endswith(f"`{place} .venv/bin/python -m pytest tests/processes`")


def test_a_run_with_a_brief_selection_that_would_begin_too_late_runs_this_one(
    tmp_path: Path,
) -> None:
    whole = replace(_script(tmp_path, "whole", ""), brief="store")
    with _executing(tmp_path) as executing:
        (result,) = executing.results([whole], end=0.0)
        (in_time,) = executing.results([whole])
    assert (result.run.marks, result.instead_of) == ("store", whole)
    assert (in_time.run, in_time.instead_of) == (whole, None)
    (line,) = (line for line in closing([result, in_time]) if line.startswith("SHORTENED"))
    assert whole.by_hand in line


def test_the_table_distinguishes_a_smoke_set_from_a_complete_suite() -> None:
    smoke, complete = Result(replace(FILES, marks="smoke"), passes=3), Result(FILES, passes=90)
    for results, cell in (([smoke], "passed 3, smoke"), ([smoke, complete], "passed 93")):
        (row,) = (line for line in closing(results) if line.startswith("sqlite"))
        assert [text.strip() for text in row.split("  ") if text.strip()][-2:] == [cell, "–"]


def test_a_run_has_its_servers_and_none_of_the_variables_of_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
    for name in ("PYTHONDONTWRITEBYTECODE", "TEST_RUN", "DJANGO_SETTINGS_MODULE"):
        monkeypatch.setenv(name, "1")
    shows = _script(
        tmp_path,
        "shows",
        "(folder / 'seen').write_text('\\n'.join(map('='.join, os.environ.items())))",
    )
    with _executing(tmp_path) as executing:
        executing.results([replace(shows, database="postgresql", few=True)])
    seen = dict(line.partition("=")[::2] for line in (tmp_path / "seen").read_text().splitlines())
    assert seen["TEST_POSTGRESQL_URL"] == "postgresql://127.0.0.1/"
    assert (seen["TEST_DATABASE"], seen["TEST_BROKER"]) == ("postgresql", "memory")
    assert not seen.keys() & {"PYTHONDONTWRITEBYTECODE", "TEST_RUN", "DJANGO_SETTINGS_MODULE"}
    monkeypatch.setenv(repetitions.VARIABLE, seen[repetitions.VARIABLE])
    assert repetitions.repetitions(100) == 25
    assert repetitions.repetitions(4, least=3) == 3


def test_a_run_that_repeats_less_draws_every_case_within_some_days(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(repetitions.VARIABLE, raising=False)
    assert repetitions.drawn("abcdefghij") == [*"abcdefghij"]
    monkeypatch.setenv(repetitions.VARIABLE, repetitions.FEW)
    assert repetitions.drawn("abc") == [*"abc"]
    seen = list[str]()
    for day in range(repetitions.SHARE):
        monkeypatch.setattr(repetitions, "DAY", day)
        seen += repetitions.drawn("abcdefghij")
    assert sorted(seen) == [*"abcdefghij"]


MEETS = """
sys.path.insert(0, ".")
from tests.waiting import until
print("this is", sys.argv[0])
Path(__file__).with_suffix(".here").touch()
until(lambda: len([*folder.glob("*.here")]) == 2, within=60)
"""
HOLDS = """
import subprocess, threading
child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
(folder / "new").write_text(str(child.pid))
(folder / "new").rename(folder / "child")
threading.Event().wait()
"""


def test_runs_are_executed_concurrently_and_their_output_is_kept_separate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each waits for the other: sequentially neither would end."""
    runs = [_script(tmp_path, name, MEETS) for name in ("one", "two")]
    with _executing(tmp_path) as executing:
        assert [result.failed for result in executing.results(runs, 2)] == [False, False]
    printed = capfd.readouterr().out
    for run in runs:
        assert re.search(
            rf"=== {run.title} \(.* min\)\nthis is {run.command.split()[1]}\n", printed
        )


def test_a_run_that_takes_too_long_is_ended_with_its_child_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "RUN_SECONDS", 3)
    with _executing(tmp_path) as executing:
        assert executing.results([_script(tmp_path, "holds", HOLDS)])[0].failed
    if (tmp_path / "child").exists():  # otherwise it had no time to start one
        until(lambda: not _lives(tmp_path / "child"), within=10)


def test_an_interrupt_ends_all_runs_and_begins_no_more(
    tmp_path: Path, restored_handler: None
) -> None:
    accept_interrupts()
    holds, after = (
        _script(tmp_path, "holds", HOLDS),
        _script(tmp_path, "after", "(folder / 'began').touch()"),
    )
    with _executing(tmp_path) as executing:
        interrupts = Thread(target=_interrupt_this_process_after, args=(tmp_path / "child",))
        interrupts.start()
        with pytest.raises(KeyboardInterrupt):
            executing.results([holds, replace(holds, suite="chaos"), after], 1)
        interrupts.join()
        until(lambda: not _lives(tmp_path / "child"), within=10)
        with pytest.raises(InterruptedError):
            executing.results([after], 1)
    assert not (tmp_path / "began").exists()


def _interrupt_this_process_after(note: Path) -> None:
    until(note.exists, within=60)
    os.kill(os.getpid(), signal.SIGINT)


def _lives(note: Path) -> bool:
    """Return whether a process runs. One that ended and is not reaped does not count."""
    try:
        os.kill(pid := int(note.read_text()), 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return sys.platform != "linux"


@pytest.fixture
def restored_handler() -> Iterator[None]:
    """Ignore SIGINT as in a background shell, and restore its handler after the test."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def test_runs_accept_interrupts_although_a_background_shell_ignores_them(
    tmp_path: Path, restored_handler: None
) -> None:
    text = "import signal; sys.exit(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    ignores = _script(tmp_path, "ignores", text)
    with _executing(tmp_path) as executing:
        assert executing.results([ignores])[0].failed
        accept_interrupts()
        assert not executing.results([ignores])[0].failed


# Surroundings -------------------------------------------------------------------------------------


def test_an_environment_that_cannot_be_built_is_an_error() -> None:
    with pytest.raises(CannotBuild, match="nowhere"):
        python_of("nowhere")


def test_a_missing_program_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_programs() == ["promtool (apt-get install prometheus)"]
    (tmp_path / "promtool").touch(0o755)
    assert missing_programs() == []


def test_until_returns_the_answer_or_raises_with_the_condition() -> None:
    answers = iter(["", "", "here"])
    assert until(lambda: next(answers), within=5) == "here"
    with pytest.raises(AssertionError, match="the leader to step down"):
        until(lambda: False, within=0.01, message="the leader to step down")


def test_each_worker_of_xdist_has_a_database_that_its_processes_share(tmp_path: Path) -> None:
    show = "from tests import settings; print(settings.DATABASES['default']['NAME'], flush=True)"
    child = f"import subprocess, sys; {show}; subprocess.run([sys.executable, '-c', {show!r}])"
    own = {"TEST_RUN": "7", "TEST_FOLDER": str(tmp_path), "TEST_DATABASE": "mariadb"}
    for worker in ("gw0", "gw1"):
        environment = os.environ | own | {"PYTEST_XDIST_WORKER": worker}
        command = [sys.executable, "-c", child]
        printed = subprocess.check_output(command, cwd=ROOT, env=environment, text=True).split()
        assert printed == [f"test_durable_7_{worker}"] * 2

"""`python -m tests` keeps what was asked for, and does not call a thing passed that failed or did not run."""

from pathlib import Path

import pytest

from tests.report import Result, closing, servers_that_did_not_run
from tests.runs import Run
from tests.servers import Server
from tests.waiting import until

CHECK = Run("ruff check", "checks", ("ruff",))
DATABASE = Run("pytest on postgresql", "database", (), ("tests/database",), "postgresql")
PAIR = Run("pytest on postgresql × redis", "broker", (), ("tests/broker",), "postgresql", "redis")
FILES = Run("pytest on sqlite × filesystem", "processes", (), ("tests/processes",), "sqlite", "filesystem")

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
def test_only_keeps_the_runs_on_what_is_named(names: str, kept: list[Run]) -> None:
    assert [run for run in (CHECK, DATABASE, PAIR, FILES) if run.chosen(frozenset(names.split(",")))] == kept


def test_files_need_no_server() -> None:
    assert PAIR.servers == ["postgresql", "redis"]
    assert FILES.servers == []


def test_failures_errors_and_skips_are_told_with_their_reasons(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    result = Result(PAIR, failed=True)
    result.read(tmp_path / "report.xml")
    lines = list(closing([result], {}))
    assert lines[-1] == "1 passed, 2 failed, 1 skipped"
    assert any("a.waits" in line and "no Chromium here" in line for line in lines)
    assert any(line.startswith("postgresql") and "FAILED 2 of 3" in line for line in lines)


def test_a_run_that_died_without_a_report_counts_as_one_failure(tmp_path: Path) -> None:
    result = Result(PAIR, failed=True)
    result.read(tmp_path / "absent.xml")
    assert list(closing([result], {}))[-1] == "0 passed, 1 failed, 0 skipped"


def test_a_missing_server_is_named_with_the_runs_it_cost() -> None:
    missing = Result(PAIR, missing=["redis"])
    lines = list(closing([missing], {"redis": Server("redis", None, "redis-server is not installed")}))
    assert "NOT RUN for want of redis: redis-server is not installed" in lines
    assert any(line.strip() == PAIR.title for line in lines)
    assert any("NOT RUN" in line for line in lines if line.startswith("postgresql"))


def test_a_server_counts_as_used_only_when_a_test_ran_on_it() -> None:
    idle, busy = Result(PAIR), Result(DATABASE, passes=1)
    assert servers_that_did_not_run([idle, busy], ["postgresql", "redis"]) == ["redis"]


def test_waiting_gives_the_answer_or_says_what_did_not_come() -> None:
    answers = iter(["", "", "here"])
    assert until(lambda: next(answers), within=5) == "here"
    with pytest.raises(AssertionError, match="the leader to step down"):
        until(lambda: False, within=0.01, message="the leader to step down")

"""The default selection: its part of the matrix, and how the report names the rest."""

import os
import re
from pathlib import Path

import pytest

from tests.__main__ import (
    PARALLEL,
    QUIET_PARALLEL,
    _environment,
    _options,
    _parallel,
    _phases,
    _selected,
)
from tests.architecture.sources import ROOT
from tests.backends import BROKERS, DATABASES
from tests.durations import SECONDS
from tests.portable import MODULES, is_portable
from tests.repetitions import VARIABLE, repetitions
from tests.report import Result, closing
from tests.runs import (
    COMPLETE_BROKER,
    COMPLETE_PAIR,
    PAIRS,
    PGBOUNCER,
    SERVERS,
    SMOKE,
    Run,
    planned,
)
from tests.selection import default_runs, left_out_by


def _pairs(runs: list[Run], suite: str) -> set[tuple[str | None, str | None]]:
    return {
        (run.database, run.broker)
        for run in runs
        if f"tests/{suite}" in run.folders and not run.environment
    }


def test_every_suite_runs_by_default_except_the_named_ones() -> None:
    chosen = {run.suite for run in default_runs()}
    assert {run.suite for run in planned()} - chosen == {
        "chaos",
        "crash_points",
        "mutants",
        "newest",
        "alternatives",
        "portable",
    }
    assert chosen >= {
        "checks",
        "architecture",
        "unit",
        "documentation",
        "database",
        "broker",
        "processes",
        "browser",
    }


def test_the_default_selection_uses_every_database_broker_and_server() -> None:
    runs = default_runs()
    assert {run.database for run in runs} >= set(DATABASES)
    assert {run.broker for run in runs} >= set(BROKERS)
    assert {server for run in runs for server in run.servers} == set(SERVERS)


def test_one_broker_and_one_pair_run_completely_and_the_others_with_the_mark_smoke() -> None:
    runs = default_runs()
    complete = [run for run in runs if not run.marks]
    assert _pairs(complete, "broker") == {("postgresql", COMPLETE_BROKER)}
    assert _pairs(complete, "processes") == {COMPLETE_PAIR}
    for suite in ("broker", "processes"):
        assert _pairs(runs, suite) == _pairs(planned(), suite)
        assert {run.marks for run in runs if f"tests/{suite}" in run.folders} == {"", "smoke"}
    assert [run.servers for run in runs if run.suite == PGBOUNCER] == [
        ["postgresql", "redis", PGBOUNCER]
    ]
    assert {pair for pair in PAIRS if pair != COMPLETE_PAIR} <= _pairs(
        [run for run in runs if run.suite in {SMOKE, PGBOUNCER}], "processes"
    )


def test_the_default_selection_and_the_left_out_runs_make_up_the_matrix() -> None:
    kept, rest = default_runs(), left_out_by(default_runs())
    assert set(planned()) == set(rest) | set(kept)
    assert not set(kept) & set(rest)
    assert left_out_by(planned()) == []


def test_only_the_default_selection_and_the_newest_versions_repeat_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert all(run.few for run in default_runs())
    few = [run for run in planned() if run.few]
    assert {run.suite for run in few} == {"newest", "alternatives", "database"}
    assert {run.database for run in few if run.suite == "database"} == {"mariadb", "sqlite"}
    for run, number in ((default_runs()[-1], 25), (planned()[-1], 25), (planned()[-5], 100)):
        monkeypatch.delenv(VARIABLE, raising=False)
        for name, value in _environment(run, {}, ROOT / "report").items():
            monkeypatch.setenv(name, value)
        assert repetitions(100) == number
    assert repetitions(4, least=3) == 4


def test_a_run_and_the_processes_it_starts_keep_the_bytecode_of_the_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in _environment(default_runs()[0], {}, ROOT / "report")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], default_runs()),
        (["--all"], planned()),
        (["--only", "mutants"], [run for run in planned() if run.suite == "mutants"]),
        (["--all", "--only", "checks"], [run for run in planned() if run.suite == "checks"]),
    ],
)
def test_options_select_the_runs(arguments: list[str], expected: list[Run]) -> None:
    assert _selected(_options(arguments)) == expected


@pytest.mark.parametrize(
    ("arguments", "parallel"),
    [
        ([], PARALLEL),
        (["--all"], PARALLEL),
        (["--parallel", "1"], 1),
        (["--all", "--parallel", "3"], 3),
        (["--kill-trials"], 1),
    ],
)
def test_a_number_of_parallel_runs_can_be_given(arguments: list[str], parallel: int) -> None:
    assert _parallel(_options(arguments)) == parallel


def test_no_more_runs_than_processors_are_beside_one_that_measures_time() -> None:
    assert [width for width, _ in _phases(planned(), PARALLEL)] == [PARALLEL, QUIET_PARALLEL]
    assert [width for width, _ in _phases(planned(), 1)] == [1, 1]


@pytest.mark.parametrize(
    "arguments", [["--all", "--changed"], ["--changed", "--kill-trials"], ["--parallel", "0"]]
)
def test_contradicting_options_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        _options(arguments)


def test_the_report_names_what_the_selection_left_out_with_its_command() -> None:
    lines = list(closing([], {}, left_out_by(default_runs())))
    assert 'make test ARGS="--all"' in lines[0]
    assert (
        "    TEST_DATABASE=postgresql TEST_BROKER=redis .venv/bin/python -m pytest tests/mutants"
        in lines
    )
    assert (
        "    TEST_DATABASE=sqlite TEST_BROKER=memory .venv/bin/python -m pytest -m portable"
        " tests/database" in lines
    )
    assert lines.count('    make test ARGS="--only newest"') == 1


def test_the_table_distinguishes_a_smoke_set_from_a_complete_suite() -> None:
    few = Result(
        next(run for run in default_runs() if run.database == "mariadb" and run.suite == SMOKE),
        passes=3,
    )
    all_of_it = Result(
        Run("all", "processes", (), ("tests/processes",), "mariadb", "rabbitmq"), passes=90
    )
    for results, cell in (([few], "passed 3, smoke"), ([few, all_of_it], "passed 93")):
        (row,) = (line for line in closing(results, {}) if line.startswith("mariadb"))
        assert re.split(r"\s{2,}", row)[2] == cell


def test_every_run_has_an_expected_duration() -> None:
    runs = {
        (run.suite, run.database, run.broker)
        for run in [*planned(), *default_runs()]
        if run.folders
    }
    assert SECONDS.keys() == runs
    assert all(run.seconds > 0 for run in [*planned(), *default_runs()])


# Tests that run on one database only --------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "marks", "fixtures", "portable"),
    [
        ("tests/database/admin/test_new.py", {"django_db"}, {"client"}, True),
        ("tests/database/admin/test_new.py", {"postgresql"}, {"client"}, False),
        ("tests/database/commands/test_durable_command_list.py", set[str](), {"vendor"}, False),
        ("tests/database/tasks/test_new.py", {"django_db"}, set[str](), False),
        ("tests/database/test_new.py", {"django_db"}, set[str](), False),
        ("tests/concurrency/test_new.py", {"django_db"}, set[str](), False),
    ],
)
def test_a_new_test_runs_on_each_database_unless_its_module_is_listed_as_portable(
    path: str, marks: set[str], fixtures: set[str], portable: bool
) -> None:
    assert is_portable(path, marks, fixtures) == portable


@pytest.mark.parametrize("pattern", MODULES)
def test_portable_modules_exist_and_do_not_use_the_vendor(pattern: str) -> None:
    modules = [file for file in ROOT.glob(pattern) if file.name.startswith("test_")]
    assert modules
    assert [file.name for file in modules if _uses_the_vendor(file.read_text())] == []


def _uses_the_vendor(source: str) -> bool:
    return "connection.vendor" in source or "connection.features" in source


def test_a_use_of_the_vendor_is_found() -> None:
    assert _uses_the_vendor('if connection.vendor == "sqlite":')


def test_no_test_has_the_mark_portable_itself() -> None:
    mark = "mark." + "portable"
    assert [
        str(file) for file in Path(ROOT / "tests").rglob("*.py") if mark in file.read_text()
    ] == []

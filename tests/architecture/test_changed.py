"""`--changed` runs the tests of the changed files: the table contains every folder, and other files
run the default selection.
"""

import subprocess
from pathlib import Path

import pytest

from tests.__main__ import _results
from tests.architecture.sources import ROOT
from tests.changed import ALWAYS, DEFAULT, TABLE, Choice, affected
from tests.runs import PGBOUNCER, SMOKE, Run, planned
from tests.selection import default_runs
from tests.worktree import CannotCompare, changes

CLAIM = "django_durable_tasks/store/sql/claim.postgresql.sql"
SCHEDULER = "django_durable_tasks/scheduler/loop.py"
RULES = "django_durable_tasks/schedules/timetables/cron.py"
ONE_TEST = "tests/processes/test_outages.py"


def _beside_checks(*paths: str) -> list[Run]:
    return [choice.run for choice in affected(paths) if choice.run.suite not in ALWAYS]


def _servers(runs: list[Run], suite: str) -> list[tuple[str | None, str | None]]:
    return [(run.database, run.broker) for run in runs if run.suite == suite]


def test_no_change_runs_nothing() -> None:
    assert affected([]) == []


def test_checks_and_architecture_tests_run_after_every_change() -> None:
    suites = [choice.run.suite for choice in affected(["tests/command_pool.py"])]
    assert suites == ["checks"] * 4 + ["architecture"]


@pytest.mark.parametrize(
    ("path", "suites"),
    [
        (RULES, {"unit"}),
        ("docs/how-to/deploy_and_upgrade.md", {"documentation"}),
        (CLAIM, {"database", "crash_points"}),
        (
            "django_durable_tasks/tasks/claim.py",
            {"unit", "database", "crash_points", SMOKE, PGBOUNCER},
        ),
        (
            "django_durable_tasks/celery/worker_node.py",
            {"database", "broker", SMOKE, PGBOUNCER},
        ),
        (SCHEDULER, {"database", "broker", "processes", SMOKE, PGBOUNCER}),
        ("django_durable_tasks/admin/tasks.py", {"database", "browser"}),
        ("tests/mutants/graphs.py", {"mutants"}),
        ("tests/crash_points/__init__.py", {"crash_points"}),
    ],
)
def test_a_file_runs_the_suites_that_test_it(path: str, suites: set[str]) -> None:
    assert {run.suite for run in _beside_checks(path)} == suites


def test_sql_is_tested_on_each_database_and_broker_code_on_each_broker() -> None:
    assert [database for database, _ in _servers(_beside_checks(CLAIM), "database")] == [
        "postgresql",
        "mariadb",
        "sqlite",
    ]
    runs = _beside_checks("django_durable_tasks/celery/worker_node.py")
    assert [broker for _, broker in _servers(runs, "broker")] == ["rabbitmq", "redis", "filesystem"]


@pytest.mark.parametrize(
    "path", ["pyproject.toml", "constraints/oldest.txt", "tests/factories.py", "no/such/file.py"]
)
def test_a_file_outside_of_the_table_runs_the_default_selection(path: str) -> None:
    assert {choice.run for choice in affected([path])} == set(default_runs())


def test_a_test_module_runs_alone_on_each_pair_of_its_suite() -> None:
    runs = _beside_checks(ONE_TEST)
    assert _servers(runs, "processes") == [
        (run.database, run.broker) for run in planned() if run.suite == "processes"
    ]
    assert {(run.folders, run.may_be_empty, run.marks) for run in runs} == {((ONE_TEST,), True, "")}
    whole = next(run for run in planned() if run.suite == "processes")
    assert 0 < next(run for run in runs if run.database == "postgresql").seconds < whole.seconds


def test_a_deleted_test_module_runs_nothing() -> None:
    assert _beside_checks("tests/processes/test_that_is_gone.py") == []


def test_a_part_is_not_run_in_addition_to_the_whole() -> None:
    runs = _beside_checks(CLAIM, "tests/database/tasks/test_claims.py", SCHEDULER)
    assert [run.folders for run in runs if run.suite == "database"] == [
        ("tests/database", "tests/concurrency")
    ] * 3


def test_parts_of_a_run_are_run_together_without_parts_of_parts() -> None:
    runs = _beside_checks(
        SCHEDULER, "tests/database/scheduler/test_leases.py", "tests/concurrency/test_keys.py"
    )
    folders = [run.folders for run in runs if run.suite == "database"]
    assert folders == [("tests/concurrency/test_keys.py", "tests/database/scheduler")] * 3


@pytest.mark.parametrize("part", [True, False])
def test_a_part_without_a_test_for_its_database_does_not_fail(tmp_path: Path, part: bool) -> None:
    (tmp_path / "test_nothing.py").write_text("")
    (result,) = _results(
        [Run("pytest", "unit", (), (str(tmp_path),), may_be_empty=part)], {}, tmp_path, 1
    )
    assert result.failed == (not part)


def test_each_choice_names_its_files() -> None:
    (unit,) = (choice for choice in affected([RULES, CLAIM]) if choice.run.suite == "unit")
    assert unit.line == f"pytest tests/unit: because of {RULES}"
    assert Choice(unit.run, ("a", "b", "c", "d", "e")).line.endswith(
        "because of a, b, c and 2 more"
    )


def test_the_table_names_files_that_exist_and_targets_that_run() -> None:
    assert [prefix for prefix, _ in TABLE if not (ROOT / prefix).exists()] == []
    for prefix, targets in TABLE:
        chosen = {
            choice.run.suite
            for choice in affected([f"{prefix}x" if prefix.endswith("/") else prefix])
        }
        assert len(chosen) >= len(ALWAYS) + bool(targets), prefix


def test_every_package_and_every_test_folder_has_a_row() -> None:
    for parent in (ROOT / "django_durable_tasks", ROOT / "tests"):
        folders = [
            folder
            for folder in parent.iterdir()
            if any(folder.glob("*.*")) and folder.name != "__pycache__"
        ]
        unknown = {folder.name for folder in folders} - {Path(prefix).name for prefix, _ in TABLE}
        assert unknown <= {"project", "testing", "backends"}, unknown
    assert DEFAULT not in dict(TABLE)


# Changed files in git -----------------------------------------------------------------------------


def _git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, timeout=60
    )


def _commit(folder: Path, name: str) -> None:
    (folder / name).write_text(name)
    _git(folder, "add", name)
    _git(folder, "commit", "-m", name)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Create a repository with two commits on its main branch."""
    _git(tmp_path, "init", "-b", "main")
    _commit(tmp_path, "first.py")
    _commit(tmp_path, "second.py")
    return tmp_path


def test_on_a_branch_its_commits_and_uncommitted_changes_count(repository: Path) -> None:
    _git(repository, "checkout", "-b", "topic")
    _commit(repository, "third.py")
    (repository / "first.py").unlink()
    (repository / "with space.py").write_text("")
    assert sorted(changes(repository).paths) == ["first.py", "third.py", "with space.py"]


def test_on_the_main_branch_the_last_commit_counts_until_it_is_published(repository: Path) -> None:
    (repository / "first.py").write_text("changed")
    assert sorted(changes(repository).paths) == ["first.py", "second.py"]
    _git(repository, "update-ref", "refs/remotes/origin/main", "HEAD")
    assert changes(repository).paths == ("first.py",)


def test_a_branch_is_compared_with_the_nearer_of_both_main_branches(repository: Path) -> None:
    _git(repository, "update-ref", "refs/remotes/origin/main", "HEAD~1")
    _git(repository, "checkout", "-b", "topic")
    assert changes(repository).paths == ()


def test_without_history_git_cannot_compare(tmp_path: Path) -> None:
    _git(tmp_path, "init", "-b", "main")
    _commit(tmp_path, "first.py")
    with pytest.raises(CannotCompare, match="HEAD~1"):
        changes(tmp_path)

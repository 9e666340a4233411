"""`--changed` runs the tests of the changed files: the table contains every folder, and other files
run the default selection.
"""

import subprocess
from pathlib import Path

import pytest

from tests.changed import ALWAYS, PACKAGE, TABLE, affected, changed_files
from tests.runs import ROOT, RUNS, Run

SCHEDULER = f"{PACKAGE}scheduler/loop.py"
CLAIM = f"{PACKAGE}store/sql/claim.postgresql.sql"
ONE_TEST = "processes/test_outages.py"


def _beside_checks(*paths: str) -> list[Run]:
    return [run for run in affected(paths) if run.suite not in ALWAYS.split()]


def test_checks_and_architecture_tests_run_after_every_change_and_nothing_without_one() -> None:
    runs = [run for run in RUNS if run.suite in {"checks", "architecture"}]
    assert [*affected(["tests/execution.py"])] == runs
    assert affected([]) == {}


@pytest.mark.parametrize(
    ("path", "suites"),
    [
        (f"{PACKAGE}schedules/timetables/cron.py", {"unit"}),
        ("docs/how-to/deploy_and_upgrade.md", {"documentation"}),
        (CLAIM, {"database", "crash_points"}),
        (
            f"{PACKAGE}tasks/claim.py",
            {"unit", "database", "crash_points", "smoke", "pgbouncer"},
        ),
        (f"{PACKAGE}celery/worker_node.py", {"database", "broker", "smoke", "pgbouncer"}),
        (SCHEDULER, {"database", "broker", "processes", "smoke", "pgbouncer"}),
        (f"{PACKAGE}admin/tasks.py", {"database", "browser"}),
        ("tests/mutants/graphs.py", {"mutants"}),
        ("tests/crash_points/__init__.py", {"crash_points"}),
        ("tests/processes/test_that_is_gone.py", set[str]()),
    ],
)
def test_a_file_runs_the_suites_that_test_it(path: str, suites: set[str]) -> None:
    assert {run.suite for run in _beside_checks(path)} - {"portable"} == suites


def test_sql_is_tested_on_each_database_and_broker_code_on_each_broker() -> None:
    assert {run.database for run in _beside_checks(CLAIM)} == {"postgresql", "mariadb", "sqlite"}
    runs = _beside_checks(f"{PACKAGE}celery/worker_node.py")
    brokers = {run.broker for run in runs if run.suite == "broker"}
    assert brokers == {"rabbitmq", "redis", "filesystem", "database"}


@pytest.mark.parametrize(
    "path", ["pyproject.toml", "constraints/oldest.txt", "tests/factories.py", "no/such/file.py"]
)
def test_a_file_outside_of_the_table_runs_the_default_selection(path: str) -> None:
    assert [*affected([path])] == [run.shortened for run in RUNS if run.default]


def test_a_test_module_runs_alone_on_each_pair_of_its_suite() -> None:
    runs = _beside_checks(f"tests/{ONE_TEST}")
    assert [(run.database, run.broker) for run in runs] == [
        (run.database, run.broker) for run in RUNS if run.suite == "processes"
    ]
    assert {(run.tests, run.may_be_empty, run.marks) for run in runs} == {(ONE_TEST, True, "")}


@pytest.mark.parametrize(
    ("paths", "tests"),
    [
        ([CLAIM, "tests/database/tasks/test_claims.py", SCHEDULER], "database concurrency"),
        (
            [
                SCHEDULER,
                "tests/database/scheduler/test_dispatching.py",
                "tests/concurrency/test_limits.py",
            ],
            "concurrency/test_limits.py database/scheduler",
        ),
    ],
)
def test_parts_of_a_suite_run_together_and_not_in_addition_to_the_whole(
    paths: list[str], tests: str
) -> None:
    assert all((ROOT / path).exists() for path in paths if path.startswith("tests/"))
    runs = [run for run in _beside_checks(*paths) if run.suite == "database"]
    assert [run.tests for run in runs] == [tests] * 3


def test_each_run_names_the_files_that_selected_it() -> None:
    because = {run.suite: paths for run, paths in affected([CLAIM, SCHEDULER]).items()}
    assert because["crash_points"] == [CLAIM]
    assert because["architecture"] == [CLAIM, SCHEDULER]


def test_the_table_names_files_that_exist_and_tests_that_run() -> None:
    for targets, places in TABLE:
        for place in places.split():
            (path,) = (
                folder + place for folder in ("", PACKAGE) if (ROOT / (folder + place)).exists()
            )
            runs = affected([f"{path}x" if place.endswith("/") else path])
            assert len({run.suite for run in runs}) >= len(ALWAYS.split()) + bool(targets)
        for target in targets.split():
            name = target.partition("@")[0]
            assert (ROOT / "tests" / name).exists() or name == "smoke"


def test_every_package_and_every_test_folder_has_a_row() -> None:
    known = {place for _, places in TABLE for place in places.split()}
    for parent, prefix in ((ROOT / PACKAGE, ""), (ROOT / "tests", "tests/")):
        folders = {
            folder.name
            for folder in parent.iterdir()
            if any(folder.glob("*.*")) and folder.name != "__pycache__"
        }
        unknown = {name for name in folders if f"{prefix}{name}/" not in known}
        assert unknown <= {"project", "testing"}, unknown


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
    assert sorted(changed_files(repository)) == ["first.py", "third.py", "with space.py"]


def test_on_the_main_branch_the_last_commit_counts_until_it_is_published(repository: Path) -> None:
    (repository / "first.py").write_text("changed")
    assert sorted(changed_files(repository)) == ["first.py", "second.py"]
    _git(repository, "update-ref", "refs/remotes/origin/main", "HEAD")
    assert changed_files(repository) == ["first.py"]


def test_a_branch_is_compared_with_the_nearer_of_both_main_branches(repository: Path) -> None:
    _git(repository, "update-ref", "refs/remotes/origin/main", "HEAD~1")
    _git(repository, "checkout", "-b", "topic")
    assert changed_files(repository) == []


def test_without_history_git_cannot_compare(tmp_path: Path) -> None:
    _git(tmp_path, "init", "-b", "main")
    _commit(tmp_path, "first.py")
    with pytest.raises(subprocess.CalledProcessError):
        changed_files(tmp_path)

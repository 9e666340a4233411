"""The runs of `python -m tests --changed`: the suites that test the changed files, by the table
below.

Checks and architecture tests run after every change, because they read all files. The first row
that matches a file is used. A test module is not looked up: it runs alone, on each database and
broker of its suite. A file without a row runs the default selection.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tests.runs import ENVIRONMENTS, ROOT, RUNS, Run

PACKAGE = "django_durable_tasks/"
ALWAYS = "checks architecture"
# Suites, or folders and modules of tests/, each on all its databases and brokers or on those after
# `@`; and the files and folders that they test, from the root or from the package.
TABLE = (
    ("unit", "workflows/diagrams.py schedules/timetables/ benchmarks/ tests/unit/"),
    (
        "unit database/dependencies@postgresql database/workflows@postgresql",
        "contrib/diagrams/",
    ),
    ("database crash_points", "store/"),
    ("unit database crash_points", "states/"),
    (
        "unit database crash_points@postgresql smoke",
        "limits/ dependencies/ targets/ tasks/ schedules/",
    ),
    ("database crash_points@postgresql smoke", "cluster/"),
    ("unit database/verify broker@redis smoke", "contrib/verify/"),
    ("unit database/celery broker smoke", "contrib/callbacks/"),
    ("unit database/notifications broker smoke", "contrib/notifications/"),
    ("database smoke", "models/ migrations/"),
    ("database/celery broker smoke", "celery/"),
    ("database/metrics unit", "contrib/metrics/"),
    ("database/scheduler broker processes@postgresql@rabbitmq smoke", "scheduler/"),
    ("unit database/checks/test_database_checks.py", "checks.py"),
    ("database/api documentation", "contrib/api/"),
    ("database smoke", "contrib/database_transport/ tests/conformance/"),
    ("database/recurring unit", "contrib/"),
    (
        "unit database/dependencies database/workflows crash_points@postgresql smoke",
        "workflows/",
    ),
    ("database@postgresql documentation smoke", "command/ management/"),
    ("database@postgresql documentation browser", "operations.py"),
    ("database/admin@postgresql browser", "admin/ templates/ static/"),
    ("documentation", "docs/ README.md CHANGELOG.md CONTRIBUTING.md Makefile tests/documentation/"),
    ("processes/test_example_project.py documentation", "example_project/"),
    ("database", "tests/database/ tests/concurrency/"),
    ("crash_points", "tests/crash_points/"),
    ("broker@redis smoke", "tests/broker/"),
    ("processes@postgresql@rabbitmq smoke", "tests/processes/"),
    ("mutants", "tests/mutants/"),
    ("chaos", "tests/chaos/"),
    ("browser", "tests/browser/"),
    ("processes/test_kill_trial.py@postgresql", "tests/kill_trials/"),
    ("", "LICENSE .gitignore .ci/ tox.ini tests/architecture/"),
    ("", "tests/__main__.py tests/changed.py tests/execution.py tests/report.py"),
)


def affected(paths: Iterable[str]) -> dict[Run, list[str]]:
    """Return the runs that test these files, each with the files that selected it."""
    wanted = [(path, target) for path in paths for target in f"{ALWAYS} {_targets(path)}".split()]
    chosen = {}
    for run in RUNS:
        whole = {path: target for path, target in wanted if _is_suite(target, run)}
        parts = {target.partition("@")[0]: path for path, target in wanted if _is_part(target, run)}
        # Not a module in addition to its folder.
        names = [name for name in parts if not any(name.startswith(f"{part}/") for part in parts)]
        if whole:
            chosen[run.shortened if {*whole.values()} == {"default"} else run] = list(whole)
        elif parts:
            part = replace(run, tests=" ".join(sorted(names)), marks="", may_be_empty=True)
            chosen[part] = list(dict.fromkeys(parts.values()))
    return chosen


def _targets(path: str) -> str:
    if path.startswith("tests/") and Path(path).match("test_*.py"):
        return path.removeprefix("tests/") if (ROOT / path).is_file() else ""
    name = path.removeprefix(PACKAGE)
    for targets, places in TABLE:
        for place in places.split():
            if name == place or (place.endswith("/") and name.startswith(place)):
                return targets
    return "default"


def _is_suite(target: str, run: Run) -> bool:
    """Return whether a target is this whole run."""
    if target == "default":
        return run.default
    name, *servers = target.split("@")
    suite = "smoke" if run.suite == "pgbouncer" else run.suite
    if run.suite == "portable" and run.default:
        suite = "database"
    return suite == name and {run.database, run.broker}.issuperset(servers)


def _is_part(target: str, run: Run) -> bool:
    """Return whether a target is a folder or a module of this run. Runs of marked tests and of
    other versions have no parts.
    """
    name, *servers = target.split("@")
    inside = any(name.startswith(f"{folder}/") for folder in run.tests.split())
    complete = run.suite not in {"smoke", "pgbouncer", "portable", *ENVIRONMENTS}
    return inside and complete and {run.database, run.broker}.issuperset(servers)


def changed_files(root: Path = ROOT) -> list[str]:
    """Return the files that differ from the branch point, including deleted and untracked ones.

    The branch point is the merge base with `main` or `origin/main`, whichever is nearer. On `main`
    it is that of `origin/main`, and without either the commit before the last. Raises
    CalledProcessError if git cannot compare.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    here = git("rev-parse", "--symbolic-full-name", "HEAD").strip()
    mains = ("refs/heads/main", "refs/remotes/origin/main")
    others = [
        name for name in git("for-each-ref", "--format=%(refname)", *mains).split() if name != here
    ]
    since = min(
        (git("merge-base", "HEAD", other).strip() for other in others),
        key=lambda base: int(git("rev-list", "--count", f"{base}..HEAD")),
        default="HEAD~1",
    )
    names = git("diff", "--name-only", "--no-renames", "-z", since, "--")
    names += git("ls-files", "--others", "--exclude-standard", "-z")
    return [name for name in dict.fromkeys(names.split("\0")) if name]

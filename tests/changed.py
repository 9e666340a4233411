"""The runs of `python -m tests --changed`: the suites that test the changed files, by the table
below.

Checks and architecture tests run after every change, because they read all files. The first row
that matches a file is used. A test module is not looked up: it runs alone, on each database and
broker of its suite. A file without a row runs the default selection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.environments import OTHERS
from tests.runs import (
    COMPLETE_BROKER,
    COMPLETE_PAIR,
    PGBOUNCER,
    PORTABLE,
    ROOT,
    SMOKE,
    Run,
    planned,
)
from tests.selection import default_runs

ALWAYS = ("checks", "architecture")
DEFAULT = "default"
_BROKER = (f"broker@{COMPLETE_BROKER}", SMOKE)
_PROCESSES = (f"processes@{'@'.join(COMPLETE_PAIR)}", SMOKE)
_SQL = ("database", "crash_points")
_PAGES = ("tests/database/admin@postgresql", "browser")

TABLE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("django_durable_tasks/workflows/diagrams.py", ("unit",)),
    (
        "django_durable_tasks/contrib/diagrams/",
        ("unit", "tests/database/dependencies@postgresql", "tests/database/workflows@postgresql"),
    ),
    ("django_durable_tasks/store/sql/", _SQL),
    ("django_durable_tasks/schedules/timetables/", ("unit",)),
    ("django_durable_tasks/store/", _SQL),
    ("django_durable_tasks/states/", ("unit", *_SQL)),
    *(
        (f"django_durable_tasks/{name}/", ("unit", "database", "crash_points@postgresql", SMOKE))
        for name in ("limits", "dependencies", "targets", "tasks", "tenants", "schedules")
    ),
    ("django_durable_tasks/cluster/", ("database", "crash_points@postgresql", SMOKE)),
    ("django_durable_tasks/contrib/verify/", ("unit", "tests/database/verify", *_BROKER)),
    ("django_durable_tasks/contrib/callbacks/", ("unit", "tests/database/celery", "broker", SMOKE)),
    (
        "django_durable_tasks/contrib/notifications/",
        ("unit", "tests/database/notifications", "broker", SMOKE),
    ),
    ("django_durable_tasks/models/", ("database", SMOKE)),
    ("django_durable_tasks/migrations/", ("database", SMOKE)),
    ("django_durable_tasks/celery/", ("tests/database/celery", "broker", SMOKE)),
    ("django_durable_tasks/contrib/metrics/", ("tests/database/metrics", "unit")),
    ("django_durable_tasks/scheduler/", ("tests/database/scheduler", "broker", *_PROCESSES)),
    ("django_durable_tasks/checks/", ("unit", "tests/database/checks/test_database_checks.py")),
    ("django_durable_tasks/contrib/", ("tests/database/recurring", "unit")),
    (
        "django_durable_tasks/workflows/",
        (
            "unit",
            "tests/database/dependencies",
            "tests/database/workflows",
            "crash_points@postgresql",
            SMOKE,
        ),
    ),
    ("django_durable_tasks/command/", ("database@postgresql", "documentation", SMOKE)),
    ("django_durable_tasks/management/", ("database@postgresql", "documentation", SMOKE)),
    ("django_durable_tasks/operations/", ("database@postgresql", "documentation", "browser")),
    ("django_durable_tasks/admin/", _PAGES),
    ("django_durable_tasks/contrib/api/", ("tests/database/api", "documentation")),
    ("django_durable_tasks/templates/", _PAGES),
    ("django_durable_tasks/static/", _PAGES),
    ("docs/", ("documentation",)),
    ("README.md", ("documentation",)),
    ("CHANGELOG.md", ("documentation",)),
    ("CONTRIBUTING.md", ("documentation",)),
    ("Makefile", ("documentation",)),
    ("LICENSE", ()),
    (".gitignore", ()),
    (".ci/", ()),
    ("tox.ini", ()),
    ("example_project/", ("tests/processes/test_example_project.py", "documentation")),
    ("benchmarks/", ("unit",)),
    ("tests/architecture/", ()),
    ("tests/unit/", ("unit",)),
    ("tests/documentation/", ("documentation",)),
    ("tests/database/", ("database",)),
    ("tests/concurrency/", ("database",)),
    ("tests/crash_points/", ("crash_points",)),
    ("tests/broker/", _BROKER),
    ("tests/processes/", _PROCESSES),
    ("tests/mutants/", ("mutants",)),
    ("tests/chaos/", ("chaos",)),
    ("tests/browser/", ("browser",)),
    ("tests/kill_trials/", ("tests/processes/test_kill_trial.py@postgresql",)),
    *(
        (f"tests/{name}.py", ())
        for name in ("__main__", "changed", "command_pool", "progress", "report", "worktree")
    ),
)
"""A folder, which ends with `/`, or a file; and the suites or parts of tests/ that test it, on the
servers after `@`.
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """A run, and the changed files that selected it."""

    run: Run
    because: tuple[str, ...]

    @property
    def line(self) -> str:
        """Return the run and the first three of its files."""
        if self.run.suite in ALWAYS:
            return f"{self.run.title}: after every change"
        more = f" and {len(self.because) - 3} more" if len(self.because) > 3 else ""
        return f"{self.run.title}: because of {', '.join(self.because[:3])}{more}"


def affected(paths: Iterable[str]) -> list[Choice]:
    """Return the runs that test these files, in the order of the matrix; no paths, no runs."""
    everything = list(dict.fromkeys([*planned(), *default_runs()]))
    wanted = [
        (path, target) for path in dict.fromkeys(paths) for target in (*ALWAYS, *_targets(path))
    ]
    return [choice for run in everything for choice in _choice(run, wanted)]


def _targets(path: str) -> Sequence[str]:
    if _is_path(path) and Path(path).match("test_*.py"):
        return (path,) if (ROOT / path).is_file() else ()
    for prefix, targets in TABLE:
        if path == prefix or (prefix.endswith("/") and path.startswith(prefix)):
            return targets
    return (DEFAULT,)


def _choice(run: Run, wanted: Sequence[tuple[str, str]]) -> Iterator[Choice]:
    """Yield the run, or its wanted parts, with the files that selected them."""
    whole = [path for path, target in wanted if _names(target, run)]
    parts = {target.partition("@")[0]: path for path, target in wanted if _is_part(target, run)}
    because = tuple(
        dict.fromkeys(whole or [path for path, target in wanted if _is_part(target, run)])
    )
    if whole:
        yield Choice(run, because)
    elif parts:
        yield Choice(_narrowed(run, sorted(parts)), because)


def _names(target: str, run: Run) -> bool:
    """Return whether a target is this whole run."""
    if target == DEFAULT:
        return run in default_runs()
    name, *servers = target.split("@")
    suites = {SMOKE, PGBOUNCER} if name == SMOKE else {name}
    return run.suite in suites and {run.database, run.broker}.issuperset(servers)


def _is_part(target: str, run: Run) -> bool:
    """Return whether a target is a folder or a module of this run. Runs of marked tests and of
    versions have no parts.
    """
    path, *servers = target.split("@")
    inside = any(path == folder or path.startswith(f"{folder}/") for folder in run.folders)
    complete = run.suite not in {SMOKE, PGBOUNCER, PORTABLE, *OTHERS}
    return inside and complete and {run.database, run.broker}.issuperset(servers)


def _narrowed(run: Run, paths: Sequence[str]) -> Run:
    """Return a run of these folders and modules only, including portable tests."""
    kept = [path for path in paths if not any(path.startswith(f"{other}/") for other in paths)]
    place = " × ".join(filter(None, (run.database, run.broker)))
    title = f"pytest {' '.join(kept)}" + (f" on {place}" if place else "")
    share = min(1.0, _modules(kept) / max(1, _modules(run.folders)))
    return replace(run, title=title, folders=tuple(kept), marks="", share=share, may_be_empty=True)


def _modules(paths: Iterable[str]) -> int:
    """Count the test modules."""
    return sum(
        1 if path.endswith(".py") else len(list((ROOT / path).rglob("test_*.py"))) for path in paths
    )


def _is_path(target: str) -> bool:
    return target.startswith("tests/")

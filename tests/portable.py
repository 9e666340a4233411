"""The tests of the database suite that do not depend on the database.

A test depends on the database if its result can differ with the SQL dialect, the locks, the
isolation, the statement counts or the query plans. Every test below tests/database and
tests/concurrency is assumed to depend on it, unless its module is listed here. So a new module runs
on each database until it is listed.

Portable tests run on PostgreSQL in every full run, on MariaDB and SQLite with `make test
ARGS="--all"`. In a portable module, a test with the mark of a database or the fixture `vendor`
still depends on the database.
"""

from collections.abc import Collection
from fnmatch import fnmatch

MODULES = (
    "tests/database/admin/*",  # pages: what they show, escape and permit
    "tests/database/api/test_schema.py",  # generated requests get documented answers
    "tests/database/api/test_messages_for_clients.py",  # what a refusal says
    "tests/database/api/test_refused_*.py",  # what is refused, and before which work
    "tests/database/celery/test_failing_queues.py",  # queues that the broker rejects
    # which due tasks a scheduler publishes, and when
    "tests/database/scheduler/test_dispatching.py",
    # exceptions of the due index and of the notifier
    "tests/database/scheduler/test_failing_parts.py",
    "tests/database/commands/test_durable_command_*.py",  # arguments, output and exit codes
    # findings and repairs of `durable verify` in corrupted rows
    "tests/database/verify/test_verify.py",
)
VENDORS = frozenset({"postgresql", "mariadb", "sqlite"})


def is_portable(path: str, marks: Collection[str], fixtures: Collection[str]) -> bool:
    """Return whether a test of the module `path` (from the root of the project) does not depend on
    the database.
    """
    named = any(fnmatch(path, pattern) for pattern in MODULES)
    return named and VENDORS.isdisjoint(marks) and "vendor" not in fixtures

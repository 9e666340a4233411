"""Which tests of the database suite run on which database.

* **Store**: what the statements of a dialect do: claims, keys, attempts, locks, transactions. The
  modules of ``STORE``, and each test that names a database. They run on each database by default.
* **Portable**: tests whose result does not depend on the database, in the modules of ``PORTABLE``.
  They run on PostgreSQL; on MariaDB and SQLite only with `--all`, last.
* All others depend on the database: on its dialect, locks, isolation, statement counts or query
  plans. They run on PostgreSQL by default, on MariaDB and SQLite with `--all`. A new module is one
  of them until it is listed.

In a portable module, a test with the mark of a database or the fixture ``vendor`` belongs to the
store.
"""

from collections.abc import Collection
from fnmatch import fnmatch

PORTABLE = (
    # Interfaces. Each performs operations and reads by the ORM; the functions behind them are
    # tested on each database by the suites of their capability.
    "tests/database/admin/*",  # pages: what they show, escape and permit
    "tests/database/api/test_a*.py",  # allow-lists, keys, and clients that want too much
    "tests/database/api/test_bad_input.py",  # what is refused, and with which place
    "tests/database/api/test_d*.py",  # derived fields and filters, dry runs
    "tests/database/api/test_idempotent_changes.py",  # repeated requests of one client
    "tests/database/api/test_isolation.py",  # scopes and tenants of each endpoint
    "tests/database/api/test_low_findings.py",  # answers name the place and the remedy
    "tests/database/api/test_messages_for_clients.py",  # what a refusal says
    "tests/database/api/test_n*.py",  # names, workflows and notification settings of clients
    "tests/database/api/test_other_resources.py",  # queues, calendars, health
    "tests/database/api/test_recurring_tasks.py",  # fields and lists of schedules
    "tests/database/api/test_refused_*.py",  # what is refused, and before which work
    "tests/database/api/test_requests.py",  # bad requests and their problems
    "tests/database/api/test_schema.py",  # generated requests get documented answers
    "tests/database/api/test_secrets.py",  # what a key without a scope cannot learn
    "tests/database/api/test_sent_requests.py",  # the documented webhooks are those that are sent
    "tests/database/api/test_signing_secrets.py",
    "tests/database/api/test_staff_sessions.py",  # sessions of staff users, their permissions
    "tests/database/api/test_t*.py",  # tasks and callbacks: fields, pages, operations
    "tests/database/audit/test_audit_readers.py",  # pages and lists of entries
    "tests/database/audit/test_entries_for_tenants.py",
    "tests/database/audit/test_masking.py",  # secrets in texts
    "tests/database/audit/test_new_column.py",  # what is derived from a model
    "tests/database/audit/test_secrets_of_every_field.py",  # secrets in every column
    "tests/database/commands/test_durable_command_*.py",  # arguments, output and exit codes
    "tests/database/operations/test_operations.py",  # one operation by each interface
    # Celery, callbacks and notifications: what is sent, with which content, and to whom.
    "tests/database/celery/test_addresses.py",  # exchanges and routing keys
    "tests/database/celery/test_around_the_function.py",  # wrappers and overridden calls
    "tests/database/celery/test_call_guard.py",  # ways to call a task
    "tests/database/celery/test_failing_queues.py",  # queues that the broker rejects
    "tests/database/celery/test_http_callback.py",  # requests to a server
    "tests/database/celery/test_plain_celery_task.py",
    "tests/database/celery/test_re*.py",  # reports of functions, and Celery's retry
    "tests/database/notifications/test_[aew]*.py",  # alerts, endpoints, the watchdog
    "tests/database/notifications/test_digests.py",
    "tests/database/notifications/test_schedule_events.py",
    "tests/database/tracing/*",  # spans and their links
    "tests/database/metrics/test_scrape.py",  # the text that Prometheus reads
    # Schedules: what the timetable decides, before any statement.
    "tests/database/recurring/test_default_zone.py",
    "tests/database/recurring/test_explain.py",  # explanations of instants
    "tests/database/recurring/test_import_beat.py",  # rows of another package
    "tests/database/recurring/test_import_settings.py",
    "tests/database/recurring/test_invalid_input.py",
    "tests/database/recurring/test_shadow.py",  # fires of beat beside ours
    "tests/database/recurring/test_tzdata_update.py",
    "tests/database/workflows/test_invalid_input.py",
    "tests/database/limits/test_waiting_tasks.py",  # pages, commands and explanations of limits
    # which due tasks a scheduler publishes, and when
    "tests/database/scheduler/test_dispatching.py",
    # exceptions of the due index and of the notifier
    "tests/database/scheduler/test_failing_parts.py",
    # findings and repairs of `durable verify` in corrupted rows
    "tests/database/verify/test_verify.py",
)
STORE = (
    "tests/database/store/*",  # each SQL form does what the ORM form does
    "tests/database/transitions/*",
    "tests/database/db/*",
    "tests/database/checks/*",
    "tests/database/cluster/*",  # leases on the clock of the database
    "tests/database/dependencies/test_release.py",
    "tests/database/limits/test_rate_limits.py",
    "tests/database/recurring/test_overlaps.py",
    "tests/database/recurring/test_trigger*.py",
    "tests/database/tasks/test_attempts.py",
    "tests/database/tasks/test_batch*.py",
    "tests/database/tasks/test_bulk.py",
    "tests/database/tasks/test_claims.py",
    "tests/database/tasks/test_dead_letters.py",
    "tests/database/tasks/test_enqueue.py",
    "tests/database/tasks/test_equal_texts.py",
    "tests/database/tasks/test_keys.py",
    "tests/database/tasks/test_publish_on_commit.py",
    "tests/database/tasks/test_retention.py",
    "tests/database/tasks/test_stateful.py",  # every operation in any order
    "tests/database/tasks/test_statement_counts.py",
    "tests/database/tasks/test_uniqueness.py",
    "tests/concurrency/test_batch_guards.py",
    "tests/concurrency/test_callers_transactions.py",
    "tests/concurrency/test_deadlocks.py",
    "tests/concurrency/test_keys.py",
    "tests/concurrency/test_leadership.py",
    "tests/concurrency/test_limits.py",
    "tests/concurrency/test_locked_rows.py",
    "tests/concurrency/test_one_owner.py",
    "tests/concurrency/test_trigger_races.py",
    "tests/concurrency/test_workflow_races.py",
)
VENDORS = frozenset({"postgresql", "mariadb", "sqlite"})


def mark_of(path: str, marks: Collection[str], fixtures: Collection[str]) -> str | None:
    """Return the mark of a test of the module `path` (from the root of the project): ``store``,
    ``portable`` or none.
    """

    def listed(patterns: Collection[str]) -> bool:
        return any(fnmatch(path, pattern) for pattern in patterns)

    is_portable = listed(PORTABLE)
    if listed(STORE) or not VENDORS.isdisjoint(marks) or (is_portable and "vendor" in fixtures):
        return "store"
    return "portable" if is_portable else None

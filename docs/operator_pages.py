"""The pages for operators, made from the parsers of the commands and from the findings of the
system checks.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

import django
from django.apps import apps
from django.core.management.base import BaseCommand

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
if not apps.ready:
    django.setup()

from django_durable_tasks.checks import FINDINGS, ProjectFinding
from django_durable_tasks.contrib.database_transport import checks as broker_checks
from django_durable_tasks.management.commands import durable, run_scheduler
from django_durable_tasks.operations import Operation

_COMMANDS = """
# Commands

```sh
manage.py run_scheduler          # run any number; one of them is the leader
manage.py durable SUBCOMMAND ... # inspect and change tasks, workflows and schedules
```

## All subcommands

* **`--format json`** writes one JSON object (`list`: one list) to stdout, with instants in ISO 8601 and durations in
  seconds. Remarks and progress go to stderr. Without it the output is an aligned plain table.
* **`--dry-run`** shows exactly which rows would change and changes none. For graphs (`cancel --workflow`, `replay
  --workflow`, `force-complete`, `approve`, ...) it also shows what would follow, because it performs the operation and
  rolls it back.
* **`--yes`** is required if filters select more than one row, and for a workflow, a branch, or tasks that depend on a
  task. Rows that are named by their ids need none.
* **`--limit`** selects the oldest rows. Rows are changed in batches of `BATCH_SIZE`, each in a transaction of its own.
* **`--by` and `--reason`** say who does it and why. The default of `--by` is the user of the operating system. Both are
  kept in the row, the dead letter, the gate or the log.
* **Secrets are masked** in arguments, results and errors, as `SECRET_NAMES` says.
* Rows that are **left unchanged** are listed with the reason: `it is RUNNING`, `there is no such task`, `a newer open
  task has the same key`.

| exit code | meaning |
|---|---|
| 0 | done; `status`: everything is within its thresholds; `health`: healthy or unknown |
| 1 | `status`, `health`, `sync --check`, `shadow` or `verify` found something, `check-url` refused the URL, or database or broker do not answer |
| 2 | wrong usage, no such row, nothing could be changed, or `verify` could not check |

## What status watches

These **problems** make `durable status` exit with 1: no scheduler is alive; no scheduler is the leader; a due task of a queue
that is not paused waits for more than `OLDEST_DUE_MAX`; more dead letters are open than `DEAD_LETTERS_MAX`; the broker
rejects the messages of a queue; a node has stalled; the clock of a node's host is further than 2 s from the
database's; the database's clock was set within the last hour.

With `--deploy` only schedulers, the leader, nodes and rejected queues count: late tasks, dead letters and steps of the clock are
warnings.

These **warnings** leave it at 0: runs over their `expected_duration`, paused queues, queues with work and no worker,
nodes that missed their heartbeats, parts of a scheduler that fail repeatedly, messages that were consumed from another queue than their
task's within the last day, workers whose pool cannot interrupt tasks with time limits on their queues, tasks whose code
this process does not have, a broker that this process cannot reach, tasks that wait for a limit, and more connections than the
database allows.

Keys of the JSON: `at`, `healthy`, `problems`, `warnings`, `depth` (rows by status), `depth_is_exact` (false if a queue has
10,000 PENDING tasks or more, at which counting stops), `oldest_due` (seconds), `queues`,
`dead_letters` (open ones), `leader` (or null), `nodes`, `unknown_tasks` (rows by name), `connections` (`needed`,
`allowed`), `broker`.

"""

_CHECKS = """
# System checks

Django runs them before most commands, and `manage.py check` runs them alone. An **error** (E) stops the command, because
tasks would be lost, duplicated or delayed. A **warning** (W) is printed. Only the checks of the database (E012, E013,
W008) open a connection; Django runs them on `migrate` and on `manage.py check --database default`.

To silence a check use `SILENCED_SYSTEM_CHECKS = ["durable_tasks.W005"]`. Words in braces are placeholders.

| id | message | remedy |
|---|---|---|
"""

_WHY = """
## Why

* **E004, E006** and the rule that `LEASE` is at least twice `HEARTBEAT` (E001): a single lost heartbeat must not lose a
  node or a run.
* **E007**: Celery creates a default application when `@shared_task` or `current_app` is touched before the project's
  exists. Other threads, such as those of a web server, then publish to `amqp://guest@localhost`.
* **E010**: Kombu's own `filesystem://` writes messages in place; a consumer that reads one too early loses it and dies.
* **E020**: a run of a node that was declared dead is lost when its lease was not renewed for `NODE_TIMEOUT`. A node may
  be declared dead by mistake, so healthy runs renew their leases more often than that.
* **E027**: the transport has connections of its own, and SQLite gives each connection another in-memory database. The database
  of a test run is not reported.
* **W004**: Celery ends a task function at its limit by signals and by killing a prefork child. Threads, solo, gevent and
  eventlet cannot do that for a durable task; the task is retried anyway when its lease expires. An `async` function is
  cancelled on threads and solo, too.
* **W005**: a prefetched message waits behind the run in progress although other workers are idle. The task is
  republished for them, so nothing is lost, but it starts late.
* **W006, W007**: the lease of the task has the effect of late acknowledgement, without duplicate deliveries.
* **W008**: SQLite has one writer. `IMMEDIATE` makes writers wait instead of failing, and WAL allows reads meanwhile.
* **W011**: `atomic=True` opens its transaction before the task function. On SQLite no other process can write until the
  function returns: heartbeats and other tasks wait.
* **W020**: due times are instants. With `USE_TZ = False` Django stores wall times, which name two instants for an hour each
  autumn. The tables of this package store instants with either setting.
* **W021**: with pickle, clients with write access to the broker can run code in every worker. Messages of durable tasks contain
  no arguments, but those of other Celery tasks of the same worker do.
"""

_OF_DJANGO = {action.dest for action in BaseCommand().create_parser("manage.py", "any")._actions}


def commands_page() -> str:
    """Return the page of the commands."""
    scheduler = run_scheduler.Command().create_parser("manage.py", "run_scheduler")
    examples = f"```sh\n{_block(scheduler.epilog)}```\n"
    own = f"## run_scheduler\n\n{scheduler.description}\n\n{_arguments(scheduler)}{examples}"
    whole = durable.Command().create_parser("manage.py", "durable")
    parsers = next(
        action for action in whole._actions if isinstance(action, argparse._SubParsersAction)
    )
    return (
        _COMMANDS
        + own
        + "".join(_subcommand(name, parser) for name, parser in parsers.choices.items())
    )


def _subcommand(name: str, parser: argparse.ArgumentParser) -> str:
    subcommand = durable.SUBCOMMANDS[name]
    examples = "".join(f"manage.py durable {example}\n" for example in subcommand.examples)
    text = _operations(subcommand.operations) if subcommand.operations else parser.description
    return f"\n## durable {name}\n\n{text}\n\n{_arguments(parser)}```sh\n{examples}```\n"


def _operations(operations: Sequence[Operation]) -> str:
    """Return a list item for each operation, with the permission that it needs in the admin."""
    return "\n".join(
        f"* **{operation.title}**"
        + (f" (permission `{operation.permission}`)" if operation.permission else "")
        + f": {operation.help}"
        for operation in operations
    )


def _block(epilog: str | None) -> str:
    lines = [line.strip() for line in (epilog or "").splitlines() if line.startswith("  ")]
    return "".join(f"{line}\n" for line in lines)


def _arguments(parser: argparse.ArgumentParser) -> str:
    rows = "".join(_argument(action) for action in parser._actions if action.dest not in _OF_DJANGO)
    return f"| argument | what it is |\n|---|---|\n{rows}\n"


def _argument(action: argparse.Action) -> str:
    named = ", ".join(action.option_strings)
    words = action.metavar
    value = (
        " ".join(words)
        if isinstance(words, tuple)
        else words or ("|".join(action.choices) if action.choices else action.dest.upper())
    )
    shown = f"{named} {value}".strip() if action.nargs != 0 else named
    more = {"*": " ...", "?": " (optional)"}.get(str(action.nargs), "")
    must = " (required)" if action.required and action.option_strings else ""
    return f"| `{shown.replace('|', ' / ')}{more}`{must} | {action.help or ''} |\n"


def checks_page() -> str:
    """Return the page of the system checks."""
    return _CHECKS + "".join(map(_finding, _all_findings())) + _WHY


def _all_findings() -> list[ProjectFinding]:
    """Return the findings of the package and of its optional apps, errors first, by number."""
    found = {**FINDINGS, **broker_checks.FINDINGS}
    return [found[name] for name in sorted(found)]


def _finding(finding: ProjectFinding) -> str:
    return f"| `{finding.full_id}` | {finding.says} | {finding.hint} |\n"

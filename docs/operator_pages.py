"""The pages for operators, made from the parsers of the commands and from the findings of the system checks."""

from __future__ import annotations

import argparse
import os

import django
from django.apps import apps
from django.core.management.base import BaseCommand

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
if not apps.ready:
    django.setup()

from django_durable_tasks.checks import FINDINGS, Finding
from django_durable_tasks.management.commands import durable, run_scheduler

_COMMANDS = """
# Commands

```sh
manage.py run_scheduler          # run as many as you like; one of them leads
manage.py durable VERB ...       # look at the work, and move it
```

Made from `django_durable_tasks/management/`.

## What every verb has

* **`--format json`** writes one JSON object (`list`: one list) to stdout, with instants in ISO 8601 and spans in
  seconds. Remarks and progress go to stderr. Without it the answer is an aligned plain table.
* **`--dry-run`** shows exactly which rows would change, and changes none. Of graphs (`cancel --workflow`, `retry
  --workflow`, `force-complete`, `approve`, ...) it shows what would follow too: it is the operation itself, taken back.
* **Filters change nothing unseen**: where they pick more than one row, the verb wants `--dry-run` or `--yes`. Ids need
  neither; a workflow, a branch, and what depends on a task do.
* **`--limit`** takes the oldest rows; work is done in batches of `BATCH_SIZE`, each in a transaction of its own.
* **Who did it** is the user of the operating system, or whom `--by` names; it stands in the row, the dead letter, the
  gate or the log.
* **Secrets are masked** in arguments, results and errors, as `SECRET_NAMES` says.
* What is **left alone** is told with the reason: `it is RUNNING`, `there is no such task`, `a newer open task holds the
  key`.

| exit code | meaning |
|---|---|
| 0 | done; `status` found everything within its thresholds; `alive`: it lives, or this could not be found out |
| 1 | `status`, `alive`, `sync --check`, `shadow` or `verify` found something, or database or broker do not answer |
| 2 | wrong usage, no such row, nothing could be changed, or `verify` could not look |

## What status watches

These **problems** make `durable status` exit with 1: no scheduler is alive; no scheduler leads; a due task of a queue
that is not paused waits for more than `OLDEST_DUE_MAX`; more dead letters are open than `DEAD_LETTERS_MAX`; the broker
rejects the messages of a queue; a node has stalled; the clock of a node's host is further than `SKEW_MAX` from the
database's.

These **warnings** leave it at 0: runs over their `expected_duration`, paused queues, queues with work and no worker,
silent nodes, parts of a scheduler that fail again and again, messages that were consumed from another queue than their
task's within the last day, workers whose pool cannot interrupt tasks with time limits on their queues, tasks whose code
this process does not have, a broker that does not answer from here, and more connections than the database allows.

Keys of the JSON: `at`, `healthy`, `problems`, `warnings`, `depth` (rows by status), `oldest_due` (seconds), `queues`,
`dead_letters` (open ones), `leader` (or null), `nodes`, `unknown_tasks` (rows by name), `connections` (`needed`,
`allowed`), `broker`.

"""

_CHECKS = """
# System checks

Django runs them before most commands, and `manage.py check` runs them alone. An **error** (E) stops the command: work
would be lost, doubled or held up. A **warning** (W) is printed. None of them connects to anything, but for the check of
the database (E012, E013, W008), which Django runs on `migrate` and on `manage.py check --database default`.

To silence one that you have weighed: `SILENCED_SYSTEM_CHECKS = ["durable_tasks.W005"]`. Words in braces are filled in.
Made from `django_durable_tasks/checks.py`.

| id | what it says | what to write |
|---|---|---|
"""

_WHY = """
## Why

* **E003**: due times are instants. With `USE_TZ = False` Django stores wall time, which means two instants for an hour
  each autumn.
* **E004, E005, E006** and the rule that `LEASE` is at least twice `HEARTBEAT` (E001): one lost sign of life must not
  cost a node, a leader or a run.
* **E007**: Celery makes an application of its own when `@shared_task` or `current_app` is touched before the project's
  exists. Other threads, such as those of a web server, then publish to `amqp://guest@localhost`.
* **E008**: with pickle, who can write to the broker runs code in every worker. Messages of durable tasks carry no
  arguments; other Celery tasks of the same worker do.
* **E010**: Kombu's own `filesystem://` writes messages in place; a consumer that reads one too early loses it and dies.
* **E020**: a run of a node that was declared dead is lost when its lease was not renewed for `NODE_TIMEOUT`. A node may
  be declared dead by mistake, so healthy runs renew their leases more often than that.
* **W004**: Celery ends a body at its limit by signals and by killing a prefork child. Threads, solo, gevent and
  eventlet cannot do that for a durable task; the row is freed all the same when its lease ends.
* **W005**: a prefetched message waits behind the run in progress although other workers are idle. The task is
  republished after `REPUBLISH_AFTER`, so nothing is lost, but it starts late.
* **W006, W007**: the lease of the row does what late acknowledgements promise, without their doubles.
* **W008**: SQLite has one writer. `IMMEDIATE` makes it wait in line instead of failing half-way, WAL lets readers read
  meanwhile.
* **W011**: `atomic=True` opens its transaction before the body. On SQLite nobody else can write until the body returns:
  heartbeats and other tasks wait.
"""

_OF_DJANGO = {action.dest for action in BaseCommand().create_parser("manage.py", "any")._actions}


def commands_page() -> str:
    """Return the page of the commands."""
    scheduler = run_scheduler.Command().create_parser("manage.py", "run_scheduler")
    examples = f"```sh\n{_block(scheduler.epilog)}```\n"
    own = f"## run_scheduler\n\n{scheduler.description}\n\n{_arguments(scheduler)}{examples}"
    whole = durable.Command().create_parser("manage.py", "durable")
    verbs = next(action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    return _COMMANDS + own + "".join(_verb(name, parser) for name, parser in verbs.choices.items())


def _verb(name: str, parser: argparse.ArgumentParser) -> str:
    examples = "".join(f"manage.py durable {example}\n" for example in durable.VERBS[name].examples)
    return f"\n## durable {name}\n\n{parser.description}\n\n{_arguments(parser)}```sh\n{examples}```\n"


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
    return _CHECKS + "".join(map(_finding, FINDINGS.values())) + _WHY


def _finding(finding: Finding) -> str:
    return f"| `{finding.full_id}` | {finding.says} | {finding.hint} |\n"

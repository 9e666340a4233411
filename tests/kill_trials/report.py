"""`python -m tests.kill_trials.report` writes docs/explanation/kill_trials.md from the figures
beside it.
"""

import sys
from itertools import groupby
from typing import Any

from tests.kill_trials.figures import BATCHES
from tests.kill_trials.ledger import LEDGER, entries

PAGE = LEDGER.with_suffix(".md")
HEAD = """\
# Kill trials

The only worker is killed with SIGKILL and replaced 20 times while it processes 2,000 tasks of 20 ms with concurrency 2
and default settings. In addition, two workers per trial are frozen during a task, replaced, and continued when all tasks
have ended, because a killed process cannot try to write an outdated ending. `make kill-test` runs five trials per pair
with a message for each task, half of which are async functions since 2026-11-29, and five with `batch=50` ("batches" in the
title). It adds their figures to
`kill_trials.json`, and `python -m tests.kill_trials.report` writes this page from that file.

* **lost**: tasks that have not ended. **left RUNNING**: tasks that are RUNNING although no process runs them.
* **accepted twice**: attempts with two accepted endings, or tasks with two successes.
* **LOST**: attempts whose process died or froze, and which were retried by another. **fenced**: endings that were
  refused because another run owned the task. **messages ignored**: duplicate or late messages that started nothing.
* **in batches**: tasks whose successful run started in a batch. A killed process loses all started tasks of its batches. No
  crash is counted for them, and each of them runs alone the next time.
* **seconds**: until the last success. The machine ran other programs meanwhile, so compare counts, not seconds.

## Findings

On MariaDB two early trials did not end, with one task RUNNING: a worker that was frozen inside the transaction of its
ending kept the lock of its task, and the leader skips locked rows. The dedicated connections now ask MariaDB to abort a
transaction that is idle for ten seconds, as they did before on PostgreSQL. All trials below ended. MySQL has no such
limit: there such a task waits until the frozen process continues or its connection is closed.

The first trials in batches took 96 to 116 s on RabbitMQ and 361 s on Redis. A trace of the table `BatchMessage` showed why: after each
of four kills a batch message was outstanding and no message was in the Redis list, because the parent process of the killed worker had
read it while its child processes were busy. The next message was published 15 s (`REPUBLISH_AFTER`) after the lost one. RabbitMQ returns
such a message when the connection ends. A batch message that no worker receives is now published again after 2 s.
"""
COLUMNS = (
    "date",
    "succeeded",
    "lost",
    "left RUNNING",
    "accepted twice",
    "LOST",
    "fenced",
    "messages ignored",
    "in batches",
    "seconds",
)


def page(found: list[dict[str, Any]]) -> str:
    """Return the whole page."""
    parts = [HEAD.rstrip()]
    for pair, group in groupby(sorted(found, key=_pair), _pair):
        trials = list(group)
        where = sorted({f"{trial['machine']}; {trial['versions']}" for trial in trials})
        lines = ["| " + " | ".join(_cells(trial)) + " |" for trial in trials]
        number = f"{len(trials)} trial{'s' * (len(trials) > 1)}"
        parts.append(
            "\n".join(
                [
                    f"\n## {pair}: {number}\n",
                    *where,
                    "",
                    "| " + " | ".join(COLUMNS) + " |",
                    "|" + "---|" * len(COLUMNS),
                    *lines,
                ]
            )
        )
    return "\n".join(parts) + "\n"


def _pair(entry: dict[str, Any]) -> str:
    lane = ", batches" if entry["lane"] == BATCHES else ""
    return f"{entry['database']} × {entry['broker']}{lane}"


def _cells(entry: dict[str, Any]) -> list[str]:
    names = (
        "lost",
        "left_running",
        "accepted_twice",
        "attempts_lost",
        "fenced_endings",
        "dropped_rings",
        "in_batches",
        "seconds",
    )
    return [
        entry["date"],
        f"{entry['succeeded']} of {entry['tasks']}",
        *(str(entry[name]) for name in names),
    ]


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(entries()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

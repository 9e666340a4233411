"""`python -m tests.kill_trials.report` writes docs/explanation/kill_trials.md from the figures beside it."""

import sys
from itertools import groupby
from typing import Any

from tests.kill_trials.ledger import LEDGER, entries

PAGE = LEDGER.with_suffix(".md")
HEAD = """\
# Kill trials

What the nearest rival publishes, repeated: the only worker is killed with SIGKILL and replaced 20 times while it drains
2,000 tasks of 20 ms on two slots, at default settings. Beside the kills two workers a trial are frozen in the middle of
a body, replaced, and woken when the drain is over, because a killed process never comes back to try the fences.
`make kill-test` runs five trials a pair, adds their figures to `kill_trials.json`, and this page is written from that
file by `python -m tests.kill_trials.report`.

* **lost**: tasks that have not ended. **left RUNNING**: rows that say they run when nothing does.
* **accepted twice**: attempts with two accepted endings, or tasks with two successes.
* **LOST**: attempts whose process died or froze, and which were given to another. **fenced**: endings that were
  refused because another run owned the row. **dropped rings**: messages, doubled or late, that started nothing.
* **seconds**: until the last success. The machine does other work meanwhile, so compare counts, not seconds.

## What the trials found

On MariaDB two early trials stood still with one row RUNNING: a worker that was frozen inside the transaction of its
ending kept the lock of its row, and the sweeper leaves locked rows alone. Connections of ours now ask MariaDB to end a
transaction that sleeps for ten seconds, as they always did on PostgreSQL; the trials below ended. MySQL has no such
limit: there such a row waits until the frozen process wakes or its connection is closed.
"""
COLUMNS = ("date", "succeeded", "lost", "left RUNNING", "accepted twice", "LOST", "fenced", "dropped rings", "seconds")


def page(found: list[dict[str, Any]]) -> str:
    """Return the whole page."""
    parts = [HEAD.rstrip()]
    for pair, group in groupby(sorted(found, key=_pair), _pair):
        trials = list(group)
        where = sorted({f"{trial['machine']}; {trial['versions']}" for trial in trials})
        lines = ["| " + " | ".join(_cells(trial)) + " |" for trial in trials]
        number = f"{len(trials)} trial{'s' * (len(trials) > 1)}"
        parts.append("\n".join([
            f"\n## {pair}: {number}\n", *where, "", "| " + " | ".join(COLUMNS) + " |",
            "|" + "---|" * len(COLUMNS), *lines,
        ]))  # fmt: skip
    return "\n".join(parts) + "\n"


def _pair(entry: dict[str, Any]) -> str:
    return f"{entry['database']} × {entry['broker']}"


def _cells(entry: dict[str, Any]) -> list[str]:
    names = ("lost", "left_running", "accepted_twice", "attempts_lost", "fenced_endings", "dropped_rings", "seconds")
    return [entry["date"], f"{entry['succeeded']} of {entry['tasks']}", *(str(entry[name]) for name in names)]


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(entries()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

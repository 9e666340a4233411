"""What ``durable`` refuses: it names the cause, exits with 2, prints nothing else and changes
nothing.
"""

from __future__ import annotations

import shlex
import uuid
from typing import Any

import pytest

from django_durable_tasks import Workflow
from django_durable_tasks.choices import Status
from django_durable_tasks.models import Calendar, DeadLetter, RecurringTask, Task, TaskDependency
from tests.database.commands.durable_command import durable
from tests.database.recurring.schedules import a_schedule
from tests.factories import a_task
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db

UNKNOWN = uuid.UUID(int=7)
IDS_OR_FILTERS = "either by their ids or by filters"
REFUSED = [
    *[(name, IDS_OR_FILTERS) for name in ("cancel", "retry", "replay")],
    *[
        (f"{name} {{failed}} --queue test", IDS_OR_FILTERS)
        for name in ("cancel", "retry", "replay")
    ],
    ("replay {failed} --args '{{}}'", "JSON"),
    ("replay {failed} --args '[1'", "JSON"),
    ("replay {failed} --kwargs '[]'", "JSON"),
    ("replay {failed} --args '[1, 2, 3]'", "tests.project.tasks.add"),
    ("replay {failed} {task} --args '[1]'", "exactly one task"),
    ("replay --queue test --args '[1]'", "exactly one task"),
    ("replay 999999", "There is no dead letter 999999"),
    ("discard {failed}", "--reason"),
    ("force-complete", ""),
    ("approve {task}", "waits for no APPROVAL"),
    ("reject {task} --reason x", "waits for no APPROVAL"),
    ("depend {task} --on {task}", "would wait for each other"),
    ("force-run", "Name the tasks by their ids"),
    ("cancel --workflow {run} --queue mail", ""),
    ("cancel --workflow {run} --branch {run}", ""),
    ("cancel --workflow {unknown}", ""),
    ("replay --workflow {run} {run}", ""),
    ("replay --workflow {run}", ""),
    ("replay --mode ALL --queue mail", ""),
    ("replay --from {run} --limit 3", ""),
    ("replay --from {unknown}", ""),
    ("graph {unknown}", "neither a workflow run nor a task"),
    ("show {unknown}", "There is no task"),
    ("show 17", "is not the id of a task"),
    ("list nodes --queue mail", ""),
    ("list queues --status PENDING", ""),
    ("list workflows --queue mail", "--queue does not narrow workflows"),
    ("list workflows --status BLOCKED", "No workflow run is BLOCKED"),
    ("list tasks --status STARTING", "No task is STARTING"),
    ("list tasks --status PAUSED", "list recurring"),
    ("list tasks --fingerprint x", ""),
    ("list tasks --all", ""),
    ("list tasks --after 17", ""),
    ("list tasks --limit 0", ""),
    ("list dead-letters --after {unknown}", ""),
    ("list recurring --after 5", "is the id of one"),
    ("list cats", ""),
    ("pause 'no such\nqueue'", "queue="),
    ("pause mail --until 2400-01-01T00:00:00Z", "need --recurring"),
    ("resume mail --run-missed", "need --recurring"),
    ("republish", "required"),
    ("republish --all --queue x", "not allowed"),
    ("run-now x", "There is no recurring task 'x'"),
    ("explain x 2026-03-02T09:00:00Z", "There is no recurring task 'x'"),
    ("ledger x", "There is no recurring task 'x'"),
    ("pause --recurring x", "There is no recurring task 'x'"),
    ("preview x", "no recurring task 'x'"),
    ("explain nightly 2026-03-02T09:00:00", "has no offset"),
    ("snooze nightly 2026-03-02T09:00:00Z", "is not after now"),
    ("preview nightly --anchor 2026-01-01T00:00:00Z", "--anchor goes with a description"),
    ("backfill nightly 2026-03-02T10:00:00Z 2026-03-02T09:00:00Z", "is before start"),
    ("backfill nightly 2026-03-02T09:00:00Z 2400-03-02T09:00:00Z", "is after now"),
    (
        "backfill nightly 2026-03-02T09:00:00Z 2026-03-02T11:00:00Z --limit 5",
        "more than 5 fire times",
    ),
    (
        "simulate --every 1h --outage 2026-03-08T00:00:00Z 2026-03-07T00:00:00Z",
        "its end 2026-03-07T00:00:00Z is before its begin",
    ),
    ("calendars import --name x", "import needs a source"),
    ("calendars import holidays:DE", "import needs --name"),
    ("calendars import nonsense --name x", "holidays:DE-BY"),
    ("calendars import /nowhere/at/all.ics --name x", "cannot be read"),
    ("calendars import weekdays --name x --tenant nobody", "There is no tenant 'nobody'"),
    ("calendars import weekdays --working-days 8", "are not weekdays"),
    ("calendars delete", "delete needs --name"),
    ("verify --only watermark", "There is no check 'watermark'. Did you mean 'watermarks'?"),
    ("verify --limit 0", "'0' is not a whole number of 1 or more"),
    ("notify test", ""),
    ("notify test nobody", ""),
]


def _dump() -> list[Any]:
    models = (Task, DeadLetter, TaskDependency, RecurringTask, Calendar)
    return [list(model._base_manager.order_by("pk").values()) for model in models]


@pytest.fixture(scope="module")
def keys(few_committed_rows: object) -> dict[str, Any]:
    """Create the rows that the commands name, and return their ids."""
    workflow = Workflow("chain")
    workflow.add(noop, after=workflow.add(noop))
    run = workflow.start()
    failed = a_task(Status.FAILED, name="tests.project.tasks.add", args=[1, 2])
    a_schedule("nightly")
    return {"run": run.pk, "failed": failed.pk, "task": a_task().pk, "unknown": UNKNOWN}


@pytest.mark.parametrize(("words", "cause"), REFUSED, ids=[words for words, _ in REFUSED])
def test_an_impossible_command_names_its_cause_and_changes_nothing(
    keys: dict[str, Any], words: str, cause: str
) -> None:
    before = _dump()
    answer = durable(*shlex.split(words.format(**keys)))
    # A program that calls the command gets 1 for an error of argparse, a shell gets 2.
    assert answer.code == (1 if answer.err.startswith("Error: ") else 2), answer
    assert answer.out == ""
    assert answer.err
    assert cause in answer.err
    assert _dump() == before

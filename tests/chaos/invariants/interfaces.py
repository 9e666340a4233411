"""H13, H14 and H16: callbacks and notifications at their receiver, and tasks that run in batches.

What the receiver has recorded decides, not what the engine says about its deliveries.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from django_durable_tasks.registry import NOTIFICATION_TASK
from tests.chaos.records import History, Request, Selection

BATCHED = frozenset({"batched", "batched many"})
"""The kinds of the load's calls that create tasks of batches."""


def callbacks_arrive(history: History) -> Iterator[str]:
    """H13: every HTTP callback succeeded, and the receiver accepted a request with its id as
    idempotency key; every request has a valid signature, and there is at most one per attempt.
    """
    requests = defaultdict[str, list[Request]](list)
    for request in history.requests:
        requests[request.task].append(request)
        if not request.valid or request.key != request.message:
            yield f"{request.task} sent a wrong signature or key: {request}"
        if request.task not in history.rows:
            yield f"{request.task} does not exist and sent a request"
    for row in history.rows.values():
        arrived = requests[row.task]
        if len(arrived) > row.attempts:
            yield f"{row.task} sent {len(arrived)} requests in {row.attempts} attempts"
        accepted = any(_accepted(one) and one.key == row.task for one in arrived)
        if row.is_callback and (row.status != "SUCCESS" or not accepted):
            yield f"{row.task} is {row.status}, and the receiver accepted {int(accepted)} requests"


def selected_events_are_sent(history: History) -> Iterator[str]:
    """H14: the receiver accepted exactly one message about each ending that a notification setting
    selected and about no other, digests count each once, and no delivery failed for good.
    """
    for selection in history.selections:
        ended = {
            row.task
            for row in history.rows.values()
            if row.name == selection.name and row.status == selection.status
        }
        messages = {
            one.message: one
            for one in history.requests
            if one.setting == selection.setting and _accepted(one)
        }
        if selection.digest:
            number = sum(one.total for one in messages.values())
            if number != len(ended):
                yield f"digests of {selection.setting} count {number} of {len(ended)} events"
        else:
            yield from _messages(selection, ended, messages)
    for row in history.rows.values():
        if row.name == NOTIFICATION_TASK and row.status != "SUCCESS":
            yield f"{row.task} delivers a notification and ended as {row.status}"
    if history.undelivered_events:
        yield f"{history.undelivered_events} events have no delivery"


def _messages(selection: Selection, ended: set[str], messages: dict[str, Request]) -> Iterator[str]:
    sent = Counter(event for one in messages.values() for event in one.events)
    wanted = {(selection.type, task) for task in ended}
    for event in sorted(wanted | sent.keys()):
        if sent[event] != int(event in wanted):
            kind, task = event
            yield (
                f"{task} has {sent[event]} messages of {selection.setting} about {kind}, not"
                f" {int(event in wanted)}"
            )


def batched_tasks_succeed_once(history: History) -> Iterator[str]:
    """H16: every task of a batch exists and succeeded by exactly one accepted run whose function
    returned, whatever happened to the others of its batch.
    """
    for one in history.enqueued:
        if one.kind in BATCHED and one.task not in history.rows:
            yield f"{one.task} was acknowledged as {one.kind} and is gone"
    successes = Counter(log.task for log in history.logs if log.status == "SUCCESS")
    returned = {mark.task for mark in history.marks if not mark.begins and mark.good}
    for row in history.rows.values():
        if not row.batched:
            continue
        if row.status != "SUCCESS" or successes[row.task] != 1:
            yield f"{row.task} is {row.status} and has {successes[row.task]} accepted successes"
        if row.task not in returned:
            yield f"{row.task} is {row.status}, and its function never returned"


def _accepted(request: Request) -> bool:
    return request.valid and 200 <= request.answer < 300

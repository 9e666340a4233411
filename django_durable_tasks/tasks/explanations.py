"""Explains in sentences why a task has its status and what it waits for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django_durable_tasks.choices import Status

_EARLY = 3
"""A batch message that was published this often waits for less than about 15 s by default."""


class Level(StrEnum):
    """The severity of a sentence."""

    FINE = "fine"
    WAIT = "wait"
    TROUBLE = "trouble"


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of an explanation."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class OutstandingMessage:
    """A batch message that no worker has received: when it is published again (aware), and how
    often it was published. 0: the last one was refused by the broker, or by a worker that does not
    know the task.
    """

    due_at: datetime
    publish_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSituation:
    """The task and its environment at the instant ``now`` (aware); ``workers`` consume its
    queue.

    ``no_worker_has_it``: none of the workers has registered the name of the task.
    ``batch_message``: the outstanding message for the batches of its name in its queue, if it runs
    in batches. ``alone_after_crash``: its function runs in batches, but the process of an earlier
    batch of this task died.
    """

    now: datetime
    status: str
    queue: str
    name: str = ""
    due_at: datetime | None = None
    lease_until: datetime | None = None
    started_at: datetime | None = None
    expires_at: datetime | None = None
    overdue: bool = False
    held: bool = False
    limited: str = ""
    cancel_requested: bool = False
    attempts: int = 0
    failures: int = 0
    max_attempts: int = 1
    crashes: int = 0
    publish_count: int = 0
    unresolved: int = 0
    reason: str = ""
    paused: bool = False
    paused_by: str = ""
    pause_reason: str = ""
    schedulers: int = 0
    workers: int = 0
    no_worker_has_it: bool = False
    known: bool = True
    in_batch: bool = False
    batch_message: OutstandingMessage | None = None
    alone_after_crash: bool = False


_FAILED = {
    "EXHAUSTED": "It failed: all of its attempts have been made.",
    "GAVE_UP": "It failed: its error is not retryable.",
    "REJECTED": "It failed: the task function rejected the message.",
    "CRASHED": "It failed: its workers died max_crashes times.",
    "ORPHANED": "It failed: its worker died, and its option on_orphan forbids another run.",
}


_ENDED = {
    Status.SUCCESS: "It is done",
    Status.CANCELLED: "It was cancelled",
    Status.SKIPPED: "It was skipped",
    Status.EXPIRED: "It expired: no worker started it before its expires_at",
}


def ago(seconds: float) -> str:
    """Return a duration as text: 45 s, 12 min, 3 h 20 min, 5 d."""
    whole = int(abs(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7_200:
        return f"{whole // 60} min"
    if whole < 172_800:
        minutes = whole % 3_600 // 60
        return f"{whole // 3_600} h {minutes} min" if minutes else f"{whole // 3_600} h"
    return f"{whole // 86_400} d"


def explain(task: TaskSituation) -> list[Sentence]:
    """Return what prevents the next step of the task, the most severe reason first; at least one
    sentence.
    """
    sentences: Iterable[Sentence]
    match task.status:
        case Status.BLOCKED:
            upstreams = f"{task.unresolved} other tasks or people"
            if task.unresolved == 1:
                upstreams = "1 other task or person"
            sentences = [_wait(f"It waits for {upstreams}.")]
        case Status.PENDING:
            sentences = _pending(task)
        case Status.QUEUED:
            sentences = _queued(task)
        case Status.RUNNING:
            sentences = _running(task)
        case Status.FAILED:
            sentences = [_trouble(_FAILED.get(task.reason, f"It failed: {task.reason}."))]
        case _:
            why = {"": "", task.status: ""}.get(task.reason, f": {task.reason}")
            level = Level.FINE if task.status == Status.SUCCESS else Level.WAIT
            sentences = [Sentence(level, f"{_ENDED[Status(task.status)]}{why}.")]
    return sorted(sentences, key=lambda sentence: list(Level).index(sentence.level), reverse=True)


def _trouble(text: str) -> Sentence:
    return Sentence(Level.TROUBLE, text)


def _wait(text: str) -> Sentence:
    return Sentence(Level.WAIT, text)


def _around(task: TaskSituation) -> Iterator[Sentence]:
    """Yield what delays every task of this queue."""
    if task.paused:
        by = f" by {task.paused_by}" if task.paused_by else ""
        why = f" ({task.pause_reason})" if task.pause_reason else ""
        yield _trouble(
            f"Queue {task.queue} was paused{by}{why}: nothing of it starts until it is resumed."
        )
    if not task.workers:
        yield _trouble(
            f"No live worker listens on queue {task.queue}: start one, or look at its -Q option."
        )
    elif task.no_worker_has_it:
        yield _trouble(
            f"No live worker of queue {task.queue} has the task {task.name}: deploy one that has"
            " it, or cancel the task."
        )
    if not task.known:
        yield _wait(
            "No durable task of that name is registered in this process. A worker without it"
            " returns it to PENDING."
        )
    if task.expires_at is not None:
        remaining = (task.expires_at - task.now).total_seconds()
        yield _wait(
            f"Expires in {ago(remaining)} and will not run after that."
            if remaining > 0
            else f"Expired {ago(remaining)} ago and will not run."
        )


def _pending(task: TaskSituation) -> Iterator[Sentence]:
    late = (task.now - task.due_at).total_seconds() if task.due_at else 0.0
    yield from _around(task)
    if task.limited:
        yield _wait(task.limited)
        return
    if task.held:
        yield _wait(
            "It waits until the earlier runs with its overlap key have ended (the schedule's"
            " overlap)."
        )
        return
    yield from _history(task)
    if late < 0:
        again = "The next attempt" if task.attempts else "It"
        yield _wait(f"{again} is not due yet: in {ago(late)}.")
        return
    if not task.schedulers:
        yield _trouble("No scheduler is alive: run `manage.py run_scheduler`.")
    since = f"since {ago(late)}" if late >= 1 else "now"
    if task.in_batch:
        yield _wait(
            f"It is due {since} and waits for a batch: a worker starts it together with others."
        )
        yield _batch_message(task)
    else:
        yield _wait(
            f"It is due {since} and waits for its turn: more urgent and older tasks go first."
        )


def _history(task: TaskSituation) -> Iterator[Sentence]:
    """Yield what the earlier attempts mean for the next one."""
    if task.failures or task.crashes:
        lost = f" and its worker died {task.crashes} times" if task.crashes else ""
        yield _wait(f"It failed {task.failures} of {task.max_attempts} times{lost}.")
    if task.alone_after_crash:
        yield _wait(
            "Its worker died during a batch, so it runs alone, with a message of its own. Only a"
            " further crash counts towards its max_crashes."
        )


def _batch_message(task: TaskSituation) -> Sentence:
    """Return what the next batch of this name in this queue waits for."""
    message = task.batch_message
    if message is None:
        return _wait(
            "No batch message is outstanding: a scheduler publishes one, or the worker that starts"
            " a full batch."
        )
    remaining = (message.due_at - task.now).total_seconds()
    again = f"in {ago(remaining)}" if remaining > 0 else "now"
    if message.publish_count == 0:
        return _trouble(
            "The broker refused the batch message, or the worker that received it has no task of"
            f" this name. A scheduler publishes the next one {again}."
        )
    if message.publish_count <= _EARLY and remaining > 0:
        return _wait("A batch message was published and waits for a free worker process.")
    times = "once" if message.publish_count == 1 else f"{message.publish_count} times"
    return _trouble(
        f"The batch message was published {times} and no worker received it: the workers are busy,"
        f" or the broker lost it. A scheduler publishes it again {again}."
    )


def _queued(task: TaskSituation) -> Iterator[Sentence]:
    yield from _around(task)
    if task.alone_after_crash:
        yield from _history(task)
    if task.publish_count <= 1:
        yield _wait("It was published and waits for a free worker.")
        return
    busy = ": the workers are busy, or the broker lost the messages" if task.workers else ""
    yield _trouble(f"It was published {task.publish_count} times and no worker started it{busy}.")
    if not task.schedulers:
        yield _trouble("No scheduler is alive to publish it again: run `manage.py run_scheduler`.")


def _running(task: TaskSituation) -> Iterator[Sentence]:
    since = f" since {ago((task.now - task.started_at).total_seconds())}" if task.started_at else ""
    yield Sentence(Level.FINE, f"It runs{since}, try {task.attempts}.")
    if task.lease_until is not None and task.lease_until < task.now:
        silent = ago((task.now - task.lease_until).total_seconds())
        yield _trouble(
            f"Its worker missed its heartbeats: the lease expired {silent} ago. The leader will"
            " mark the run LOST."
        )
        if not task.schedulers:
            yield _trouble("No scheduler is alive to retry it: run `manage.py run_scheduler`.")
    if task.overdue:
        yield _trouble("It takes longer than its expected duration.")
    if task.cancel_requested:
        yield _wait(
            "Cancellation was requested. It takes effect at the next check of the task function, or"
            " when the run ends."
        )

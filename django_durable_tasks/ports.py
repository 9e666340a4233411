"""Doors that open upwards: bound once in ``apps.ready()``, so that lower floors can ask for what
higher ones do.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """One message to hand to the broker: which row, its epoch, and where to."""

    task_id: uuid.UUID
    epoch: int
    number: int
    name: str
    queue: str
    priority: int
    timeout: float | None = None
    soft_timeout: float | None = None
    idempotency_key: str | None = None


class PublishPort(Protocol):
    """Hands rings to the broker; never raises for it: the row of a ring that is not taken waits
    PENDING again.
    """

    def __call__(self, messages: Sequence[TaskMessage]) -> None: ...


class TaskOperations(Protocol):
    """What an operator can do to the tasks of a queryset; returns the ids or the number of the
    tasks that it changed.

    ``by`` (who) and ``reason`` (why) are kept in the task.
    """

    def replay(
        self,
        question: Any,
        *,
        by: str,
        reason: str,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
    ) -> list[uuid.UUID]:
        """Run ended tasks again."""

    def retry(self, question: Any, *, by: str, reason: str) -> int:
        """Make waiting retries due now."""

    def cancel(self, question: Any, *, by: str, reason: str) -> int:
        """Cancel open tasks."""

    def force_complete(self, question: Any, *, by: str, reason: str) -> list[uuid.UUID]:
        """Set tasks to SUCCESS without running them."""

    def reschedule(self, question: Any, run_at: Any, *, by: str, reason: str) -> int:
        """Move tasks that have not started to another time."""

    def cancel_key(self, key: str, *, tenant: Any, by: str, reason: str) -> int:
        """Cancel the open task of this key."""

    def reschedule_key(self, key: str, run_at: Any, *, tenant: Any, by: str, reason: str) -> int:
        """Move the open task of this key to another time."""


class DeadLetterOperations(Protocol):
    """What an operator can do to the dead letters of a queryset; only open ones are changed."""

    def replay(
        self,
        letters: Any,
        *,
        by: str,
        reason: str,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
    ) -> list[uuid.UUID]:
        """Run their tasks again; return the ids of the tasks."""

    def discard(self, letters: Any, *, by: str, reason: str) -> int:
        """Close them; return how many."""


class QueueOperations(Protocol):
    """Pauses and resumes queues."""

    def pause(self, name: str, *, by: str, reason: str) -> None:
        """Publish and start nothing of a queue."""

    def resume(self, name: str, *, by: str, reason: str) -> bool:
        """Publish its tasks again; return whether it was paused."""


class CalendarOperations(Protocol):
    """Writes business calendars, and the next fire times of the schedules that name them."""

    def upsert(
        self,
        name: str,
        *,
        working_days: Sequence[int] | None,
        days: Iterable[Any] | None,
        description: str | None,
        tenant: Any,
        by: str,
        reason: str,
    ) -> Any:
        """Create or change the calendar of this name."""

    def remove(self, name: str, *, tenant: Any, by: str, reason: str) -> bool:
        """Delete the calendar of this name; return whether there was one."""


class ScheduleVerbs(Protocol):
    """The verbs that RecurringTask and its manager offer; the lifecycle does them."""

    def upsert(self, *, name: str, task: Any, **options: Any) -> Any:
        """Create or change the schedule of this name."""

    def pause(self, row: Any, *, reason: str, until: Any, by: str) -> None:
        """Stop firing."""

    def resume(
        self, row: Any, *, by: str, reason: str, run_missed: bool, pace: float | None
    ) -> None:
        """Fire again."""

    def cancel(self, row: Any, *, reason: str, by: str) -> None:
        """End the schedule for good."""

    def trigger_now(self, row: Any, *, request_id: str | None, by: str, reason: str) -> Any:
        """Run once now."""

    def backfill(self, row: Any, start: Any, end: Any, **options: Any) -> Any:
        """Run fire times of the past."""

    def override(self, row: Any, fire_time: Any, action: str, **options: Any) -> Any:
        """Decide about one fire time."""

    def withdraw(self, row: Any, fire_time: Any) -> bool:
        """Take back what was decided about one fire time."""

    def next_fire_times(self, row: Any, number: int, *, after: Any) -> list[Any]:
        """Return the next fires."""

    def snooze(self, row: Any, *, until: Any, by: str, reason: str) -> None:
        """Let the fire times up to an instant pass."""

    def explain(self, row: Any, at: Any) -> str:
        """Say what became of a fire time."""


class QueueOf(Protocol):
    """Names the queue that Celery's routing gives to a task, or to a call with these arguments."""

    def __call__(
        self,
        name: str,
        queue: str | None,
        args: Sequence[Any] = ...,
        kwargs: Mapping[str, Any] = ...,
    ) -> str: ...


class BrokerOpen(Protocol):
    """Tells whether the broker took our last messages, and those of this queue."""

    def __call__(self, queue: str | None = None) -> bool: ...


class FastPath(Protocol):
    """Decides whether a task may be published when the transaction that makes it due commits,
    without a claim.
    """

    def is_open(self, name: str, queue: str, tenant_id: int) -> bool:
        """Return whether the queue has capacity, no limit applies, and count the task as
        published.
        """

    def is_limited(self, name: str, queue: str, tenant_id: int) -> bool:
        """Return whether a concurrency or rate limit can apply to such a task."""


class Eager(Protocol):
    """Tells whether published tasks run in the process of the caller (Celery's eager mode)."""

    def __call__(self) -> bool: ...


class DueChanges(Protocol):
    """Hears of rows that wait, in the transaction that changes them; acts after its commit and
    never raises.

    It costs nothing to speak of where nobody wants to know.
    """

    def born(self, rows: Sequence[Any]) -> None:
        """Record the new tasks (``NewTask``)."""

    def moved(self, ids: Sequence[uuid.UUID], at: Any = None) -> None:
        """Take in that rows wait for another instant: a datetime or an expression; without one
        nobody is woken.
        """

    def gone(self, ids: Sequence[uuid.UUID]) -> None:
        """Take in that rows wait no more."""

    def duties(self, at: Any = None) -> None:
        """Take in that the leader has endings to tell or to count, or from this datetime on
        something to fire.
        """


class LoadTasks(Protocol):
    """Imports the project's task modules, at most once a process; returns what went
    wrong, or None.
    """

    def __call__(self) -> str | None: ...


class ScheduleZone(Protocol):
    """Returns the name of the zone of a new schedule that names none; raises InvalidSchedule."""

    def __call__(self) -> str: ...


class ApplyRequests(Protocol):
    """Applies what a transaction requested of RUNNING tasks; called after its commit."""

    def __call__(self, task_ids: Sequence[uuid.UUID]) -> None: ...


class _Unbound:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(
            "django_durable_tasks is not in INSTALLED_APPS, or django.setup() has not run."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "django_durable_tasks is not in INSTALLED_APPS, or django.setup() has not run."
        )


publish: PublishPort = _Unbound()
tasks: TaskOperations = _Unbound()
dead_letters: DeadLetterOperations = _Unbound()
queues: QueueOperations = _Unbound()
calendars: CalendarOperations = _Unbound()
schedules: ScheduleVerbs = _Unbound()
queue_of: QueueOf = _Unbound()
broker_open: BrokerOpen = _Unbound()
fast_path: FastPath = _Unbound()
eager: Eager = _Unbound()
due: DueChanges = _Unbound()
load_tasks: LoadTasks = _Unbound()
schedule_zone: ScheduleZone = _Unbound()
apply_requests: ApplyRequests = _Unbound()


def bind(
    *,
    publish_port: PublishPort,
    task_port: TaskOperations,
    letter_port: DeadLetterOperations,
    pause_port: QueueOperations,
    calendar_port: CalendarOperations,
    schedule_verbs: ScheduleVerbs,
    queue_port: QueueOf,
    broker_port: BrokerOpen,
    fast_path_port: FastPath,
    eager_port: Eager,
    due_port: DueChanges,
    load_port: LoadTasks,
    zone_port: ScheduleZone,
    requests_port: ApplyRequests,
) -> None:
    """Bind the doors; called once by ``apps.ready()``."""
    global publish, tasks, dead_letters, queues, calendars, schedules
    global queue_of, broker_open, fast_path, eager, due, load_tasks, schedule_zone, apply_requests
    publish, tasks, dead_letters, queues, calendars = (
        publish_port,
        task_port,
        letter_port,
        pause_port,
        calendar_port,
    )
    schedules, queue_of, broker_open, fast_path = (
        schedule_verbs,
        queue_port,
        broker_port,
        fast_path_port,
    )
    eager, due, load_tasks = eager_port, due_port, load_port
    schedule_zone, apply_requests = zone_port, requests_port

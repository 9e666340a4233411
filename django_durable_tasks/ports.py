"""Functions that lower packages call and higher packages provide.

``apps.ready()`` assigns the ports once. For example, the engine publishes through ``ports.publish``
without importing Celery.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """One message for the broker: the task, its epoch, and its queue.

    ``number``: how many messages of this epoch were published, including this one. ``timeout`` and
    ``soft_timeout``: seconds, if the call overrides them. ``headers``: those by which Sentry
    continues the trace of the caller.
    """

    task_id: uuid.UUID
    epoch: int
    number: int
    name: str
    queue: str
    priority: int
    timeout: float | None = None
    soft_timeout: float | None = None
    idempotency_key: str | None = None
    headers: Mapping[str, str] | None = None
    batch_of: str | None = None
    """The task name if the message is for a batch. Then ``task_id`` is the id of the message,
    ``epoch`` is its number, and ``name`` is the Celery task that starts batches.
    """


class QueueOf(Protocol):
    """Returns the queue to which Celery's routing sends a task, or a call with these arguments."""

    def __call__(
        self,
        name: str,
        queue: str | None,
        args: Sequence[Any] = ...,
        kwargs: Mapping[str, Any] = ...,
    ) -> str: ...


class BrokerOpen(Protocol):
    """Returns whether messages may be published.

    That is the case if the broker accepted the last messages, and those of ``queue`` if it is
    given.
    """

    def __call__(self, queue: str | None = None) -> bool: ...


class FastPathPort(Protocol):
    """Decides whether a task may be published when the transaction that makes it due commits,
    without a claim.
    """

    def is_open(self, name: str, queue: str, tenant_id: int) -> bool:
        """Return whether the queue has capacity and no limit applies.

        If so, the task is counted as published.
        """

    def may_start_batch(self, name: str, queue: str, tenant_id: int) -> bool:
        """Return whether the queue is not paused and no limit applies."""

    def is_limited(self, name: str, queue: str, tenant_id: int) -> bool:
        """Return whether a concurrency or rate limit can apply to such a task."""


class DueChanges(Protocol):
    """Receives changes of waiting tasks in the transaction that writes them.

    After its commit schedulers are notified of what is due soon. Errors of their servers are not
    raised. Without Redis and PostgreSQL notifications it does nothing.
    """

    def created(self, rows: Sequence[Any]) -> None:
        """Record that these tasks (``NewTask``) were created."""

    def rescheduled(self, at: Any) -> None:
        """Record that tasks are due at another time, a datetime or an expression, of which this is
        the earliest.
        """

    def leader_work(self, at: Any = None) -> None:
        """Record that the leader has ending events to process, or a schedule to fire at ``at``."""


class Traces(Protocol):
    """Creates the spans of tasks, provided by ``contrib.metrics`` if TRACES is set."""

    def created(
        self, name: str, queue: str, task_id: str, number: int, upstreams: Sequence[str]
    ) -> str | None:
        """Create the span of a creation; return its context."""

    def attempt(self, run: Any) -> AbstractContextManager[None]:
        """Return the context manager of an attempt."""


class OpenTaskQuota(Protocol):
    """How many tasks a transaction may create for a tenant; ``limit`` is its quota."""

    @property
    def limit(self) -> int:
        """The quota."""

    def take(self) -> bool:
        """Use up one creation; return False if none is left."""


class Quotas(Protocol):
    """The quotas of tenants for what schedules create, provided by ``contrib.api``."""

    def runs_per_day(self, tenant: Any) -> int | None:
        """Return how often a recurring task of the tenant may run in a day; None for any number."""

    def admit_open_tasks(
        self, wanted: Mapping[int, int], now: datetime
    ) -> Mapping[int, OpenTaskQuota]:
        """Charge up to ``wanted`` tasks, by tenant id, that this transaction will create; return
        what is admitted of each tenant with a quota.
        """

    def refused(self, tenant_id: int, quota: str, detail: str) -> None:
        """Send the signal ``quota_refused`` after the transaction."""


class _Unbound:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(
            "django_durable_tasks is not in INSTALLED_APPS, or django.setup() has not run."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "django_durable_tasks is not in INSTALLED_APPS, or django.setup() has not run."
        )


publish: Callable[[Sequence[TaskMessage]], None] = _Unbound()
"""Publishes messages. Errors of the broker are not raised.

The task of a message that the broker does not accept becomes PENDING again.
"""
publish_batches: Callable[[Mapping[tuple[str, str], int]], None] = _Unbound()
"""Publishes a batch message for each of these queues and task names that has none outstanding,
with these priorities. Errors of the broker and the database are not raised.
"""
queue_of: QueueOf = _Unbound()
routes_by_arguments: Callable[[str | None], bool] = _Unbound()
"""Returns whether ``queue_of`` may give different queues to calls of one task."""
broker_open: BrokerOpen = _Unbound()
fast_path: FastPathPort = _Unbound()
eager: Callable[[], bool] = _Unbound()
"""Returns whether published tasks run in the process of the caller (Celery's eager mode)."""
due: DueChanges = _Unbound()
load_tasks: Callable[[], str | None] = _Unbound()
"""Imports the project's task modules, at most once per process.

Returns the error as text, or None.
"""
schedule_zone: Callable[[], str] = _Unbound()
"""Returns the default time zone of a new schedule. Raises InvalidSchedule."""
apply_requests: Callable[[Sequence[uuid.UUID]], None] = _Unbound()
"""Applies the requests of a transaction to RUNNING tasks; called after its commit."""
traces: Traces | None = None
"""None unless TRACES is set."""


def takes_tasks() -> bool:
    """Return whether workers take due tasks from the database themselves, so that nothing is
    published for them. ``contrib.database_transport`` replaces this function.
    """
    return False


quotas: Quotas | None = None
"""None without ``contrib.api``."""
tenants_of: Callable[[Any], frozenset[int] | None] | None = None
"""Returns the ids of the tenants to which a user is limited; None for a user who sees all. None
without ``contrib.api``.
"""


def bind_traces(implementation: Traces | None) -> None:
    """Assign ``traces``; called in ``AppConfig.ready()``."""
    global traces
    traces = implementation


def bind_takes_tasks(function: Callable[[], bool]) -> None:
    """Assign ``takes_tasks``; called in ``AppConfig.ready()``."""
    globals()["takes_tasks"] = function


def bind_tenants(
    tenant_quotas: Quotas, tenants_of_user: Callable[[Any], frozenset[int] | None]
) -> None:
    """Assign ``quotas`` and ``tenants_of``; called in ``AppConfig.ready()``."""
    global quotas, tenants_of
    quotas, tenants_of = tenant_quotas, tenants_of_user

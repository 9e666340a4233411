"""A task as plain values: its id, before it is inserted, and while a worker runs it."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django_durable_tasks.choices import Status, TargetType

# The trace in which a task was created, stored among the options of its row.


TRACEPARENT = "traceparent"
"""The option with the context of the creation (W3C Trace Context)."""
LINKS = "trace_links"
"""The option with the contexts of the upstreams."""
LINKS_MAX = 20
SENTRY_HEADERS = ("sentry-trace", "baggage")
"""The options with the trace of the caller in Sentry, named as its headers."""


def with_trace(
    options: str | None, context: Mapping[str, str], upstreams: Sequence[str] = ()
) -> str:
    """Return options (JSON text) with the trace of the creation."""
    values = {**(json.loads(options) if options else {}), **context}
    if upstreams:
        values[LINKS] = list(upstreams)
    return json.dumps(values)


def traceparents(options: Sequence[Mapping[str, Any] | None]) -> list[str]:
    """Return the contexts in the options of tasks, at most LINKS_MAX."""
    contexts = (task_options.get(TRACEPARENT) for task_options in options if task_options)
    return [context for context in contexts if isinstance(context, str)][:LINKS_MAX]


def sentry_headers(options: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the headers by which Sentry continues the trace of the caller; None without one."""
    if SENTRY_HEADERS[0] not in options:
        return None
    return {name: options[name] for name in SENTRY_HEADERS if isinstance(options.get(name), str)}


# UUIDv7 (RFC 9562 §5.7): ids that sort by creation time, so that new rows are appended to the end
# of every index.


def new_task_id() -> uuid.UUID:
    """Return a new UUIDv7."""
    return uuid7(time.time_ns() // 1_000_000, os.urandom(10))


def new_task_ids(number: int) -> list[uuid.UUID]:
    """Return new UUIDv7s of one millisecond."""
    unix_ms, randomness = time.time_ns() // 1_000_000, os.urandom(10 * number)
    return [uuid7(unix_ms, randomness[at : at + 10]) for at in range(0, 10 * number, 10)]


def uuid7(unix_ms: int, randomness: bytes) -> uuid.UUID:
    """Return the UUIDv7 of this millisecond (UTC) and of 10 random bytes."""
    value = (unix_ms & 0xFFFF_FFFF_FFFF) << 80 | int.from_bytes(randomness, "big")
    return uuid.UUID(int=value & ~(0xF << 76 | 0x3 << 62) | 0x7 << 76 | 0x2 << 62)


def first_uuid7_of(unix_ms: int) -> uuid.UUID:
    """Return the smallest UUIDv7 of this millisecond: every task created before it has a smaller
    id.
    """
    return uuid7(unix_ms, bytes(10))


# The shard of a task, which follows from its id. ``states/demand.py`` assigns shards to schedulers.


SHARDS = 64
"""The number of shards. It cannot change, because ``Task.shard_key`` is stored."""


def shard_of(task_id: uuid.UUID) -> int:
    """Return the shard of a task."""
    return task_id.int % SHARDS


# ``NewTask``: the values of a task that is about to be inserted.


PER_CALL = 5
"""The number of the first fields, in which the tasks of calls with the same options differ."""
PER_OCCURRENCE = -9
"""The position of the last fields, in which also the occurrences of one task differ."""
NO_ID = uuid.UUID(int=0)


class NewTask(NamedTuple):
    """The columns of a new task, and the values from which the INSERT computes columns.

    ``args``, ``kwargs`` and ``options`` are JSON texts. Without ``run_at`` the task runs at the
    time of the database's clock. It expires ``expires_in`` seconds after ``run_at`` unless
    ``expires_at`` is given. ``due_at`` is ``run_at`` plus ``wait`` seconds unless it is given; a
    BLOCKED task has no ``due_at`` and no ``wait``. ``starts_batch``: the commit publishes a batch
    message if none is outstanding, so schedulers are not notified. The SQL statements read the
    fields by name.
    """

    # The fields of PER_CALL.
    id: uuid.UUID
    args: str
    kwargs: str
    shard_key: int
    limit_key: str | None
    tenant_id: int
    name: str
    queue: str
    priority: int
    max_attempts: int
    max_crashes: int
    on_orphan: str
    weight: int
    options: str | None = None
    wait: float | None = 0.0
    expires_in: float | None = None
    expected_duration: float | None = None
    has_given_id: bool = False
    key: str | None = None
    status: str = Status.PENDING
    epoch: int = 0
    publish_count: int = 0
    join_count: int | None = None
    on_upstream_failure: str = "SKIP"
    unresolved: int = 0
    has_dependents: bool = False
    time_zone: str = ""
    workflow_id: uuid.UUID | None = None
    target_type: str = TargetType.CELERY_TASK
    encryption_key: str | None = None
    in_batch: bool = False
    starts_batch: bool = False
    # The fields of PER_OCCURRENCE.
    run_at: datetime | None = None
    due_at: datetime | None = None
    expires_at: datetime | None = None
    idempotency_key: str | None = None
    unique_key: str | None = None
    recurring_task_id: uuid.UUID | None = None
    fire_time: datetime | None = None
    overlap_key: str | None = None
    step: str | None = None

    def waiting_for(self, unresolved: int, join_count: int | None) -> NewTask:
        """Return the task as BLOCKED by this many upstreams; as PENDING if there are none."""
        return self._replace(
            status=Status.BLOCKED if unresolved else Status.PENDING,
            wait=None if unresolved else 0.0,
            join_count=join_count,
            unresolved=unresolved,
        )

    @property
    def occurrence(self) -> tuple[uuid.UUID, datetime]:
        """Return the schedule and the fire time of a task that a schedule created."""
        if self.recurring_task_id is None or self.fire_time is None:
            raise ValueError(f"Task {self.id} of {self.name} was not created by a schedule.")
        return self.recurring_task_id, self.fire_time

    @property
    def has_key(self) -> bool:
        """Return whether a task that this one would duplicate may exist."""
        keys = (self.idempotency_key, self.key, self.unique_key)
        return self.has_given_id or any(key is not None for key in keys)


# A run in its worker process: its task, its tokens and its options.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLocation:
    """Where a task runs: the node's id, the worker's name, and the lease of the run in seconds.

    ``queues``: the names of the queue from which the message was consumed, its own name first.
    Empty if the queue is unknown.
    """

    node: uuid.UUID
    worker: str
    lease: float
    queues: tuple[str, ...] = ()


class Run(NamedTuple):
    """One accepted start. ``epoch`` and ``run_id`` are its tokens: writing its result requires
    both.

    ``queued_at`` is when the task was claimed, or created if it was published without a claim.
    ``ready_at`` is since when it was due then; None without a claim. The statements that start
    tasks return all fields but the last in this order.
    """

    task_id: uuid.UUID
    name: str
    queue: str
    tenant_id: int
    epoch: int
    run_id: uuid.UUID
    node: uuid.UUID
    attempt: int
    failures: int
    crashes: int
    max_attempts: int
    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    idempotency_key: str
    started_at: datetime
    run_at: datetime
    workflow_id: uuid.UUID | None = None
    has_dependents: bool = False
    ready_at: datetime | None = None
    queued_at: datetime | None = None
    fire_time: datetime | None = None
    recurring_task_id: uuid.UUID | None = None
    limit_key: str | None = None
    celery_id: str = ""

    @property
    def scheduled_for(self) -> datetime:
        """The nominal time of the start."""
        return self.fire_time or self.run_at

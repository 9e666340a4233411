"""A small reference of the task life cycle, written from the table of states and not from the
engine's code.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from django_durable_tasks.choices import OPEN, REPLAYABLE, LogStatus, Status

SOON, HOUR, DAY = 5.0, 3_600.0, 86_400.0
"""How far a test's clock runs ahead, in seconds: new tasks are due SOON, retries in an HOUR, and
after a DAY tasks expire.
"""


@dataclass
class Row:
    """The state of one task. ``due`` is the minimum number of seconds until it is due."""

    task_id: uuid.UUID
    status: Status
    epoch: int
    due: float = 0.0
    expires: bool = False
    max_attempts: int = 5
    max_crashes: int = 3
    key: str | None = None
    unique: str | None = None
    idempotency: str | None = None
    payload: int = 0
    open_key: str | None = None
    open_unique: str | None = None
    attempts: int = 0
    failures: int = 0
    crashes: int = 0
    asked: bool = False
    letter: bool = False
    run: uuid.UUID | None = None

    @property
    def is_open(self) -> bool:
        """Return whether it has not ended."""
        return self.status in OPEN

    def seen(self) -> tuple[object, ...]:
        """Return the values expected in the database."""
        return (
            self.status,
            self.epoch,
            self.attempts,
            self.failures,
            self.crashes,
            self.letter,
            self.asked,
        )

    def wait(self, due: float = 0.0) -> None:
        """Return to PENDING."""
        self.status, self.epoch, self.due, self.run, self.asked = (
            Status.PENDING,
            self.epoch + 1,
            due,
            None,
            False,
        )

    def close(self, status: Status) -> None:
        """Change to an ended status."""
        self.status, self.epoch, self.run, self.asked = status, self.epoch + 1, None, False
        self.open_key = self.open_unique = None
        self.letter = status == Status.FAILED

    def start(self, run: uuid.UUID) -> None:
        """A message of this epoch arrived."""
        self.status, self.epoch, self.attempts, self.run = (
            Status.RUNNING,
            self.epoch + 1,
            self.attempts + 1,
            run,
        )

    def fail(self, *, retryable: bool) -> LogStatus:
        """The body raised."""
        self.failures += 1
        if self.asked:
            self.close(Status.CANCELLED)
            return LogStatus.CANCELLED
        if retryable and self.failures < self.max_attempts:
            self.wait(due=60.0)
            return LogStatus.RETRY
        self.close(Status.FAILED)
        return LogStatus.FAILED

    def lose(self) -> None:
        """The run ended without a recorded outcome."""
        self.crashes += 1
        if self.asked:
            self.close(Status.CANCELLED)
        elif self.crashes >= self.max_crashes:
            self.close(Status.FAILED)
        else:
            self.wait()

    def cancel(self) -> None:
        """Its cancellation is requested."""
        if self.status == Status.RUNNING:
            self.asked = True
        elif self.is_open:
            self.close(Status.CANCELLED)

    def replay(self) -> None:
        """It is replayed."""
        self.wait()
        self.failures = self.crashes = 0
        self.letter, self.expires = False, False
        self.open_key, self.open_unique = self.key, self.unique


@dataclass
class Reference:
    """All tasks, in the order of their creation."""

    rows: list[Row] = field(default_factory=list)

    def get(self, task_id: uuid.UUID) -> Row:
        """Return the task of this id."""
        return next(row for row in self.rows if row.task_id == task_id)

    def holder(self, **named: str) -> Row | None:
        """Return the task that owns this open_key, open_unique or idempotency key."""
        ((name, value),) = named.items()
        return next((row for row in self.rows if getattr(row, name) == value), None)

    def due(self, ahead: float) -> list[Row]:
        """Return the waiting tasks that are due when the clock runs `ahead` seconds ahead."""
        return [row for row in self.rows if row.status == Status.PENDING and row.due <= ahead]

    def of(self, status: Status) -> list[Row]:
        """Return the tasks of this status."""
        return [row for row in self.rows if row.status == status]

    def may_replay(self, row: Row) -> bool:
        """Return whether no newer open task owns one of its keys."""
        others = [other for other in self.rows if other is not row]
        taken = any(row.key is not None and other.open_key == row.key for other in others)
        taken |= any(row.unique is not None and other.open_unique == row.unique for other in others)
        return row.status in REPLAYABLE and not taken

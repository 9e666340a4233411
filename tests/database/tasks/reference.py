"""A small reference of the lifecycle, written from the table of states and not from the engine's
code.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from django_durable_tasks.rules.states import OPEN, REPLAYABLE, LogStatus, Status

SOON, HOUR, DAY = 5.0, 3_600.0, 86_400.0
"""How far a test's clock runs ahead: fresh rows are due SOON, retries in an HOUR, and after a DAY
rows expire.
"""


@dataclass
class Row:
    """What the reference knows of one task; ``due`` is how far ahead (seconds) its alarm lies at
    least.
    """

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
        """Whether it has not ended."""
        return self.status in OPEN

    def seen(self) -> tuple[object, ...]:
        """Return what must stand in the database."""
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
        """Go back to PENDING."""
        self.status, self.epoch, self.due, self.run, self.asked = (
            Status.PENDING,
            self.epoch + 1,
            due,
            None,
            False,
        )

    def close(self, status: Status) -> None:
        """End."""
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
        """Nobody told the ending."""
        self.crashes += 1
        if self.asked:
            self.close(Status.CANCELLED)
        elif self.crashes >= self.max_crashes:
            self.close(Status.FAILED)
        else:
            self.wait()

    def cancel(self) -> None:
        """Somebody asked for its end."""
        if self.status == Status.RUNNING:
            self.asked = True
        elif self.is_open:
            self.close(Status.CANCELLED)

    def replay(self) -> None:
        """An operator wants it to run again."""
        self.wait()
        self.failures = self.crashes = 0
        self.letter, self.expires = False, False
        self.open_key, self.open_unique = self.key, self.unique


@dataclass
class Reference:
    """All rows, in the order of their birth."""

    rows: list[Row] = field(default_factory=list)

    def get(self, task_id: uuid.UUID) -> Row:
        """Return the row of this id."""
        return next(row for row in self.rows if row.task_id == task_id)

    def holder(self, **named: str) -> Row | None:
        """Return the row that holds this open_key, open_unique or idempotency key."""
        ((name, value),) = named.items()
        return next((row for row in self.rows if getattr(row, name) == value), None)

    def due(self, ahead: float) -> list[Row]:
        """Return the rows that wait and are due when the clock runs so far ahead."""
        return [row for row in self.rows if row.status == Status.PENDING and row.due <= ahead]

    def of(self, status: Status) -> list[Row]:
        """Return the rows of this status."""
        return [row for row in self.rows if row.status == status]

    def may_replay(self, row: Row) -> bool:
        """Tell whether no newer open row holds one of its keys."""
        others = [other for other in self.rows if other is not row]
        taken = any(row.key is not None and other.open_key == row.key for other in others)
        taken |= any(row.unique is not None and other.open_unique == row.unique for other in others)
        return row.status in REPLAYABLE and not taken

"""The records of a chaos run as plain values. The checkers read nothing else, so tests can
construct any history.

Ids are strings. ``at`` is in seconds: by the wall clock advanced by the monotonic one for records
of bodies, and by the database's clock for those of triggers. On one machine the two agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ACCEPTED = frozenset({"SUCCESS", "FAILED", "RETRY", "LOST", "CANCELLED"})
"""The possible endings of a started attempt. FENCED endings were refused; DUPLICATE ones never
started a body.
"""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A task whose creation was acknowledged to its caller."""

    task: str
    kind: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A record written by a body: it begins, or it ends (``good``: by a return). ``group`` is the
    process group of its worker.
    """

    task: str
    attempt: int
    run: str
    begins: bool
    at: float
    good: bool = True
    key: str = ""
    group: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """A record of the trigger: a task was created (no ``old``), changed, or deleted (no ``new``).
    ``due`` is its deadline after the change; None if it is not open or waits for a limit.
    """

    task: str
    old: str | None
    new: str | None
    old_epoch: int
    new_epoch: int
    attempt: int = 0
    run: str | None = None
    at: float = 0.0
    due: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A task at the end. ``marked``: its function writes marks, which built-in tasks do not.
    ``minute``: when the minute of its creation began, by the time in its id. ``in_batch``: its
    first run was in a batch; ``batched``: and its function always returns. ``items``: how many its
    loop has.
    """

    task: str
    status: str
    attempts: int = 0
    failures: int = 0
    crashes: int = 0
    max_attempts: int = 5
    max_crashes: int = 3
    reason: str = ""
    atomic: bool = False
    items: int = 0
    name: str = ""
    queue: str = "default"
    in_batch: bool = False
    batched: bool = False
    is_callback: bool = False
    marked: bool = True
    minute: float = 0.0


@dataclass(frozen=True, slots=True)
class Log:
    """A row of the execution log. ``at``: when the attempt ended; ``error``: how."""

    task: str
    attempt: int
    status: str
    run: str | None = None
    at: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """A dependency of the child on the parent, of this type."""

    parent: str
    child: str
    kind: str = "MUST_SUCCEED"


@dataclass(frozen=True, slots=True)
class Term:
    """The leader's lease as it was written: the owner, the term, its expiry, when it was written,
    and its name.
    """

    term: int
    holder: str
    until: float
    at: float
    office: str = "leader"


@dataclass(frozen=True, slots=True)
class Fire:
    """A ledger entry: this fire time of this schedule became this task, created by the leader of a
    term. ``count`` is the number of fire times of a range.
    """

    schedule: str
    due: float
    task: str | None
    term: int | None = None
    at: float = 0.0
    outcome: str = "DISPATCHED"
    count: int = 1


@dataclass(frozen=True, slots=True)
class Timetable:
    """A declared schedule: its first fire, its interval in seconds, and its end."""

    schedule: str
    first: float
    every: float
    through: float
    lateness: float = 120.0

    def due(self) -> list[float]:
        """Return the fire times by arithmetic only."""
        number = (
            int((self.through - self.first) // self.every) + 1 if self.through >= self.first else 0
        )
        return [self.first + index * self.every for index in range(number)]


@dataclass(frozen=True, slots=True)
class Calm:
    """The state at the end, without load and faults."""

    overdue: int = 0
    asleep_in_transactions: int = 0
    connections: int = 0
    baseline: int = 0
    messages: int = 0
    unacknowledged: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A request that the receiver recorded before it answered with the status ``answer``, or with
    nothing (0).

    ``message`` is its ``webhook-id``. ``setting`` is the notification setting, empty for a
    callback. ``events`` are the types of its events and the ids of their tasks; ``total`` is how
    many events a digest counts.
    """

    message: str
    task: str
    setting: str = ""
    answer: int = 200
    valid: bool = True
    key: str = ""
    events: tuple[tuple[str, str], ...] = ()
    total: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """A notification setting: endings of these tasks in this status are events of this type."""

    setting: str
    name: str
    status: str
    type: str
    digest: bool = False


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process while it could run tasks: its process group, how many it runs at once, the
    queues that it consumes, and the names that it does not know.
    """

    group: int
    slots: int
    queues: frozenset[str]
    began: float
    over: float = float("inf")
    unknown: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Interval:
    """A period between two times. ``what`` happened in it."""

    began: float
    over: float
    what: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest number of running tasks of a name, or of all names if it is empty."""

    number: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Supervision:
    """What the suite knows about the processes of a campaign.

    ``faults`` are the periods in which a fault was injected or processes were replaced. ``grace``
    is how many seconds after a fault everything that is due runs again; ``lease`` how long the
    lease of a run lasts without a renewal. ``delays`` are the periods in which the suite's own
    heartbeat was late, so that this machine had no processor for anything. ``errors`` are
    unexpected errors in the logs of the processes. ``backlog_messages`` is the number of messages
    per task of the backlog, if there was no fault meanwhile.
    """

    workers: tuple[Worker, ...] = ()
    faults: tuple[Interval, ...] = ()
    grace: float = 0.0
    lease: float = 60.0
    delays: tuple[Interval, ...] = ()
    limits: tuple[Limit, ...] = ()
    errors: tuple[str, ...] = ()
    backlog_messages: float = 0.0


Series = tuple[str, str, str, str]
"""A series of the metrics: its kind, queue, task name and status."""


@dataclass(frozen=True, slots=True)
class CreationCount:
    """What the metrics said at a time about the tasks of one queue and name that were created in
    the minute that begins at ``minute``.
    """

    at: float
    minute: float
    queue: str
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class CreationCounts:
    """The counts of created tasks in chronological order. The schedulers have counted the minutes
    before ``until``; the suite counted all of them again at ``repeated_at``.
    """

    counts: tuple[CreationCount, ...] = ()
    until: float = 0.0
    repeated_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All records, each sequence in chronological order."""

    enqueued: tuple[Enqueued, ...] = ()
    marks: tuple[Mark, ...] = ()
    changes: tuple[Change, ...] = ()
    rows: Mapping[str, Row] = field(default_factory=dict)
    logs: tuple[Log, ...] = ()
    open_letters: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    items: tuple[tuple[str, int], ...] = ()
    edges: tuple[Edge, ...] = ()
    terms: tuple[Term, ...] = ()
    fires: tuple[Fire, ...] = ()
    timetables: tuple[Timetable, ...] = ()
    requests: tuple[Request, ...] = ()
    selections: tuple[Selection, ...] = ()
    undelivered_events: int = 0
    counted: Mapping[Series, tuple[int, int]] = field(default_factory=dict)  # total, its minutes
    creations: CreationCounts = CreationCounts()
    retried: frozenset[str] = frozenset()  # tasks whose next attempt an operator made due
    calm: Calm = Calm()
    supervision: Supervision = Supervision()
    has_metrics: bool = True

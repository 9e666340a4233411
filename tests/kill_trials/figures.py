"""The parameters of a kill trial, and its figures."""

from dataclasses import dataclass

MESSAGES, BATCHES = "messages", "batches"
"""The lanes: a message for each task, or batches of tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The lane, the numbers of tasks and kills, and the timeouts (seconds)."""

    tasks: int
    kills: int
    freezes: int
    body: float = 0.02
    slots: int = 2
    patience: float = 120
    lane: str = MESSAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one trial from the database and the logs.

    ``in_batches``: the successes of runs that started in a batch.
    """

    lane: str
    tasks: int
    kills: int
    freezes: int
    succeeded: int
    in_batches: int
    lost: int
    left_running: int
    accepted_twice: int
    attempts_lost: int
    fenced_endings: int
    dropped_rings: int
    seconds: float

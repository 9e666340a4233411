"""The parameters of a kill trial, and its figures."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The numbers of tasks and kills, and the timeouts (seconds)."""

    tasks: int
    kills: int
    freezes: int
    body: float = 0.02
    slots: int = 2
    patience: float = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one trial from the database and the logs."""

    tasks: int
    kills: int
    freezes: int
    succeeded: int
    lost: int
    left_running: int
    accepted_twice: int
    attempts_lost: int
    fenced_endings: int
    dropped_rings: int
    seconds: float

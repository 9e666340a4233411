"""What a kill trial is told, and what it tells."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much, how often, and how patiently (seconds)."""

    tasks: int
    kills: int
    freezes: int
    body: float = 0.02
    slots: int = 2
    patience: float = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the database and the logs say after one trial."""

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

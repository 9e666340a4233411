"""What a run of chaos is told."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

SETTINGS: dict[str, float] = {
    "LEASE": 6,
    "HEARTBEAT": 1.5,
    "NODE_HEARTBEAT": 1,
    "NODE_TIMEOUT": 4,
    "LEADER_LEASE": 4,
    "LEADER_RENEW": 1,
    "REPUBLISH_AFTER": 5,
    "POLL": 0.2,
    "UNKNOWN_TASK_DELAY": 1,
    "BROKER_BACKOFF": 1,
    "RESULT_WRITE_TIMEOUT": 60,
}
"""Leases and alarms are shortened, so that minutes hold many of their cycles."""
SCHEDULES, EVERY = 10, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One lane: a load, a fleet and its faults, on PostgreSQL and one broker.

    ``rate`` is tasks a second; ``calm`` how long (seconds) nothing is disturbed before the first
    fault and after the last one; ``pace`` stretches every fault; when each has struck and
    ``seconds`` are not over, others follow. Without ``private`` servers those of the tests are
    used, and left as they were: faults of a whole server are left out.
    """

    broker: str
    seed: str
    faults: tuple[str, ...]
    rate: float = 40.0
    calm: float = 15.0
    pace: float = 1.0
    seconds: float = 0.0
    private: bool = True

    def as_text(self) -> str:
        """Spell it as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of(cls, text: str) -> Plan:
        """Read what ``as_text`` spelled."""
        told = json.loads(text)
        return cls(**{**told, "faults": tuple(told["faults"])})

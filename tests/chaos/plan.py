"""The plan of a chaos run."""

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
"""Leases and timeouts are shortened, so that minutes contain many of their cycles."""
SCHEDULES, EVERY = 10, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run: load, cluster and faults, on PostgreSQL and one broker.

    ``rate`` is tasks per second. ``calm`` is how long (seconds) nothing is disturbed before the
    first fault and after the last one. ``pace`` multiplies the duration of every fault. When each
    has occurred and ``seconds`` have not passed, others follow. Without ``private`` servers those
    of the tests are used, and faults of a whole server are left out.
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
        """Return it as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of(cls, text: str) -> Plan:
        """Parse the output of ``as_text``."""
        plan = json.loads(text)
        return cls(**{**plan, "faults": tuple(plan["faults"])})

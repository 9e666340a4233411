"""The plan of a chaos run."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from tests.chaos.configuration import Configuration

SETTINGS: dict[str, float] = {
    "LEASE": 6,
    "HEARTBEAT": 1.5,
    "NODE_HEARTBEAT": 1,
    "NODE_TIMEOUT": 4,
    "LEADER_LEASE": 4,
    "REPUBLISH_AFTER": 5,
    "POLL": 0.2,
    "BROKER_BACKOFF": 1,
    "RESULT_WRITE_TIMEOUT": 60,
}
"""Leases and timeouts are shortened, so that minutes contain many of their cycles."""
CALLBACKS = "CHAOS_CALLBACKS"
"""The environment variable with the URL for the callbacks of the load."""
SCHEDULES, SCHEDULES_OF_CAMPAIGN, EVERY = 10, 3, 2.0
AT_ONCE = 10
"""In how many further queues one call creates a task."""
QUEUES = {"redis": 200, "rabbitmq": 40, "database": 40, "filesystem": 20}
WITHOUT_SERVER = ("filesystem", "database")
"""The brokers that have no server of their own."""
"""How many queues the load uses in addition to the default one. On RabbitMQ a worker declares each
queue at each connection, one request after the other.
"""


def further_queues(default: str, broker: str) -> list[str]:
    """Return the names of the queues that the load uses in addition to the default one."""
    return [f"{default}-{number:03}" for number in range(QUEUES[broker])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run: load, cluster and faults, on PostgreSQL and one broker.

    ``rate`` is tasks per second. ``calm`` is how long (seconds) nothing is disturbed before the
    first fault and after the last one. ``pace`` multiplies the duration of every fault. When each
    has occurred and ``seconds`` have not passed, others follow. With ``pooled`` the processes reach
    PostgreSQL through PgBouncer in transaction mode. Without ``private`` servers those
    of the tests are used, and faults of a whole server are left out. With a ``configuration`` the
    run is a campaign: its processes, connections, settings and load are those of the configuration,
    and ``faults`` are drawn from those named, with calm periods between them.
    """

    broker: str
    seed: str
    faults: tuple[str, ...]
    rate: float = 40.0
    calm: float = 15.0
    pace: float = 1.0
    seconds: float = 0.0
    private: bool = True
    pooled: bool = False
    configuration: Configuration | None = None

    @property
    def database(self) -> str:
        """Return the name of the database server."""
        return self.configuration.database if self.configuration else "postgresql"

    @property
    def settings(self) -> dict[str, float]:
        """Return the settings of this package that every process of the run has."""
        return SETTINGS if self.configuration is None or self.configuration.short else {}

    @property
    def grace(self) -> float:
        """Return how many seconds after a fault everything that is due runs again: two intervals of
        republishing, or the time-out of a node and its next sweep.
        """
        return 2 * self.settings.get("REPUBLISH_AFTER", 15.0)

    def as_text(self) -> str:
        """Return it as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of(cls, text: str) -> Plan:
        """Parse the output of ``as_text``."""
        plan = json.loads(text)
        configuration = plan.pop("configuration")
        if configuration is not None:
            configuration = Configuration.of(json.dumps(configuration))
        return cls(**{**plan, "faults": tuple(plan["faults"])}, configuration=configuration)

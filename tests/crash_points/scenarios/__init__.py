"""The scenarios: an operation of the engine, its initial rows, and the expected final state."""

from __future__ import annotations

from tests.crash_points.scenarios import (
    batching,
    creating,
    dispatching,
    ending,
    handing_over,
    releasing,
    starting,
    taking,
    triggering,
)
from tests.crash_points.scenarios.scenario import Scenario

SCENARIOS: dict[str, tuple[Scenario, ...]] = {
    "create": creating.SCENARIOS,
    "dispatch": dispatching.SCENARIOS,
    "start": starting.SCENARIOS,
    "ending": ending.SCENARIOS,
    "steps": ending.STEPS,
    "release": releasing.SCENARIOS,
    "trigger": triggering.SCENARIOS,
    "batch": batching.SCENARIOS,
    "hand over": handing_over.SCENARIOS,
    "take": taking.SCENARIOS,
}

__all__ = ["SCENARIOS", "Scenario"]

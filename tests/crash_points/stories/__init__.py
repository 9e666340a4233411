"""The scenarios: an operation of the engine, its initial rows, and the expected final state."""

from __future__ import annotations

from tests.crash_points.stories import (
    creating,
    dispatching,
    ending,
    releasing,
    starting,
    triggering,
)
from tests.crash_points.stories.story import Story

STORIES: dict[str, tuple[Story, ...]] = {
    "create": creating.STORIES,
    "dispatch": dispatching.STORIES,
    "start": starting.STORIES,
    "ending": ending.STORIES,
    "release": releasing.STORIES,
    "trigger": triggering.STORIES,
}

__all__ = ["STORIES", "Story"]

"""The stories: what the engine is asked to do, on which rows, and how things must stand when all is
done.
"""

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

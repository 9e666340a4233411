"""The effective runs of a schedule: a timetable within bounds, with fire times rolled off closed
days and single fire times overridden.
"""

from django_durable_tasks.rules.recurring.effective.compose import agenda
from django_durable_tasks.rules.recurring.effective.types import (
    Action,
    Agenda,
    Override,
    PlannedRun,
    SkippedRange,
)

__all__ = ["Action", "Agenda", "Override", "PlannedRun", "SkippedRange", "agenda"]

"""What really runs, and when: a timetable within bounds, rolled off closed days, with single fire
times overridden.
"""

from django_durable_tasks.rules.recurring.effective.compose import agenda
from django_durable_tasks.rules.recurring.effective.types import (
    Action,
    Agenda,
    Override,
    Planned,
    Stretch,
)

__all__ = ["Action", "Agenda", "Override", "Planned", "Stretch", "agenda"]

"""What really runs, and when: a timetable within bounds, rolled off closed days, with single fire times overridden."""

from django_durable_tasks.rules.agenda.building import agenda
from django_durable_tasks.rules.agenda.values import Action, Agenda, Override, Planned, Stretch

__all__ = ["Action", "Agenda", "Override", "Planned", "Stretch", "agenda"]
